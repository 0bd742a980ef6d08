// Two nodes of one swarm, each with its end and its merges and with jobs that are really done, and
// two others that sign anything, show any certificate, and play along if the input says so. Nothing
// of it may make the two take a certificate that is not signed by all who are named in it, or sign
// two hashes in one epoch; end one that trains for fewer than train on; certify other bits than lie
// in its memory; get one blamed by the other; or cost more signature checks than a peer may have.
// What they began comes to an end once the others are gone.
#include "gossip/consensus/merge.h"
#include "gossip/consensus/message_codec.h"
#include "node/base/check.h"
#include "tests/fuzz/consensus_ends.h"
#include "tests/fuzz/consensus_liar.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <utility>

namespace {

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::consensus;
using namespace starling::gossip::consensus::testing;
using namespace std::chrono_literals;

constexpr std::uint64_t kHonest = 2;  // numbers 0 and 1 are under test
constexpr std::uint64_t kNodes = 4;   // 2 and 3 say anything, and make up ids from here on
constexpr TimePoint kBegin = TimePoint{} + 1h;
// What one peer may have verified: gossip/consensus/following.cc.
constexpr double kMostToVerify = 2 * kMaxParticipants;
constexpr double kVerifiedASecond = 256;

class Bench {
 public:
  explicit Bench(ByteView input) : input_(input), options_(options(byte())) {
    for (std::uint64_t k = 0; k < kHonest; ++k)
      nodes_.push_back(std::make_unique<Node>(k, options_, verifier_));
    know(0, node_id(1), Presence::trains);
    know(1, node_id(0), Presence::trains);
    connect(0, 1);
  }

  void run() {
    for (int events = 0; events < 400 && input_.left() > 0; ++events) event();
    come_to_an_end();
  }

 private:
  static ConsensusOptions options(std::uint8_t kind) {
    ConsensusOptions options;
    options.rule = static_cast<Rule>(kind % 3);
    if (kind >= 192) options.admin = node_id(3);
    options.order = {"starling/finish-order/1", to_bytes(our_fingerprint().view())};
    options.fingerprint = our_fingerprint();
    options.manifest = our_manifest();
    options.model = "small";
    options.shape = kSmallShape;
    return options;
  }
  std::uint8_t byte() { return input_.read<std::uint8_t>().value_or(0); }
  std::size_t one() { return byte() % kHonest; }
  std::uint64_t liar() { return kHonest + byte() % (kNodes - kHonest); }
  NodeId any() { return node_id(byte() % (kNodes + 2)); }

  void event() {
    switch (byte() % 16) {
      case 0:
      case 1:
        return change_session(byte());
      case 2:
      case 3:
        return tick(5ms * (1 << (byte() % 16)));
      case 4:
        return own(one());
      case 5:
        return know(one());
      case 6:
      case 7:
        return deliver(one(), 1 + byte() % 32);
      case 8:
      case 9:
        return work(one(), 1 + byte() % 32);
      case 10:
        return lie(one(), liar());
      case 11:
      case 12:
        return show(one(), liar());
      default:
        for (int left = 1 + byte() % 16; left > 0 && !heard_.empty(); --left) play_along();
    }
  }

  // Gives an event to a node, carries out what comes of it, and looks at what it holds then.
  template <class Event>
  void at(std::size_t k, Event&& event) {
    Node& node = *nodes_[k];
    const Phase before = node.end->state().phase;
    ConsensusEffects effects = event(node);
    for (const auto& sent : effects.send) carry(k, sent);
    for (auto& job : effects.jobs) node.jobs.push_back(std::move(job));
    for (const auto& offence : effects.misbehaved)
      STARLING_CHECK(offence.peer != node_id(0) && offence.peer != node_id(1));
    if (effects.freeze == RunKind::merge) node.snapshots = true;
    if (effects.freeze == RunKind::finish) {
      STARLING_CHECK(!std::exchange(node.froze, true));
      node.freezes = true;
    }
    if (effects.not_taken) node.held_back.insert(effects.not_taken->certificate.hash);
    if (effects.merged) look_at(k, *effects.merged);
    look(node, before);
    if (effects.finished) {
      STARLING_CHECK(!std::exchange(node.finished, true));
      STARLING_CHECK(effects.finished->certificate.hash == node.held);
      STARLING_CHECK(node.memory({}).hash() == node.held);
      STARLING_CHECK(node.end->state().bytes_left == 0);
    }
    if (effects.may_exit) STARLING_CHECK(node.finished);
  }

