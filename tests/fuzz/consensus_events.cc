// A sequence of events for one node of a final consensus among three others that sign anything well
// or badly, and whose jobs end as the input says: nothing of it may break a CHECK, give it a
// certificate with a signature missing, end it twice, send to whom there is no session, or leave a
// deadline that a tick does not move.
#include "gossip/consensus/final_consensus.h"
#include "gossip/consensus/message_codec.h"
#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/tree_hash.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>

namespace {

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::consensus;
using consensus::testing::FakeSigner;
using consensus::testing::FakeVerifier;
using consensus::testing::node_id;

constexpr std::uint64_t kNodes = 4;  // number 0 is the one under test
const Hash kFingerprint = hash_of(as_bytes("settings"));
const Hash kManifest = hash_of(as_bytes("manifest"));

class Bench {
 public:
  // Inputs that begin with 255 are of a swarm where only the admin, node 3, ends the run by
  // command.
  explicit Bench(ByteView input)
      : input_(input),
        has_admin_(!input.empty() && input[0] == std::byte{255}),
        node_(options(has_admin_), signer_, verifier_) {}

  void run() {
    for (int events = 0; events < 300 && input_.left() > 0; ++events) {
      event();
      check_state();
    }
  }

 private:
  static ConsensusOptions options(bool has_admin = false) {
    ConsensusOptions options;
    if (has_admin) options.admin = node_id(3);
    options.order = {"starling/finish-order/1", to_bytes(kFingerprint.view())};
    options.fingerprint = kFingerprint;
    options.manifest = kManifest;
    options.model = "small";
    options.shape = {.parameters = 20, .channels = 3, .counters = 2, .chunk_blocks = 1};
    return options;
  }
  std::uint8_t byte() { return input_.read<std::uint8_t>().value_or(0); }
  NodeId any() { return node_id(byte() % kNodes); }
  NodeId peer() { return node_id(1 + byte() % (kNodes - 1)); }
  RoundId round() { return {{}, Epoch{byte() % 4 == 0 ? byte() : node_.state().epoch.value}}; }
  Hash hash() {
    const auto known = node_.state().hash;
    return byte() % 4 != 0 && known ? *known : kManifest;
  }
  std::uint32_t chunk() { return byte() % (plan_.count() + 1); }

  void take(ConsensusEffects effects) {
    for (const auto& sent : effects.send) {
      STARLING_CHECK(sessions_.contains(sent.to));
      STARLING_CHECK(decode(encode(sent.message)).has_value());
      remember(sent.message);
    }
    for (auto& job : effects.jobs) jobs_.push_back(std::move(job));
    if (effects.freeze) STARLING_CHECK(!std::exchange(freeze_asked_, true));
    if (effects.finished) STARLING_CHECK(!std::exchange(finished_, true));
    if (effects.may_exit) STARLING_CHECK(finished_);
  }

  // What it says of the set is what others have to say, too, for it to go on.
  void remember(const ConsensusMessage& message) {
    if (const auto* said = std::get_if<Participants>(&message); said && said->signer == self())
      participants_ = *said;
    if (const auto* said = std::get_if<HashSignature>(&message); said && said->signer == self())
      signature_ = *said;
  }
  NodeId self() const { return signer_.id(); }

  void event() {
    switch (byte() % 12) {
      case 0: {
        const auto up = peer();
        sessions_.insert(up);
        return take(node_.on_session_up(now_, up));
      }
      case 1: {
        const auto down = peer();
        sessions_.erase(down);
        return take(node_.on_session_down(now_, down));
      }
      case 2:
        return tick();
      case 3:
        return own();
      case 4:
        return take(node_.on_member(now_, any(), static_cast<Presence>(byte() % 4)));
      case 5:
      case 6:
        return end_job();
      default:
        return receive();
    }
  }

  void tick() {
    now_ += std::chrono::milliseconds(5) * (1 << (byte() % 16));
    if (finished_) take(node_.on_stored(now_));
    for (int ticks = 0; ticks < 8 && node_.next_deadline() <= now_; ++ticks)
      take(node_.on_tick(now_));
    STARLING_CHECK(node_.next_deadline() > now_);
  }

  void own() {
    switch (byte() % 5) {
      case 0:
        return take(node_.on_finish_command(now_, order()));
      case 1:
        return take(node_.on_progress(now_, byte(), 100));
      case 2:
        return take(node_.on_standing(now_, static_cast<Role>(byte() % 2)));
      case 3:
        return freeze_asked_ ? take(node_.on_frozen(now_)) : void();
      default:
        return take(node_.on_certificate_refused(now_, peer()));
    }
  }

