// One Join with a shell around it and four peers, all driven by whoever derives from it; and what
// must hold after every event.
#pragma once

#include "bootstrap/join.h"
#include "bootstrap/message_codec.h"
#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/tree_hash.h"
#include "tests/fuzz/join_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>

namespace starling::bootstrap::testing {

using std::chrono::hours;

struct Remote {
  NodeId id;
  bool up = false;
  StateSponsor store{TransferOptions{}};
  Hello said;
};

// An effect whose outcome the shell has not told yet.
struct Pending {
  TimePoint told;
  Hash fingerprint;  // of the settings then
  JoinEffect effect;
};

class Bench {
 public:
  explicit Bench(Plan plan) : plan_(std::move(plan)), join_(now_, plan_.parts, Rng(1)) {
    for (std::size_t i = 0; i < kPeers; ++i) {
      remotes_[i].id = node_named(i);
      remotes_[i].said.settings = plan_.parts.own;
    }
    facts_.max_state_bytes = plan_.bytes;
    add_addresses();
    take(join_.update(now_, facts_));
    if ((plan_.seeds & 128U) == 0) begin();
  }

 protected:
  // ---- the shell

  void begin() {
    if (!std::exchange(begun_, true)) take(join_.begin(now_));
  }

  void add_addresses() {
    std::vector<Seed> seeds;
    for (std::size_t i = 1; i <= plan_.seeds % 4U; ++i) seeds.push_back(seed_at(endpoint(i)));
    const transport::Endpoint name{"seeds.example", 7700};
    if (plan_.seeds & 4U) seeds.push_back(seed_at(name));
    if (plan_.seeds & 8U) seeds.push_back(seed_at(name, SeedKind::all_of_name));
    if (plan_.seeds & 16U)
      for (std::size_t i = 10; i < 20; ++i) seeds.push_back(seed_at(endpoint(i)));
    auto added = join_.add_seeds(now_, seeds);
    STARLING_CHECK(added.has_value());
    take(std::move(*added));
    AddressBook book;
    if (plan_.seeds & 32U)
      for (std::size_t i = 2; i < 6; ++i) book.on_worked(node_named(i % kPeers), endpoint(i));
    take(join_.add_address_book(now_, book));
  }

  void advance(Duration time) {
    now_ += time;
    std::erase_if(pending_, [&](const Pending& one) {  // the outcome of a dial may be lost
      return now_ > one.told + std::chrono::seconds(20) &&
             (std::holds_alternative<Dial>(one.effect) ||
              std::holds_alternative<Resolve>(one.effect) ||
              std::holds_alternative<ProbePort>(one.effect));
    });
    for (auto& remote : remotes_) remote.store.on_tick(now_);
    if (guest_) guest_takes(guest_->on_tick(now_));
    update();
    for (int ticks = 0; ticks < 8 && join_.next_deadline() <= now_; ++ticks)
      take(join_.on_tick(now_));
    STARLING_CHECK(join_.next_deadline() > now_);
    STARLING_CHECK((join_.next_deadline() == kNever) == (join_.phase() == JoinPhase::over));
  }

  void update() {
    told_age_ = facts_.age;
    take(join_.update(now_, facts_));
  }

  void take(JoinEffects effects) {
    STARLING_CHECK_OP(effects.size(), <=, 128U);
    for (auto& effect : effects) std::visit([&](auto& one) { carry_out(one); }, effect);
    check_state();
  }