  void carry(std::size_t k, const ConsensusSend& sent) {
    Node& node = *nodes_[k];
    STARLING_CHECK(node.sessions.contains(sent.to));
    auto decoded = decode(encode(sent.message));
    STARLING_CHECK(decoded.has_value());
    const RunId run = run_of(*decoded);
    if (run.kind == RunKind::merge) node.merging = run;
    if (const auto* said = std::get_if<HashSignature>(&*decoded);
        said && said->signer == node.signer.id() && run.kind == RunKind::finish) {
      const auto [at, is_new] = node.signed_hashes.try_emplace(said->round.epoch, said->hash);
      STARLING_CHECK(is_new || at->second == said->hash);
    }
    if (const auto* chunk = std::get_if<Chunk>(&*decoded))
      STARLING_CHECK(tree_hash_of(*chunk->values) == chunk->hash);
    if (sent.to == node_id(1 - k)) return queues_[k].push_back(*std::move(decoded));
    heard_.push_back({k, sent.to == node_id(2) ? 2U : 3U, *std::move(decoded)});
    if (heard_.size() > 64) heard_.pop_front();
  }

  // Members that lose what they learned to that model, as far as is known outside the node: at
  // most, and at least.
  enum class Count : std::uint8_t { most, least };
  static std::size_t others(const Node& node, const Certificate& certificate, Count count) {
    std::size_t others = 1;
    for (const auto& [id, trains] : node.trains)
      if (trains && !std::ranges::binary_search(certificate.participants, id) &&
          (count == Count::most || !node.holders.contains({id, certificate.hash})))
        ++others;
    return others;
  }
  static std::size_t signers(const Node& node, const Certificate& certificate) {
    return static_cast<std::size_t>(std::ranges::count_if(
        certificate.participants, [&](const NodeId& id) { return node.trains.contains(id); }));
  }

  void look(Node& node, Phase before) {
    const auto state = node.end->state();
    STARLING_CHECK(state.bytes_left <= state.bytes_total);
    const auto& certificate = node.end->certificate();
    const auto hash = certificate ? std::optional(certificate->hash) : std::nullopt;
    if (hash == node.held) return;
    STARLING_CHECK(!node.finished);
    node.held = hash;
    node.gave_up = node.gave_up || !certificate;
    if (!certificate) return;
    const auto message = *node.end->certificate_message();
    STARLING_CHECK(verify(message, our_fingerprint(), checker_).has_value());
    STARLING_CHECK(message.chunks.size() == plan_.count());
    // Where nobody had asked for an end, it is the end of no more than signed it.
    if (before == Phase::idle &&
        !std::ranges::binary_search(certificate->participants, node.signer.id()))
      STARLING_CHECK(signers(node, *certificate) >= others(node, *certificate, Count::least));
    for (const auto& honest : nodes_) {
      if (!std::ranges::binary_search(certificate->participants, honest->signer.id())) continue;
      const auto said = honest->signed_hashes.find(certificate->epoch);
      // Who has no session says it to nobody.
      if (said == honest->signed_hashes.end())
        STARLING_CHECK(certificate->participants.size() == 1);
      else
        STARLING_CHECK(said->second == certificate->hash);
    }
  }

  // All who merge come to the same bits.
  void look_at(std::size_t k, const Merged& merged) {
    Node& node = *nodes_[k];
    STARLING_CHECK(std::ranges::binary_search(merged.participants, node.signer.id()));
    if (merged.participants.size() == 1) return;
    const Hash hash = node.memory(node.merging).hash();
    const auto [at, is_new] = merged_.try_emplace({node.merging.number, merged.participants}, hash);
    STARLING_CHECK(is_new || at->second == hash);
  }

