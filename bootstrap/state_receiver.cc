#include "bootstrap/state_transfer.h"
#include "node/base/fault.h"
#include "node/base/tree_hash.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace starling::bootstrap {
namespace {

constexpr std::uint32_t kMaxSlow = 3;

std::string_view sentence_of(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::busy:
      return "it serves as many joiners as it can, or could not copy its model";
    case RefusalReason::no_model:
      return "it has no model";
    case RefusalReason::other_settings:
      return "it trains other settings";
    case RefusalReason::not_held:
      return "it does not hold that snapshot";
    case RefusalReason::ending:
      return "it leaves or finishes";
  }
  return "it names no reason";
}

}  // namespace

ReceiverEffects StateReceiver::start(TimePoint now, const NodeId& sponsor) {
  ReceiverEffects effects;
  sponsor_ = sponsor;
  state_ = State::asking;
  deadline_ = now + options_.manifest_deadline;
  asked_.insert(sponsor);
  effects.send.push_back({sponsor, StateRequest{fingerprint_, Hash{}}});
  return effects;
}

ReceiverEffects StateReceiver::offer_donor(TimePoint, const NodeId& peer) {
  ReceiverEffects effects;
  if (state_ != State::loading && state_ != State::orphaned) return effects;
  if (donors_.contains(peer) || banned_.contains(peer) || !asked_.insert(peer).second)
    return effects;
  effects.send.push_back({peer, StateRequest{fingerprint_, id_}});
  return effects;
}

ReceiverEffects StateReceiver::on_manifest(TimePoint now, const NodeId& from,
                                           const StateManifest& message) {
  ReceiverEffects effects;
  if (!asked_.contains(from) || state_ == State::idle || state_ == State::ended) return effects;
  const Manifest& manifest = message.manifest;
  if (state_ == State::asking) {
    if (from != sponsor_) return effects;
    const auto sound = check_manifest(manifest);
    if (!sound || manifest.fingerprint != fingerprint_ || manifest.total_bytes > max_bytes_) {
      effects.offences.push_back(
          {from, Error{Errc::bad_message, Doing::transferring_state,
                       "offered a model of " + std::to_string(manifest.total_bytes) +
                           " bytes that does not fit the settings"}});
      give_up("the sponsor offered another model", effects);
      return effects;
    }
    // Cut for joiners that are slow, perhaps.
    if (own_age_ && manifest.age <= *own_age_) {
      effects.not_ahead = true;
      give_up("the sponsor's snapshot is not ahead of this node's replica", effects);
      return effects;
    }
    id_ = manifest.id();
    facts_ = message;
    chunks_.assign(manifest.chunks(), nullptr);
    started_ = now;
  } else if (manifest.id() != id_) {
    return effects;  // asked for this very snapshot, it offers another: no donor
  }
  state_ = State::loading;
  deadline_ = kNever;
  donors_.try_emplace(from);
  ask_for_chunks(now, effects);
  return effects;
}

ReceiverEffects StateReceiver::on_refused(TimePoint now, const NodeId& from,
                                          const StateRefused& refused) {
  ReceiverEffects effects;
  if (state_ == State::asking && from == sponsor_ && refused.snapshot.is_zero())
    give_up("the sponsor refused: " + std::string(sentence_of(refused.reason)), effects);
  else if (donors_.contains(from) && refused.snapshot == id_)
    lose_donor(now, from, effects);
  else if (asked_.contains(from) && refused.snapshot == id_)
    refusers_.insert(from);
  return effects;
}

std::optional<std::uint32_t> StateReceiver::next_chunk(const NodeId& id, const Donor& donor) const {
  // What is late elsewhere may still come, over a line that all donors share: it waits until there
  // is nothing else to ask for.
  std::optional<std::uint32_t> elsewhere;
  std::optional<std::uint32_t> here;
  for (std::uint32_t index = 0; index < chunks_.size(); ++index) {
    if (chunks_[index]) continue;
    // Whoever sent it wrong is asked again only where all have: otherwise nobody would be.
    const auto wrong = wrong_from_.find(index);
    if (wrong != wrong_from_.end() && wrong->second.contains(id) &&
        std::ranges::any_of(donors_,
                            [&](const auto& item) { return !wrong->second.contains(item.first); }))
      continue;
    const auto any = [&](std::set<std::uint32_t> Donor::* list) {
      return std::ranges::any_of(
          donors_, [&](const auto& item) { return (item.second.*list).contains(index); });
    };
    if (any(&Donor::asked)) continue;
    if (!any(&Donor::late)) return index;
    auto& found = donor.late.contains(index) ? here : elsewhere;
    if (!found) found = index;
  }
  return elsewhere ? elsewhere : here;
}

// One that is late is asked for a single chunk, to see whether it still answers: more would only
// lengthen its queue.
bool StateReceiver::takes_more(const Donor& donor) const {
  if (donor.asked.empty()) return true;
  return donor.slow == 0 && donor.asked.size() < options_.window &&
         donor.asked.size() + donor.late.size() < 2 * options_.window;
}

// From now on it is to bring something, after what others were asked for before on a line that all
// may share.
void StateReceiver::begin_wait(TimePoint now, const NodeId& id) {
  Donor& donor = donors_.at(id);
  donor.since = now;
  donor.ahead = 0;
  for (const auto& [other, its] : donors_)
    if (other != id) donor.ahead += its.asked.size() + its.late.size();
}

void StateReceiver::ask_for_chunks(TimePoint now, ReceiverEffects& effects) {
  for (auto& [id, donor] : donors_) {
    while (takes_more(donor)) {
      const auto index = next_chunk(id, donor);
      if (!index) break;
      if (donor.asked.empty() && donor.slow == 0) begin_wait(now, id);
      donor.late.erase(*index);
      donor.asked.insert(*index);
      effects.send.push_back({id, ChunkRequest{id_, *index}});
    }
  }
}

