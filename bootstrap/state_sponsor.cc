#include "bootstrap/state_transfer.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::bootstrap {
namespace {

// A joiner that asks for nothing for so long has gone elsewhere.
constexpr Duration kIdleJoiner = std::chrono::seconds(30);
// Where places are short, one that takes less than this many bytes a second keeps none, once it has
// had time to begin.
constexpr double kSlowest = 64 << 10;
constexpr Duration kSettling = std::chrono::minutes(1);

std::vector<NodeId> others_for(const NodeId& asker, std::vector<NodeId> donors) {
  std::erase(donors, asker);
  return donors;
}

}  // namespace

SponsorEffects StateSponsor::on_request(TimePoint now, const NodeId& from,
                                        const StateRequest& request, const Stock& stock) {
  SponsorEffects effects;
  const auto refuse = [&](RefusalReason reason) {
    effects.send.push_back({from, StateRefused{request.snapshot, reason}});
    return effects;
  };
  if (request.fingerprint != stock.fingerprint) return refuse(RefusalReason::other_settings);
  if (!request.snapshot.is_zero()) {
    // A donor may help while it leaves or finishes: it holds the bytes.
    if (!held_ || held_id_ != request.snapshot) return refuse(RefusalReason::not_held);
    // Whoever has lost its donor brings a part of the snapshot along: all joiners of a donor that
    // is gone find a place here beside this node's own.
    const std::size_t places = (lost_.contains(from) ? 1 : 2) * options_.max_joiners;
    if (!finds_place(now, from, places + waiting_.size())) return refuse(RefusalReason::busy);
    offer(now, from, stock, effects);
    return effects;
  }
  if (stock.phase == RunPhase::starting) return refuse(RefusalReason::no_model);
  if (stock.phase != RunPhase::training) return refuse(RefusalReason::ending);
  if (!finds_place(now, from, options_.max_joiners)) return refuse(RefusalReason::busy);
  if (taking_) {
    waiting_.insert(from);
    return effects;
  }
  if (gives_to_newcomers(now)) {
    offer(now, from, stock, effects);
    return effects;
  }
  waiting_.insert(from);
  taking_ = true;
  effects.take_snapshot = true;
  return effects;
}

// Whether one of so many places is its own or free. Where none is, one that overstays gives up its
// own, the slowest first; not for somebody who had to do so itself.
bool StateSponsor::finds_place(TimePoint now, const NodeId& from, std::size_t places) {
  if (joiners_.contains(from) || waiting_.contains(from)) return true;
  const auto rate = [&](const auto& item) {
    return static_cast<double>(item.second.chunks) / seconds(now - item.second.since);
  };
  while (joiners_.size() + waiting_.size() >= places) {
    if (lost_.contains(from)) return false;
    auto slowest = joiners_.end();
    for (auto at = joiners_.begin(); at != joiners_.end(); ++at)
      if (overstays(now, at->second) && (slowest == joiners_.end() || rate(*at) < rate(*slowest)))
        slowest = at;
    if (slowest == joiners_.end()) return false;
    lost_.insert(slowest->first);
    joiners_.erase(slowest);
  }
  return true;
}

// Has had the time that a snapshot is shared for, or chunks for two; or takes too little.
bool StateSponsor::overstays(TimePoint now, const Joiner& joiner) const {
  const Duration stay = now - joiner.since;
  if (stay > options_.shared || joiner.chunks > 2 * held_->chunks.size()) return true;
  return stay > kSettling &&
         static_cast<double>(joiner.chunks * kChunkBytes) < kSlowest * seconds(stay);
}

// One snapshot for all joiners of the moment: while somebody loads it, it is everybody's, but not
// for ever, or one that never ends would choose the model of all who come later.
bool StateSponsor::gives_to_newcomers(TimePoint now) const {
  if (!held_ || now - taken_ > options_.shared) return false;
  return now - taken_ <= options_.fresh ||
         std::ranges::any_of(joiners_, [](const auto& item) { return item.second.chunks > 0; });
}