  void change_session(std::uint8_t kind) {
    const std::size_t k = kind % kHonest;
    const std::uint64_t other = kind / 2 % 3 == 0 ? 1 - k : 1 + kind / 2 % 3;
    if (kind >= 160)
      disconnect(k, other);
    else
      connect(k, other);
  }
  void connect(std::size_t k, std::uint64_t other) {
    for (const auto& [from, to] : {std::pair<std::size_t, std::size_t>{k, other}, {other, k}}) {
      const NodeId peer = node_id(to);
      if (from >= kHonest || !nodes_[from]->sessions.insert(peer).second) continue;
      at(from, [&](Node& node) { return node.end->on_session_up(now_, peer); });
      at(from, [&](Node& node) { return node.merge.on_session_up(now_, peer); });
    }
  }
  void disconnect(std::size_t k, std::uint64_t other) {
    for (const auto& [from, to] : {std::pair<std::size_t, std::size_t>{k, other}, {other, k}}) {
      const NodeId peer = node_id(to);
      if (from >= kHonest || nodes_[from]->sessions.erase(peer) == 0) continue;
      if (to < kHonest) queues_ = {};
      at(from, [&](Node& node) { return node.end->on_session_down(now_, peer); });
      at(from, [&](Node& node) { return node.merge.on_session_down(now_, peer); });
    }
  }

  template <class Machine>
  void tick(std::size_t k, Machine machine) {
    for (int ticks = 0; ticks < 8 && machine(*nodes_[k]).next_deadline() <= now_; ++ticks)
      at(k, [&](Node& node) { return machine(node).on_tick(now_); });
    STARLING_CHECK(machine(*nodes_[k]).next_deadline() > now_);
  }
  void tick(Duration time) {
    now_ += time;
    for (std::size_t k = 0; k < kHonest; ++k) {
      tick(k, [](Node& node) -> FinalConsensus& { return *node.end; });
      tick(k, [](Node& node) -> Merge& { return node.merge; });
    }
  }

  // What its shell does by itself.
  void serve(std::size_t k) {
    if (std::exchange(nodes_[k]->freezes, false))
      at(k, [&](Node& node) { return node.end->on_frozen(now_); });
    if (std::exchange(nodes_[k]->snapshots, false))
      at(k, [&](Node& node) { return node.merge.on_frozen(now_); });
    if (nodes_[k]->finished) at(k, [&](Node& node) { return node.end->on_stored(now_); });
  }

  void own(std::size_t k) {
    const std::uint8_t what = byte();
    const std::uint8_t with = byte();
    if (what % 8 == 5) return begin_again(k, with);
    at(k, [&](Node& node) -> ConsensusEffects {
      switch (what % 8) {
        case 0:
          return node.end->on_progress(now_, with, 100);
        case 1:
          return node.end->on_standing(now_, static_cast<Role>(with % 2));
        case 2:
        case 3:
          return node.merge.request(now_, ++merges_).value_or(ConsensusEffects{});
        case 4:
          return with % 4 == 0 ? node.merge.abort(now_, "somebody said so") : ConsensusEffects{};
        default:
          return node.end->on_finish_command(now_, order());
      }
    });
  }
  [[nodiscard]] Signature order() const {
    return FakeSigner(node_id(3)).sign(options_.order.domain, options_.order.bytes);
  }

  // A process that finds the certificate of the one before, and the model that it names.
  void begin_again(std::size_t k, std::uint8_t wrongly) {
    Node& node = *nodes_[k];
    if (!node.finished || node.end->state().phase != Phase::done) return;
    for (std::uint64_t other = 0; other < kNodes; ++other)
      if (other != k) disconnect(k, other);
    const auto held = *node.end->certificate_message();
    auto wrong = held;
    damage(wrong, wrongly);
    node.jobs.clear();
    node.end = std::make_unique<FinalConsensus>(options_, node.signer, verifier_);
    STARLING_CHECK(!node.end->restore(wrong).has_value());
    STARLING_CHECK(node.end->idle() && !node.end->certificate());
    STARLING_CHECK(node.end->restore(held).has_value());
    STARLING_CHECK(!node.end->restore(held).has_value());
  }

  void know(std::size_t k) {
    const NodeId id = any();
    const auto presence = static_cast<Presence>(byte() % 4);
    if (id != node_id(k)) know(k, id, presence);
  }
  void know(std::size_t k, const NodeId& id, Presence presence) {
    if (presence == Presence::forgotten)
      nodes_[k]->trains.erase(id);
    else
      nodes_[k]->trains.insert_or_assign(id, presence == Presence::trains);
    at(k, [&](Node& node) { return node.end->on_member(now_, id, presence); });
    if (presence == Presence::gone)
      at(k, [&](Node& node) { return node.merge.on_member_gone(now_, id); });
  }

  void deliver(std::size_t from, int most) {
    for (; most > 0 && !queues_[from].empty(); --most) {
      const auto message = std::move(queues_[from].front());
      queues_[from].pop_front();
      receive(1 - from, from, message);
    }
  }

