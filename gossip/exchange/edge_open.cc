// The part of Edge that opens, closes, resets and resumes.
#include "gossip/exchange/edge.h"
#include "node/base/check.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {

void Edge::open(Turn& turn) {
  STARLING_CHECK(may_open(turn.now));
  generation_ = generation_.next();
  propose(turn,
          turn.node.replica.age <= options_.genesis_age ? OpenMode::genesis : OpenMode::snapshot);
}

void Edge::propose(Turn& turn, OpenMode mode) {
  mode_ = mode;
  enter(EdgeState::opening, turn.now + options_.open_timeout);
  if (mode == OpenMode::genesis) {
    start_job(turn, JobKind::reference, GenesisJob{ends()});
  } else {
    start_job(turn, JobKind::reference, SnapshotJob{ends()});
  }
}

void Edge::became_reference(Turn& turn, Result<CodecDone> result) {
  if (!result) return close_with(turn, CloseReason::failed);
  auto& set = std::get<ReferenceSet>(*result);
  has_reference_ = true;
  reference_ = set.reference;
  // An opening that came meanwhile and stands against ours spares the peer our snapshot.
  for (const auto& waiting : inbox_) {
    const auto* theirs = std::get_if<EdgeOpen>(&waiting.message);
    if (theirs != nullptr && stands_against_ours(*theirs)) return;
  }
  send(turn, EdgeOpen{.generation = generation_,
                      .mode = mode_,
                      .reference = reference_,
                      .age = turn.node.replica.age,
                      .record = turn.node.record,
                      .snapshot = std::move(set.bytes)});
}

bool Edge::stands_against_ours(const EdgeOpen& message) const {
  if (message.generation != generation_) return message.generation > generation_;
  if (state_ == EdgeState::opening) return !is_lower();
  return state_ == EdgeState::resetting;
}

void Edge::handle(Turn& turn, EdgeOpen& message, const Admission& admission) {
  if (!stands_against_ours(message)) {
    if (state_ == EdgeState::opening) return;  // ours stands, and is on its way
    // Whoever opened this very edge with us does not propose it, or an earlier one, after that.
    if (state_ == EdgeState::open) return reset(turn, ResetReason::bad_header);
    // The proposer learns which generation to go beyond.
    send(turn, EdgeClose{generation_, CloseReason::stale_generation});
    return;
  }
  if (state_ == EdgeState::closed && (admission.refuse_open || cooling(turn.now))) {
    generation_ = message.generation;
    send(turn, EdgeClose{generation_, admission.refuse_open.value_or(CloseReason::cooling)});
    return;
  }
  if (!count_opening(turn, message.generation, admission.openings)) return;
  accept(turn, message);
}

// A peer that gives an edge up says so before it proposes another one, so an opening of an open
// edge is a reset without its name: it costs this end as much, a reference and the cached answer,
// and a peer that could do it for ever would need no EdgeReset, whose number is limited. Elsewhere
// an opening costs a reference too, and a snapshot where the peer names a genesis that is far away:
// a peer that joins or restarts needs a few of them, and not one after the other for ever. The
// opening that follows a reset was counted with it. What strangers have together is asked last: who
// is past its own ration takes nothing from the others.
bool Edge::count_opening(Turn& turn, Generation generation, TokenBucket* strangers) {
  if (state_ == EdgeState::resetting) return true;
  if (state_ == EdgeState::open) {
    turn.out.events.emplace_back(
        EdgeWasReset{peer_, generation, ResetReason::generation_differs, By::them});
    if (count_reset(turn)) return true;
    generation_ = generation;
    close_with(turn, CloseReason::too_many_resets);
    return false;
  }
  const bool own = conduct_.openings.try_take(turn.now);
  if (own && (strangers == nullptr || strangers->try_take(turn.now))) return true;
  const auto reason = own ? CloseReason::full : CloseReason::too_many_openings;
  generation_ = generation;
  if (state_ == EdgeState::closed)
    send(turn, EdgeClose{generation_, reason});
  else
    close_with(turn, reason);
  return false;
}