ReceiverEffects StateReceiver::on_chunk(TimePoint now, const NodeId& from, const Chunk& chunk) {
  ReceiverEffects effects;
  const auto at = donors_.find(from);
  if (at == donors_.end() || chunk.snapshot != id_ || state_ != State::loading) return effects;
  Donor& donor = at->second;
  if (donor.asked.erase(chunk.index) + donor.late.erase(chunk.index) == 0) return effects;
  if (!chunk.bytes) {
    lose_donor(now, from, effects);
    return effects;
  }
  const Manifest& manifest = facts_.manifest;
  if (chunk.bytes->size() != manifest.chunk_bytes(chunk.index) ||
      tree_hash_of(*chunk.bytes) != manifest.chunk_hashes[chunk.index]) {
    effects.offences.push_back(
        {from, Error{Errc::corrupt, Doing::transferring_state,
                     "chunk " + std::to_string(chunk.index) + " does not have its hash"}});
    wrong_from_[chunk.index].insert(from);
    if (++donor.wrong >= options_.max_wrong) {
      banned_.insert(from);
      lose_donor(now, from, effects);
    } else {
      ask_for_chunks(now, effects);
    }
    return effects;
  }
  const Duration took = now - donor.since;
  donor.slow = 0;
  begin_wait(now, from);
  for (auto& [id, other] : donors_) {
    if (id == from || other.ahead == 0) continue;
    --other.ahead;
    other.since = now;
  }
  fruitless_.erase(from);
  average_chunk_ = done_ == 0 ? took : average_chunk_ + (took - average_chunk_) / 8;
  if (chunks_[chunk.index]) {  // it came from somebody else
    ask_for_chunks(now, effects);
    return effects;
  }
  chunks_[chunk.index] = chunk.bytes;
  bytes_done_ += chunk.bytes->size();
  fault::pass("transfer.chunk_taken");
  if (++done_ < chunks_.size()) {
    ask_for_chunks(now, effects);
    return effects;
  }
  state_ = State::ended;
  for (const auto& [id, other] : donors_) effects.send.push_back({id, StateDone{id_}});
  Snapshot snapshot{manifest, std::move(chunks_)};
  // Owners: see SharedSnapshot.
  effects.complete = std::make_shared<const Snapshot>(std::move(snapshot));
  effects.facts = facts_;
  return effects;
}

void StateReceiver::lose_donor(TimePoint now, const NodeId& peer, ReceiverEffects& effects) {
  donors_.erase(peer);
  asked_.erase(peer);
  // Who comes back with its manifest and never with a chunk would keep this node for ever.
  if (++fruitless_[peer] >= options_.max_wrong) banned_.insert(peer);
  if (!donors_.empty()) {
    ask_for_chunks(now, effects);
    return;
  }
  // What came so far stays: another holder of the same snapshot may turn up, or be one that had no
  // place before.
  for (const auto& refuser : std::exchange(refusers_, {})) asked_.erase(refuser);
  state_ = State::orphaned;
  deadline_ = now + options_.chunk_deadline;
}

void StateReceiver::give_up(std::string why, ReceiverEffects& effects) {
  state_ = State::ended;
  deadline_ = kNever;
  effects.failed = true;
  effects.why = std::move(why);
}

ReceiverEffects StateReceiver::on_session_down(TimePoint now, const NodeId& peer) {
  ReceiverEffects effects;
  asked_.erase(peer);
  refusers_.erase(peer);
  if (state_ == State::asking && peer == sponsor_)
    give_up("the sponsor's session ended", effects);
  else if (state_ == State::loading && donors_.contains(peer))
    lose_donor(now, peer, effects);
  return effects;
}

TimePoint StateReceiver::deadline_of(const Donor& donor) const {
  if (donor.asked.empty()) return kNever;
  return donor.since + (donor.slow + 1) * std::max(options_.chunk_deadline, 4 * average_chunk_);
}

ReceiverEffects StateReceiver::on_tick(TimePoint now) {
  ReceiverEffects effects;
  if (now >= deadline_ && (state_ == State::asking || state_ == State::orphaned)) {
    give_up(state_ == State::asking ? "the sponsor did not answer"
                                    : "nobody holds this snapshot any more",
            effects);
    return effects;
  }
  if (state_ != State::loading) return effects;
  std::vector<NodeId> slow;
  for (auto& [id, donor] : donors_) {
    if (now < deadline_of(donor)) continue;
    // The same chunks are asked elsewhere if there is an elsewhere; a donor that never delivers
    // goes.
    donor.late.merge(donor.asked);
    donor.asked.clear();
    if (++donor.slow >= kMaxSlow) slow.push_back(id);
  }
  for (const auto& id : slow) {
    lose_donor(now, id, effects);
    banned_.insert(id);
  }
  if (state_ == State::loading) ask_for_chunks(now, effects);
  return effects;
}

TimePoint StateReceiver::next_deadline() const {
  TimePoint next = deadline_;
  if (state_ != State::loading) return next;
  for (const auto& [id, donor] : donors_) next = std::min(next, deadline_of(donor));
  return next;
}

bool StateReceiver::expects(const NodeId& from) const {
  const auto at = donors_.find(from);
  return at != donors_.end() && !(at->second.asked.empty() && at->second.late.empty());
}

TransferProgress StateReceiver::progress(TimePoint now) const {
  TransferProgress progress;
  progress.bytes_done = bytes_done_;
  progress.bytes_total = facts_.manifest.total_bytes;
  if (started_ != TimePoint{}) progress.loading = now - started_;
  return progress;
}

}  // namespace starling::bootstrap