  void receive(std::size_t k, std::uint64_t from, const ConsensusMessage& message) {
    const NodeId peer = node_id(from);
    if (!nodes_[k]->sessions.contains(peer)) return;
    const auto decoded = decode(encode(message));
    if (!decoded) return;
    if (const auto* said = std::get_if<Acknowledge>(&*decoded))
      nodes_[k]->holders.insert({said->signer, said->hash});
    const std::size_t asked = verifier_.asked;
    at(k, [&](Node& node) { return node.end->on_message(now_, peer, *decoded); });
    if (std::holds_alternative<CertificateMessage>(*decoded)) {
      const auto verified = nodes_[k]->verified[peer] += verifier_.asked - asked;
      STARLING_CHECK_OP(static_cast<double>(verified), <=,
                        kMostToVerify + kVerifiedASecond * seconds(now_ - kBegin));
    }
    at(k, [&](Node& node) { return node.merge.on_message(now_, peer, *decoded); });
  }

  void lie(std::size_t k, std::uint64_t from) { receive(k, from, liar_.say(speech(from, k))); }

  void work(std::size_t k, int most) {
    serve(k);
    for (; most > 0 && !nodes_[k]->jobs.empty(); --most) {
      const ConsensusJob job = std::move(nodes_[k]->jobs.front());
      nodes_[k]->jobs.pop_front();
      const RunId run = target_of(job).round.run;
      JobOutcome outcome{target_of(job), kind_of(job), {}, {}};
      if (byte() % 64 == 63)
        outcome.result = fail(Errc::corrupt, Doing::agreeing, "a job that failed");
      else
        outcome = nodes_[k]->memory(run).run(job);
      at(k, [&](Node& node) {
        return run.kind == RunKind::merge ? node.merge.on_job_done(now_, outcome)
                                          : node.end->on_job_done(now_, outcome);
      });
    }
  }

  // Any certificate, good or false. What a good one is worth is known before it is shown.
  void show(std::size_t k, std::uint64_t from) {
    const std::uint8_t kind = byte();
    CertificateMessage message;
    bool genuine = true;
    if (kind % 8 == 0) {
      message = certificate_of_crowd(kind / 8);
      for (std::size_t again = byte() % 16; again > 0; --again)
        show(k, from, certificate_of_crowd(again), true);
    } else if (kind % 8 == 1) {
      const auto held = nodes_[one()]->end->certificate_message();
      if (!held) return;
      message = *held;
    } else {
      Claimed claimed{.model = kind / 8 % 4U, .participants = {}, .epoch = 1U + byte() % 12U};
      const std::uint8_t who = byte();
      for (std::uint64_t id = 0; id < 6; ++id)
        if ((who >> id & 1U) != 0) claimed.participants.push_back(node_id(id));
      if (claimed.participants.empty()) claimed.participants.push_back(node_id(from));
      message = certificate_of(claimed);
      for (std::size_t at = 0; at < message.certificate.participants.size(); ++at) {
        const auto& id = message.certificate.participants[at];
        if (id != node_id(0) && id != node_id(1)) continue;
        message.certificate.signatures[at].bytes[5] ^= std::byte{1};
        genuine = false;
      }
    }
    const std::uint8_t how = byte();
    if (how >= 192) damage(message, how);
    genuine = genuine && how < 192;
    STARLING_CHECK(verify(message, our_fingerprint(), checker_).has_value() == genuine);
    show(k, from, message, genuine);
  }

  void show(std::size_t k, std::uint64_t from, const CertificateMessage& message, bool genuine) {
    Node& node = *nodes_[k];
    const auto& theirs = message.certificate;
    const auto before = node.held;
    const Phase phase = node.end->state().phase;
    const std::size_t shown = node.shown[node_id(from)] += theirs.signatures.size();
    const bool outnumbered =
        phase == Phase::idle && signers(node, theirs) < others(node, theirs, Count::most);
    receive(k, from, message);
    if (!genuine) STARLING_CHECK(node.held == before);
    if (!genuine || before || phase == Phase::failed || outnumbered) return;
    // A few signatures are verified at once, and whoever has begun waits for no other end.
    if (node.sessions.contains(node_id(from)) && !node.held_back.contains(theirs.hash) &&
        static_cast<double>(shown) <= kMostToVerify)
      STARLING_CHECK(node.held == theirs.hash);
  }