void Edge::accept(Turn& turn, EdgeOpen& message) {
  if (state_ != EdgeState::closed) void_edge(turn);
  generation_ = message.generation;
  peer_age_ = message.age;
  if (!message.record.empty()) turn.out.records.push_back({peer_, std::move(message.record)});
  if (message.mode == OpenMode::genesis && turn.node.replica.age > options_.genesis_age) {
    // From here the genesis is far away: a snapshot of ours costs less than the exchanges that
    // would have to carry the difference. Its larger generation stands.
    generation_ = generation_.next();
    propose(turn, OpenMode::snapshot);
    return;
  }
  mode_ = message.mode;
  reference_ = message.reference;
  enter(EdgeState::accepting, turn.now + options_.open_timeout);
  if (message.mode == OpenMode::genesis) {
    start_job(turn, JobKind::install, GenesisJob{ends()});
  } else {
    start_job(turn, JobKind::install,
              InstallJob{ends(), std::move(message.snapshot), message.reference});
  }
}

void Edge::became_installed(Turn& turn, Result<CodecDone> result) {
  if (!result) {
    const bool theirs =
        fault_of(result.error().code) == Fault::peer || result.error().code == Errc::corrupt;
    if (theirs && !count_offence(turn, result.error()))
      return close_with(turn, CloseReason::misbehaved);
    return close_with(turn, theirs ? CloseReason::bad_snapshot : CloseReason::failed);
  }
  has_reference_ = true;
  if (std::get<ReferenceSet>(*result).reference != reference_)
    return close_with(turn, mode_ == OpenMode::genesis ? CloseReason::genesis_differs
                                                       : CloseReason::bad_snapshot);
  send(turn, EdgeOpenAck{generation_, reference_, turn.node.replica.age});
  become_open(turn, reference_);
}

void Edge::handle(Turn& turn, EdgeOpenAck& message, const Admission&) {
  if (state_ != EdgeState::opening || message.generation != generation_ || !has_reference_) return;
  if (message.reference != reference_) return close_with(turn, CloseReason::bad_snapshot);
  peer_age_ = message.age;
  become_open(turn, reference_);
}

void Edge::become_open(Turn& turn, const Hash& reference) {
  enter(EdgeState::open, kNever);
  seq_ = {};
  chain_ = reference;
  attempt_ = 0;
  own_samples_at_exchange_ = turn.node.replica.samples;
  their_samples_at_exchange_.reset();
  turn.out.events.emplace_back(EdgeOpened{peer_, generation_, mode_});
}

// --- closing ------------------------------------------------------------------------------------

void Edge::close(Turn& turn, CloseReason reason) {
  if (state_ != EdgeState::closed) close_with(turn, reason);
}

void Edge::close_with(Turn& turn, CloseReason reason) {
  if (reason == CloseReason::too_many_resets) conduct_.closed_until = turn.now + options_.cooling;
  if (reason == CloseReason::misbehaved) {
    const auto doublings = std::min(conduct_.drops++, 16U);
    conduct_.closed_until =
        turn.now + std::min(options_.drop_max, options_.drop_min * (1 << doublings));
    conduct_.offences.clear();
  }
  turn.out.events.emplace_back(EdgeWasClosed{peer_, generation_, reason, By::us});
  send(turn, EdgeClose{generation_, reason});
  void_edge(turn);
  enter(EdgeState::closed, kNever);
}

void Edge::handle(Turn& turn, EdgeClose& message, const Admission&) {
  if (message.generation < generation_) return;  // of an edge before this one
  generation_ = message.generation;
  // Never sooner than this end said: a word of whoever was dropped would let it in again.
  const auto keep_closed = [&](Duration rest) {
    conduct_.closed_until = std::max(conduct_.closed_until, turn.now + rest);
  };
  if (message.reason == CloseReason::too_many_resets || message.reason == CloseReason::cooling)
    keep_closed(options_.cooling);
  if (message.reason == CloseReason::misbehaved) keep_closed(options_.drop_min);
  if (state_ == EdgeState::closed) return;
  turn.out.events.emplace_back(EdgeWasClosed{peer_, generation_, message.reason, By::them});
  void_edge(turn);
  enter(EdgeState::closed, kNever);
}

// --- what counts against the peer ---------------------------------------------------------------

Conduct::Conduct(const EdgeOptions& options)
    : openings(1 / seconds(options.opening_rest), options.openings_max) {}

std::uint32_t Conduct::recent_offences(TimePoint now, const EdgeOptions& options) const {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      offences, [&](TimePoint at) { return now - at < options.offence_window; }));
}