  template <class Effect>
  void carry_out(Effect& effect) {
    pending_.push_back({now_, join_.settings().fingerprint(), std::move(effect)});
    STARLING_CHECK_OP(pending_.size(), <=, 128U);
  }
  void carry_out(BootstrapOutgoing& sent) {
    Remote& to = *std::ranges::find(remotes_, sent.to, &Remote::id);
    STARLING_CHECK(to.up);
    const auto arrives = decode_bootstrap(encode(sent.message));
    // What is attached passes as it is.
    STARLING_CHECK(arrives.has_value());
    STARLING_CHECK(std::holds_alternative<Chunk>(*arrives) || *arrives == sent.message);
    arrive(to, sent.message);
  }
  void carry_out(BootstrapOffence& offence) { STARLING_CHECK(guilty_ && *guilty_ == offence.peer); }
  void carry_out(BeginTraining& begin) {
    STARLING_CHECK(!std::exchange(trains_, true));
    facts_.age = begin.start == Start::checkpoint ? 150 : 0;
    if (facts_.phase == RunPhase::starting) facts_.phase = RunPhase::training;
  }
  void carry_out(AdoptSettings& adopt) {
    const auto& own = join_.settings().values();
    STARLING_CHECK(adopt.settings != join_.settings());
    for (const auto& key : plan_.parts.forced)
      STARLING_CHECK(own.at(key) == adopt.settings.values().at(key));
    pending_.push_back({now_, {}, adopt});
  }
  void carry_out(InstallState& install) {
    STARLING_CHECK(shadow_ && install.snapshot && install.sponsor == sponsor_);
    const Snapshot& snapshot = *install.snapshot;
    STARLING_CHECK(snapshot.manifest == shadow_->manifest && install.counters == shadow_->counters);
    STARLING_CHECK(snapshot.manifest.fingerprint == join_.settings().fingerprint());
    STARLING_CHECK(!trains_ || snapshot.manifest.age > told_age_);
    check_bytes(snapshot);
    remember(install.snapshot);
    pending_.push_back({now_, {}, std::move(install)});
  }
  void carry_out(TransferFailed&) {
    ++failures_;
    shadow_.reset();
  }
  void carry_out(TakeSnapshot& snapshot) {
    const Hash fingerprint = join_.settings().fingerprint();
    for (const auto& one : pending_)
      STARLING_CHECK(!std::holds_alternative<TakeSnapshot>(one.effect) ||
                     one.fingerprint != fingerprint);
    pending_.push_back({now_, fingerprint, snapshot});
  }
  void carry_out(FetchFinal& fetch) {
    STARLING_CHECK(!trains_ && join_.same_settings(fetch.from));
    STARLING_CHECK(certificates_.contains(fetch.certificate));
    if (facts_.phase == RunPhase::starting) facts_.phase = RunPhase::finishing;
    pending_.push_back({now_, {}, fetch});
  }
  void carry_out(SameSettings& same) {
    const Remote& with = *std::ranges::find(remotes_, same.peer, &Remote::id);
    STARLING_CHECK(with.up && with.said.settings == join_.settings());
  }
  void carry_out(SettingsRefused& refused) { STARLING_CHECK(!join_.same_settings(refused.peer)); }
  void carry_out(GiveUp&) {
    STARLING_CHECK(plan_.parts.options.require_peers > 0 && !trains_);
    STARLING_CHECK(!std::exchange(gave_up_, true));
  }
  void carry_out(Reachability& told) { STARLING_CHECK(asked_to_dial_.erase(told.peer) == 1); }
  void carry_out(Joined&) { STARLING_CHECK(!std::exchange(joined_, true)); }

  // Right by what the manifest says. The true chunks were hashed once, and are not again.
  bool is_right(const Manifest& manifest, std::size_t index, const SharedBytes& chunk) const {
    const Snapshot& truth = model_of(plan_.bytes);
    const Hash& wanted = manifest.chunk_hashes[index];
    if (chunk->size() != manifest.chunk_bytes(index)) return false;
    if (index < truth.chunks.size() && chunk == truth.chunks[index])
      return wanted == truth.manifest.chunk_hashes[index];
    return tree_hash_of(*chunk) == wanted;
  }
  void check_bytes(const Snapshot& snapshot) const {
    STARLING_CHECK(snapshot.chunks.size() == snapshot.manifest.chunks());
    for (std::size_t i = 0; i < snapshot.chunks.size(); ++i)
      STARLING_CHECK(is_right(snapshot.manifest, i, snapshot.chunks[i]));
  }

  void remember(const SharedSnapshot& snapshot) {
    snapshots_.emplace_back(snapshot);
    known_.emplace(snapshot->manifest.id(), snapshot->manifest);
  }