void StateSponsor::offer(TimePoint now, const NodeId& to, const Stock& stock,
                         SponsorEffects& effects) {
  // A place is kept by loading: to ask for the manifest again costs nothing.
  joiners_.try_emplace(to, Joiner{.since = now, .asked = now});
  lost_.erase(to);
  last_used_ = now;
  StateManifest manifest;
  manifest.manifest = held_->manifest;
  manifest.run_age_ms = stock.run_age_ms;
  manifest.donors = others_for(to, donors_);
  manifest.counters = stock.counters;
  if (manifest.counters.size() > kMaxSavedCounters) manifest.counters.resize(kMaxSavedCounters);
  effects.send.push_back({to, std::move(manifest)});
}

SponsorEffects StateSponsor::on_snapshot(TimePoint now, SharedSnapshot snapshot,
                                         const Stock& stock) {
  SponsorEffects effects;
  if (!taking_) return effects;  // dropped meanwhile: other settings
  // Asked for before that. The one that is wanted is still to come.
  if (snapshot && snapshot->manifest.fingerprint != stock.fingerprint) return effects;
  taking_ = false;
  if (!snapshot) {
    for (const auto& id : std::exchange(waiting_, {}))
      effects.send.push_back({id, StateRefused{Hash{}, RefusalReason::busy}});
    return effects;
  }
  held_ = std::move(snapshot);
  held_id_ = held_->manifest.id();
  taken_ = now;
  last_used_ = now;
  donors_.clear();
  joiners_.clear();
  lost_.clear();
  for (const auto& id : std::exchange(waiting_, {})) offer(now, id, stock, effects);
  return effects;
}

void StateSponsor::hold(TimePoint now, SharedSnapshot snapshot) {
  if (held_ && !joiners_.empty()) return;  // somebody loads the other one
  held_ = std::move(snapshot);
  held_id_ = held_->manifest.id();
  // Good for those who want this very snapshot; newcomers get a fresh one.
  taken_ = now - options_.fresh - Duration(1);
  last_used_ = now;
  donors_.clear();
}

void StateSponsor::drop() {
  held_.reset();
  taking_ = false;
  waiting_.clear();
  joiners_.clear();
  lost_.clear();
  donors_.clear();
}

SponsorEffects StateSponsor::on_chunk_request(TimePoint now, const NodeId& from,
                                              const ChunkRequest& request) {
  SponsorEffects effects;
  const bool held = held_ && held_id_ == request.snapshot;
  if (held && request.index >= held_->chunks.size()) {
    effects.offences.push_back({from, Error{Errc::bad_message, Doing::transferring_state,
                                            "asked for chunk " + std::to_string(request.index) +
                                                " of " + std::to_string(held_->chunks.size())}});
    return effects;
  }
  const auto joiner = joiners_.find(from);
  if (!held || joiner == joiners_.end()) {
    effects.send.push_back({from, Chunk{request.snapshot, request.index, nullptr}});
    return effects;
  }
  joiner->second.asked = now;
  ++joiner->second.chunks;
  last_used_ = now;
  fault::pass("transfer.chunk_sent");
  effects.send.push_back(
      {from, Chunk{request.snapshot, request.index, held_->chunks[request.index]}});
  return effects;
}

void StateSponsor::on_done(TimePoint now, const NodeId& from, const StateDone& done) {
  if (!held_ || done.snapshot != held_id_ || joiners_.erase(from) == 0) return;
  last_used_ = now;
  if (donors_.size() < kMaxDonors && std::ranges::find(donors_, from) == donors_.end())
    donors_.push_back(from);
}

void StateSponsor::on_session_down(const NodeId& peer) {
  waiting_.erase(peer);
  joiners_.erase(peer);
  lost_.erase(peer);
  std::erase(donors_, peer);
}

void StateSponsor::on_tick(TimePoint now) {
  std::erase_if(joiners_, [&](const auto& item) { return now - item.second.asked > kIdleJoiner; });
  if (held_ && now - last_used_ >= options_.keep) {
    held_.reset();
    joiners_.clear();
    lost_.clear();
    donors_.clear();
  }
}

TimePoint StateSponsor::next_deadline() const {
  TimePoint next = held_ ? last_used_ + options_.keep : kNever;
  for (const auto& [id, joiner] : joiners_)
    next = std::min(next, joiner.asked + kIdleJoiner + Duration(1));
  return next;
}

}  // namespace starling::bootstrap