  [[nodiscard]] Speech speech(std::uint64_t from, std::size_t to) const {
    Speech speech{node_id(from), {node_id(0), node_id(1)}, {}, {}, {}, {}};
    for (const auto& node : nodes_)
      if (node->sessions.contains(speech.self)) speech.sessions.push_back(node->signer.id());
    std::ranges::sort(speech.sessions);
    const auto state = nodes_[to]->end->state();
    speech.end = {{}, std::max(state.epoch, Epoch{1})};
    speech.merge = {nodes_[to]->merging, Epoch{1}};
    speech.hash = state.hash.value_or(our_fingerprint());
    return speech;
  }

  // The oldest that a liar was told is answered, or comes to nothing on its way.
  void play_along() {
    const auto [k, from, message] = std::move(heard_.front());
    heard_.pop_front();
    if (byte() % 32 != 31) {
      for (const auto& said : liar_.answer(speech(from, k), message)) receive(k, from, said);
      return;
    }
    const NodeId peer = node_id(from);
    if (std::holds_alternative<CertificateMessage>(message))
      return at(k, [&](Node& node) { return node.end->on_certificate_refused(now_, peer); });
    auto wire = encode(message);
    wire.attachment = nullptr;
    const auto known = decode(wire);
    STARLING_CHECK(known.has_value());
    at(k, [&](Node& node) { return node.end->on_refused(now_, peer, *known); });
    at(k, [&](Node& node) { return node.merge.on_refused(now_, peer, *known); });
  }

  [[nodiscard]] bool busy(std::size_t k) const {
    const Node& node = *nodes_[k];
    return !queues_[k].empty() || !node.jobs.empty() || node.freezes || node.snapshots;
  }

  // The liars are gone, the line between the two is good, and nobody asks for anything any more.
  void come_to_an_end() {
    for (std::size_t k = 0; k < kHonest; ++k) {
      for (std::uint64_t other = 2; other < kNodes; ++other) disconnect(k, other);
      for (std::uint64_t other = 2; other < kNodes + 2; ++other)
        know(k, node_id(other), other < kNodes ? Presence::gone : Presence::forgotten);
      know(k, node_id(1 - k), Presence::trains);
    }
    disconnect(0, 1);
    connect(0, 1);
    const TimePoint latest = now_ + 3h;
    while (now_ < latest) {
      while (busy(0) || busy(1))
        for (std::size_t k = 0; k < kHonest; ++k) {
          deliver(k, 1000);
          work(k, 1000);
        }
      for (std::size_t k = 0; k < kHonest; ++k) serve(k);
      if (busy(0) || busy(1)) continue;
      TimePoint next = latest;
      for (const auto& node : nodes_)
        next = std::min({next, node->end->next_deadline(), node->merge.next_deadline()});
      tick(std::max(next - now_, Duration{0}));
    }
    for (const auto& node : nodes_) {
      const Phase phase = node->end->state().phase;
      STARLING_CHECK(phase == Phase::idle || phase == Phase::done || phase == Phase::failed);
      STARLING_CHECK(!node->merge.running());
      const auto& other = nodes_[node == nodes_[0] ? 1 : 0]->end->certificate();
      // What was shown while another end was fetched in vain is not shown again.
      if (phase == Phase::idle && other && !node->gave_up)
        STARLING_CHECK(signers(*node, *other) < others(*node, *other, Count::most));
    }
  }

  struct Heard {
    std::size_t node = 0;  // that said it
    std::uint64_t liar = 0;
    ConsensusMessage message;
  };

  ByteReader input_;
  ConsensusOptions options_;
  ChunkPlan plan_{kSmallShape};
  Liar liar_{input_};
  TimePoint now_ = kBegin;
  FakeVerifier verifier_;
  FakeVerifier checker_;  // of this file, so that what the nodes ask is counted by itself
  std::vector<std::unique_ptr<Node>> nodes_;
  std::array<std::deque<ConsensusMessage>, kHonest> queues_;  // of what each has sent to the other
  std::deque<Heard> heard_;                                   // by the liars
  std::uint64_t merges_ = 0;
  std::map<std::pair<std::uint64_t, std::vector<NodeId>>, Hash> merged_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bench(ByteView(reinterpret_cast<const std::byte*>(data), size)).run();
  return 0;
}