  template <class Effect>
  std::size_t awaited() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        pending_, [](const Pending& one) { return std::holds_alternative<Effect>(one.effect); }));
  }
  bool ends() const { return facts_.phase > RunPhase::training; }

  // What is waited for is on its way, and what is on its way is waited for.
  void check_state() {
    using enum JoinPhase;
    const auto status = join_.status(now_);
    const JoinPhase phase = status.phase;
    const bool finished = !facts_.certificate.is_zero();
    STARLING_CHECK((phase == over) == gave_up_);
    if (phase == adopting) STARLING_CHECK_OP(awaited<AdoptSettings>(), ==, 1U);
    if (phase == installing) STARLING_CHECK_OP(awaited<InstallState>(), ==, 1U);
    if (phase == fetching) STARLING_CHECK_OP(awaited<FetchFinal>(), ==, 1U);
    if (phase == member) STARLING_CHECK(trains_ || finished);
    const bool rests = phase == adopting || phase == over || finished;
    if (awaited<AdoptSettings>() > 0) STARLING_CHECK(rests);
    if (awaited<InstallState>() > 0) STARLING_CHECK(phase == installing || rests);
    if (awaited<FetchFinal>() > 0) STARLING_CHECK(phase == fetching || rests);
    STARLING_CHECK((phase == loading) == status.sponsor.has_value());
    if (status.sponsor) sponsor_ = *status.sponsor;
    STARLING_CHECK_OP(status.transfer.bytes_done, <=, status.transfer.bytes_total);
    STARLING_CHECK_OP(status.transfer.bytes_total, <=, plan_.bytes);
    if (status.transfer.bytes_total == 0) shadow_.reset();
    // One that is served, one that is put in place.
    std::erase_if(snapshots_, [](const auto& one) { return one.expired(); });
    const bool places = phase == installing || awaited<InstallState>() > 0;
    STARLING_CHECK_OP(snapshots_.size(), <=, places ? 2U : 1U);
  }

  // The outcome of the effect at this place; a wrong or strange one only where `kind` is not 0.
  void answer(std::size_t index, std::uint8_t kind) {
    const auto at = pending_.begin() + static_cast<std::ptrdiff_t>(index);
    // Who leaves does not say what became of its search for the end of the swarm.
    if (std::holds_alternative<FetchFinal>(at->effect) && facts_.phase != RunPhase::finishing)
      return;
    Pending one = std::move(*at);
    pending_.erase(at);
    if (const auto* dial = std::get_if<Dial>(&one.effect)) return end_dial(*dial, kind);
    if (const auto* name = std::get_if<Resolve>(&one.effect)) return end_resolve(*name, kind);
    if (const auto* adopt = std::get_if<AdoptSettings>(&one.effect)) return end_adopt(*adopt, kind);
    if (auto* state = std::get_if<InstallState>(&one.effect)) return end_install(*state, kind);
    if (std::holds_alternative<FetchFinal>(one.effect)) return end_fetch(kind);
    if (const auto* probe = std::get_if<ProbePort>(&one.effect))
      return take(join_.on_probed(now_, probe->peer, {probe->port, kind % 2 == 0, "10.0.0.9", ""}));
    if (kind % 4 == 3)
      return take(join_.on_snapshot(now_, fail(Errc::not_found, Doing::transferring_state, "")));
    auto cut = snapshot_of(plan_.bytes, one.fingerprint, facts_.age);
    remember(cut);
    auto effects = join_.on_snapshot(now_, std::move(cut));  // named: the snapshot goes first
    take(std::move(effects));
  }

  void end_dial(const Dial& dial, std::uint8_t kind) {
    constexpr std::array kCodes = {Errc::connect_refused, Errc::timed_out,
                                   Errc::wrong_swarm,     Errc::refused,
                                   Errc::already_exists,  Errc::wrong_identity};
    Remote& there = remotes_[kind / 4 % kPeers];
    switch (kind % 4) {
      case 1:
        return;  // never told
      case 2:
        if (there.up) return take(join_.on_dial_met(now_, dial.target.endpoint, there.id));
        return open(there, dial.target.endpoint);
      default:
        return take(join_.on_dial_failed(now_, dial.target.endpoint,
                                         {kCodes[kind / 4 % 6], Doing::handshaking, "no"}));
    }
  }

  void end_resolve(const Resolve& name, std::uint8_t kind) {
    if (kind % 4 == 3)
      return take(
          join_.on_resolved(now_, name.name, fail(Errc::resolve_failed, Doing::joining, "")));
    std::vector<transport::Endpoint> found;
    for (std::size_t i = 1; i < 6; ++i)
      if ((kind / 4U >> i) & 1U) found.push_back(endpoint(i));
    take(join_.on_resolved(now_, name.name, found));
  }

  void end_adopt(const AdoptSettings& adopt, std::uint8_t kind) {
    if (kind % 4 == 3)
      return take(join_.on_settings_unusable(now_, {Errc::settings_mismatch, Doing::joining, ""}));
    if (ends() || gave_up_) return take(join_.on_settings_kept(now_));
    // What was being built is of no use any more; a snapshot that is being cut still comes.
    std::erase_if(pending_, [](const Pending& one) {
      return std::holds_alternative<InstallState>(one.effect);
    });
    guest_.reset();  // what it asked for there is not here
    trains_ = false;
    facts_.phase = RunPhase::starting;
    told_age_ = facts_.age = 0;
    take(join_.on_settings_adopted(now_, adopt.settings));
  }

  void end_install(InstallState& install, std::uint8_t kind) {
    const double age = std::exchange(install.snapshot, nullptr)->manifest.age;
    if (kind % 4 == 3)
      return take(join_.on_state_unusable(now_, {Errc::bad_message, Doing::joining, "not finite"}));
    trains_ = true;
    facts_.age = age;
    if (facts_.phase == RunPhase::starting) facts_.phase = RunPhase::training;
    take(join_.on_state_installed(now_));
  }

  void end_fetch(std::uint8_t kind) {
    if (kind % 4 != 3) {
      facts_.phase = RunPhase::starting;
      return take(join_.on_final_unavailable(now_));
    }
    facts_.phase = RunPhase::finished;
    facts_.certificate = kCertificate;
    update();
  }

  // ---- peers

  void open(Remote& peer, const std::optional<transport::Endpoint>& dialled) {
    if (std::exchange(peer.up, true)) return;
    take(join_.on_session_up(now_, peer.id, dialled));
  }
  void close(Remote& peer) {
    if (!std::exchange(peer.up, false)) return;
    std::erase_if(queue_, [&](const auto& item) { return item.first == &peer; });
    asked_to_dial_.erase(peer.id);
    peer.store.on_session_down(kSelf);
    if (peer.id == node_named(kGuest)) guest_.reset();
    take(join_.on_session_down(now_, peer.id));
  }

  // An honest peer has a message of this node's, and answers it.
  void arrive(Remote& at, const BootstrapMessage& message) {
    if (const auto* request = std::get_if<StateRequest>(&message)) {
      if (!request->snapshot.is_zero()) at.store.hold(now_, truth(at));
      reply(at, at.store.on_request(now_, kSelf, *request, stock(at)));
    } else if (const auto* wanted = std::get_if<ChunkRequest>(&message)) {
      reply(at, at.store.on_chunk_request(now_, kSelf, *wanted));
    } else if (const auto* done = std::get_if<StateDone>(&message)) {
      at.store.on_done(now_, kSelf, *done);
    } else if (const auto* dial_back = std::get_if<DialBackRequest>(&message)) {
      post(at, DialBackReply{dial_back->port, true, "10.0.0.9", ""});
    } else if (const auto* manifest = std::get_if<StateManifest>(&message)) {
      served_ = manifest->manifest.id();
      STARLING_CHECK(known_.contains(served_));
      STARLING_CHECK(manifest->manifest.fingerprint == join_.settings().fingerprint());
      if (guest_ && &at == &remotes_[kGuest])
        guest_takes(guest_->on_manifest(now_, kSelf, *manifest));
    } else if (const auto* chunk = std::get_if<Chunk>(&message)) {
      if (chunk->bytes)
        STARLING_CHECK_OP(chunk->bytes->size(), ==,
                          known_.at(chunk->snapshot).chunk_bytes(chunk->index));
      if (guest_ && &at == &remotes_[kGuest]) guest_takes(guest_->on_chunk(now_, kSelf, *chunk));
    } else if (const auto* refused = std::get_if<StateRefused>(&message)) {
      if (guest_ && &at == &remotes_[kGuest])
        guest_takes(guest_->on_refused(now_, kSelf, *refused));
    } else if (const auto* hello = std::get_if<Hello>(&message)) {
      STARLING_CHECK_OP(hello->load, <=, kPeers);
    }
  }
  void reply(Remote& from, SponsorEffects effects) {
    STARLING_CHECK(effects.offences.empty());  // this node asks only for what there is
    for (auto& sent : effects.send) {
      if (auto* manifest = std::get_if<StateManifest>(&sent.message))
        for (const auto& other : remotes_)
          if (&other != &from) manifest->donors.push_back(other.id);
      post(from, std::move(sent.message));
    }
    if (effects.take_snapshot) reply(from, from.store.on_snapshot(now_, truth(from), stock(from)));
  }
  void post(Remote& from, BootstrapMessage message) {
    if (queue_.size() < 64) queue_.emplace_back(&from, std::move(message));
  }
  // A peer that loads from this node, which answers truly.
  void guest_takes(ReceiverEffects effects) {
    STARLING_CHECK(effects.offences.empty());
    if (effects.complete) check_bytes(*effects.complete);
    for (auto& sent : effects.send) post(remotes_[kGuest], std::move(sent.message));
    if (effects.complete || effects.failed) guest_.reset();
  }
  SharedSnapshot truth(const Remote& of) const {
    return snapshot_of(plan_.bytes, of.said.settings.fingerprint(), of.said.age);
  }
  StateSponsor::Stock stock(const Remote& of) const {
    return {.fingerprint = of.said.settings.fingerprint(),
            .phase = of.said.phase,
            .run_age_ms = 7,
            .counters = {{node_named(1), 5}, {node_named(2), 6}}};
  }

  // Through the codec, which refuses what no peer can bring to the node.
  void deliver(Remote& from, const transport::Message& wire) {
    if (!from.up) return;
    if (wire.attachment && !join_.admits(from.id, wire.type, wire.attached().size())) return;
    const auto message = decode_bootstrap(wire);
    if (!message) return;
    if (const auto* hello = std::get_if<Hello>(&*message)) {
      from.said = *hello;
      certificates_.insert(hello->certificate);
    }
    const auto before = join_.status(now_).transfer;
    const std::uint64_t gain = judge(from, *message);
    const auto* chunk = std::get_if<Chunk>(&*message);
    const long owners = chunk ? chunk->bytes.use_count() : 0;
    const auto* manifest = std::get_if<StateManifest>(&*message);
    if (manifest && before.bytes_total == 0 && from.id == sponsor_) {
      shadow_ = *manifest;
      counted_.clear();
    }
    take(join_.on_message(now_, from.id, *message));
    guilty_.reset();
    if (manifest && shadow_) known_.emplace(shadow_->manifest.id(), shadow_->manifest);
    const auto after = join_.status(now_).transfer;
    if (chunk && gain == 0) STARLING_CHECK_OP(chunk->bytes.use_count(), <=, owners);
    if (before.bytes_total == 0 || after.bytes_total == 0) return;
    STARLING_CHECK(after.bytes_done == before.bytes_done ||
                   after.bytes_done == before.bytes_done + gain);
    if (after.bytes_done != before.bytes_done) counted_.insert(chunk->index);
  }

  // What a message that is right adds to the transfer; and whether its sender may be accused.
  std::uint64_t judge(const Remote& from, const BootstrapMessage& message) {
    bool guilty = false;
    std::uint64_t gain = 0;
    if (const auto* chunk = std::get_if<Chunk>(&message); chunk && chunk->bytes && shadow_) {
      const Manifest& manifest = shadow_->manifest;
      if (chunk->snapshot == manifest.id() && chunk->index < manifest.chunks()) {
        guilty = !is_right(manifest, chunk->index, chunk->bytes);
        if (!guilty && !counted_.contains(chunk->index)) gain = chunk->bytes->size();
      }
    } else if (const auto* offered = std::get_if<StateManifest>(&message)) {
      guilty = offered->manifest.fingerprint != join_.settings().fingerprint() ||
               offered->manifest.total_bytes > plan_.bytes;
    } else if (const auto* wanted = std::get_if<ChunkRequest>(&message)) {
      const auto at = known_.find(wanted->snapshot);
      guilty = at != known_.end() && wanted->index >= at->second.chunks();
    }
    if (guilty) guilty_ = from.id;
    return gain;
  }

  void settle(int steps) {
    for (; steps > 0 && !(queue_.empty() && pending_.empty()); --steps) {
      if (queue_.empty())
        answer(0, 0);
      else
        deliver_at(0);
    }
  }
  void deliver_at(std::size_t index) {
    const auto at = queue_.begin() + static_cast<std::ptrdiff_t>(index);
    const auto [from, message] = std::move(*at);
    queue_.erase(at);
    deliver(*from, encode(message));
  }

  TimePoint now_ = TimePoint{} + hours(500);
  Plan plan_;
  Join join_;
  bool begun_ = false;
  std::array<Remote, kPeers> remotes_;
  LocalFacts facts_;
  double told_age_ = 0;
  bool trains_ = false;
  bool gave_up_ = false;
  bool joined_ = false;
  std::size_t failures_ = 0;
  std::deque<Pending> pending_;
  std::deque<std::pair<Remote*, BootstrapMessage>> queue_;
  std::optional<StateReceiver> guest_;
  std::optional<NodeId> guilty_;
  // The transfer under way, as its sponsor announced it, and the chunks of it that counted.
  NodeId sponsor_;
  std::optional<StateManifest> shadow_;
  std::set<std::uint32_t> counted_;
  // All that this node could give on, and what of it is alive.
  std::map<Hash, Manifest> known_;
  std::vector<std::weak_ptr<const Snapshot>> snapshots_;
  Hash served_;
  std::set<Hash> certificates_;
  std::set<NodeId> asked_to_dial_;
};

}  // namespace starling::bootstrap::testing