// A drop counts for as long as an offence, or the second one would be as short as the first for
// whoever stays away until it is over.
bool Conduct::counts(TimePoint now, const EdgeOptions& options) const {
  const bool was_dropped = drops > 0 && now < closed_until + options.offence_window;
  const bool was_reset = !resets.empty() && now - resets.back() < options.reset_window;
  return now < closed_until || was_dropped || was_reset || recent_offences(now, options) > 0 ||
         !openings.full(now);
}

bool Edge::count_reset(Turn& turn) {
  auto& resets = conduct_.resets;
  std::erase_if(resets, [&](TimePoint at) { return turn.now - at >= options_.reset_window; });
  resets.push_back(turn.now);
  return resets.size() <= options_.resets_max;
}

bool Edge::count_offence(Turn& turn, const Error& error) {
  auto& offences = conduct_.offences;
  std::erase_if(offences, [&](TimePoint at) { return turn.now - at >= options_.offence_window; });
  offences.push_back(turn.now);
  const auto count = static_cast<std::uint32_t>(offences.size());
  turn.out.events.emplace_back(PayloadRefused{peer_, error, count});
  return count < options_.offences_max;
}

// --- resetting ----------------------------------------------------------------------------------

void Edge::reset(Turn& turn, ResetReason reason) {
  void_edge(turn);
  generation_ = generation_.next();
  turn.out.events.emplace_back(EdgeWasReset{peer_, generation_, reason, By::us});
  if (!count_reset(turn)) return close_with(turn, CloseReason::too_many_resets);
  send(turn, EdgeReset{generation_, reason});
  start_over(turn);
}

void Edge::start_over(Turn& turn) {
  if (is_lower()) return propose(turn, OpenMode::snapshot);
  enter(EdgeState::resetting, turn.now + options_.open_timeout);
}

void Edge::handle(Turn& turn, EdgeReset& message, const Admission&) {
  if (state_ == EdgeState::closed) {
    generation_ = std::max(generation_, message.generation);
    send(turn, EdgeClose{generation_, CloseReason::unknown_edge});
    return;
  }
  if (message.generation <= generation_) return;  // both ends reset at once: the same new one
  void_edge(turn);
  generation_ = message.generation;
  turn.out.events.emplace_back(EdgeWasReset{peer_, generation_, message.reason, By::them});
  if (!count_reset(turn)) return close_with(turn, CloseReason::too_many_resets);
  start_over(turn);
}

// --- resuming -----------------------------------------------------------------------------------

void Edge::send_resume(Turn& turn) {
  resume_sent_ = true;
  send(turn, Resume{.generation = generation_,
                    .seq = seq_,
                    .chain8 = chain8(),
                    .pending = out_ ? Pending::offer : Pending::none});
}

void Edge::handle(Turn& turn, Resume& message, const Admission&) {
  if (state_ == EdgeState::closed) {
    generation_ = std::max(generation_, message.generation);
    send(turn, EdgeClose{generation_, CloseReason::unknown_edge});
    return;
  }
  if (state_ != EdgeState::resuming) return;
  if (message.generation != generation_) {
    generation_ = std::max(generation_, message.generation);
    return reset(turn, ResetReason::generation_differs);
  }
  if (message.seq == seq_) {
    if (message.chain8 != chain8()) return reset(turn, ResetReason::chain_differs);
  } else if (message.seq.next() == seq_) {
    // They have an offer or a crossing of this number out, whose answer got lost.
    if (!last_answer_ || message.pending == Pending::none)
      return reset(turn, ResetReason::sequence_differs);
    if (message.chain8 != last_answer_->chain8) return reset(turn, ResetReason::chain_differs);
  } else if (message.seq != seq_.next() || !out_) {
    return reset(turn, ResetReason::sequence_differs);
  }
  if (fault::planted("edge.offer_lost_on_resume")) out_.reset();
  const bool they_are_behind = message.seq < seq_;
  // They have not taken what is out here, and never will now: a fresh offer says what this replica
  // is, and not what it was before an outage. A push of a leaving node has no time for that.
  if (message.seq <= seq_ && out_ && out_->offer.purpose == Purpose::regular) out_.reset();
  enter(EdgeState::open, kNever);
  turn.out.events.emplace_back(EdgeResumed{peer_, generation_});
  if (they_are_behind && !fault::planted("edge.answer_not_replayed")) send_answer(turn);
  // An end that is behind sends nothing: its offer is answered already.
  if (message.seq <= seq_) send_pending(turn);
}

}  // namespace starling::gossip