  // The oldest job ends, well or not.
  void end_job() {
    if (jobs_.empty()) return;
    const ConsensusJob job = std::move(jobs_.front());
    jobs_.pop_front();
    take(node_.on_job_done(now_, {target_of(job), kind_of(job), outcome(job), culprit()}));
  }
  std::optional<NodeId> culprit() {
    return byte() % 16 == 0 ? std::optional(peer()) : std::nullopt;
  }
  Result<JobDone> outcome(const ConsensusJob& job) {
    const JobTarget& target = target_of(job);
    const std::uint8_t luck = byte();
    if (luck % 16 == 0) return fail(Errc::bad_message, Doing::agreeing, "a job that failed");
    const auto values = share(Bytes(plan_.result_bytes(target.chunk), std::byte{0}));
    switch (kind_of(job)) {
      case JobKind::exponents:
        return ExponentsFound{share(Bytes(plan_.exponents(target.chunk), std::byte{127}))};
      case JobKind::sum:
      case JobKind::pack:
        return SumPacked{values};
      case JobKind::divide:
      case JobKind::median:
        return ChunkDivided{values, tree_hash_of(*values)};
      case JobKind::store:
        return ChunkStored{std::get<StoreJob>(job).hash, std::get<StoreJob>(job).bytes};
      case JobKind::load:
        return ChunkLoaded{std::get<LoadJob>(job).to, std::get<LoadJob>(job).hash, values};
      case JobKind::check:
        return ReplicaChecked{luck % 16 == 1 ? 2.0 : 0.5, 0, 0};
    }
    return fail(Errc::bad_message, Doing::agreeing, "a job of no kind");
  }

  void receive() {
    const auto decoded = decode(encode(message()));
    if (decoded) take(node_.on_message(now_, peer(), *decoded));
  }

  template <class Message>
  Message signed_by(const NodeId& author, Message message) {
    sign(message, FakeSigner(author), kFingerprint);
    if (byte() % 16 == 0) message.signature = {};
    return message;
  }

  ConsensusMessage message() {
    // Nobody has the key of the node under test but that node, in an earlier life.
    switch (byte() % 12) {
      case 0:
      case 1:
      case 2:
        return finish();
      case 3: {
        auto said = participants_;
        if (byte() % 8 == 0) said.round = round();
        if (byte() % 8 == 0) said.count = 1U + byte();
        return signed_by(any(), said);
      }
      case 4: {
        auto said = signature_;
        if (byte() % 8 == 0) said.round = round();
        if (byte() % 8 == 0) said.hash = hash();
        return signed_by(any(), said);
      }
      case 5:
        return signed_by(any(), Refusal{round(),
                                        {},
                                        static_cast<RefusalReason>(byte() % 3),
                                        Rule::mean,
                                        chunk(),
                                        any(),
                                        {}});
      case 6:
        return signed_by(any(), Acknowledge{round(), {}, hash(), {}});
      case 7:
        return ChunkRequest{round(), chunk(), byte() % 2 == 0 ? Hash{} : hash()};
      default:
        return bulk();
    }
  }

  std::optional<Signature> order() {
    if (!has_admin_ || byte() % 2 == 0) return std::nullopt;
    const Statement wanted = options(true).order;
    const Bytes other = to_bytes(kManifest.view());
    return FakeSigner(node_id(3)).sign(wanted.domain, byte() % 4 == 0 ? other : wanted.bytes);
  }

  Finish finish() {
    Finish finish{.round = round(),
                  .revision = byte() % 4U,
                  .signer = {},
                  .fingerprint = kFingerprint,
                  .sessions = {},
                  .signature = {}};
    const std::uint8_t kind = byte();
    finish.reason = static_cast<FinishReason>(kind & 1U);
    finish.role = (kind & 6U) == 6U ? Role::follower : Role::participant;
    finish.samples = byte();
    const auto author = any();
    for (std::uint64_t k = 0; k < kNodes; ++k)
      if (node_id(k) != author && (kind >> (4 + k) & 1U) == 0)
        finish.sessions.push_back(node_id(k));
    std::ranges::sort(finish.sessions);
    finish.order = order();
    return signed_by(author, finish);
  }

  // Values of a whole chunk as the mean rule sends them.
  SharedBytes travelling(std::uint32_t chunk, const SharedBytes& values) const {
    if (values->size() != plan_.result_bytes(chunk)) return values;
    return share(Bytes(plan_.packed_result_bytes(chunk)));
  }

  ConsensusMessage bulk() {
    const auto at = round();
    const auto part = chunk();
    const std::size_t known = std::min(part, plan_.count() - 1);
    const auto index = static_cast<std::uint32_t>(known);
    const auto bytes = share(Bytes(byte() % 4 == 0 ? byte() : plan_.result_bytes(index)));
    switch (byte() % 5) {
      case 0:
        return Exponents{at, part, static_cast<Direction>(byte() % 2),
                         share(Bytes(plan_.exponents(index), std::byte{100}))};
      case 1:
        return Sum{at, part, bytes};
      case 2:
        return Contribution{at, part, any(), bytes};
      case 3:
        return signed_by(any(),
                         ResultChunk{at, part, tree_hash_of(*bytes), {}, travelling(index, bytes)});
      default:
        return Chunk{part, tree_hash_of(*bytes), bytes};
    }
  }

  void check_state() {
    const auto& certificate = node_.certificate();
    if (!certificate) return;
    STARLING_CHECK(verify(*node_.certificate_message(), kFingerprint, verifier_).has_value());
    if (kept_) STARLING_CHECK(*kept_ == certificate->hash || !finished_);
    kept_ = certificate->hash;
  }

  ByteReader input_;
  bool has_admin_ = false;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  ChunkPlan plan_{options().shape};
  FakeSigner signer_{node_id(0)};
  FakeVerifier verifier_;
  FinalConsensus node_;
  std::set<NodeId> sessions_;
  std::deque<ConsensusJob> jobs_;
  Participants participants_{};
  HashSignature signature_{};
  std::optional<Hash> kept_;
  bool freeze_asked_ = false;
  bool finished_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bench(ByteView(reinterpret_cast<const std::byte*>(data), size)).run();
  return 0;
}
