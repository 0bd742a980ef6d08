// The part of Edge that exchanges: offers, answers, crossings.
#include "gossip/exchange/edge.h"
#include "node/base/check.h"
#include "node/base/fault.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace starling::gossip {
namespace {

constexpr auto kBusyRetry = std::chrono::milliseconds(250);
// Gain of the averages of answer time and wait, as for round trips (Jacobson & Karels 1988).
constexpr double kGain = 0.125;

// Two ages this far apart average whole: the lag up to which averaging heals (rulings 7), 20 % of
// the older one, which is 25 % of the younger, or 1,000 steps.
constexpr double kAgesApartShare = 0.25;
constexpr double kAgesApartSteps = 1000;

// The part of their lead (or lag) over the own age that counts. An age is its owner's word: one
// exchange moves the own one by half of this at most. Both ends find the same part, so the sum of
// the ages stays; a node that is far behind catches up in some more exchanges.
double lead_that_counts(double theirs, double own) {
  const double apart = std::max(kAgesApartShare * std::min(theirs, own), kAgesApartSteps);
  return std::clamp(theirs - own, -apart, apart);
}

}  // namespace

// --- own offers ---------------------------------------------------------------------------------

void Edge::offer(Turn& turn, OfferPlan plan) {
  STARLING_CHECK(may_offer());
  plan_ = plan;
  start_job(turn, JobKind::offer,
            OfferJob{.edge = ends(),
                     .level = plan.level,
                     .statistics = statistics_of(seq_),
                     .spot_block = spot_block_});
}

void Edge::became_offer(Turn& turn, Result<CodecDone> result) {
  STARLING_CHECK(plan_.has_value());
  const OfferPlan plan = *plan_;
  plan_.reset();
  if (!result) return close_with(turn, CloseReason::failed);
  // Encoding changes nothing, and a payload that no session has seen need not exist.
  if (state_ != EdgeState::open) return;
  auto& done = std::get<OfferDone>(*result);
  spot_block_ = (spot_block_ + 1) % options_.blocks;
  Offer offer{.generation = generation_,
              .seq = seq_,
              .chain8 = chain8(),
              .attempt = attempt_++,
              .purpose = plan.purpose,
              .figures = turn.node.replica,
              .expected_wait = static_cast<float>(answer_steps_),
              .spot = done.spot,
              .payload = std::move(done.payload)};
  out_.emplace(Out{std::move(offer), turn.now, turn.node.replica.steps, park_at(turn)});
  fault::pass("exchange.offered");
  send(turn, out_->offer);
}

void Edge::send_pending(Turn& turn) {
  if (!out_) return;
  // The time without a session says nothing about how long the peer takes for an answer.
  out_->sent_at = turn.now;
  out_->park_at = park_at(turn);
  out_->sent_step = turn.node.replica.steps;
  out_->parked = false;
  out_->send_again_at = kNever;
  send(turn, out_->offer);
}

void Edge::void_offer(Turn& turn, Duration retry_after) {
  turn.out.events.emplace_back(OfferVoided{peer_, out_->offer.seq, By::them, retry_after});
  out_.reset();
}

void Edge::handle(Turn& turn, Busy& message, const Admission&) {
  if (!out_ || message.generation != generation_ || message.seq != out_->offer.seq) return;
  if (fault::planted("edge.busy_not_heard")) return;
  if (message.offer != name_of_offer(out_->offer)) return;
  void_offer(turn, message.retry_after);
}

// --- their offers -------------------------------------------------------------------------------

void Edge::handle(Turn& turn, Offer& message, const Admission& admission) {
  if (state_ != EdgeState::open || message.generation < generation_) return;
  if (message.generation > generation_) {
    generation_ = message.generation;
    return reset(turn, ResetReason::generation_differs);
  }
  if (message.seq.next() == seq_) {
    if (last_answer_ && last_answer_->chain8 == message.chain8) return send_answer(turn);
    return reset(turn, ResetReason::sequence_differs);
  }
  if (message.seq == seq_.next() && out_) {
    // The peer answered and went on, but our session had no room for the answer: it comes again.
    early_offer_ = Waiting{std::move(message), admission};
    return;
  }
  if (message.seq != seq_) return reset(turn, ResetReason::sequence_differs);
  if (message.chain8 != chain8()) return reset(turn, ResetReason::chain_differs);
  if (message.spot.block >= options_.blocks) return reset(turn, ResetReason::bad_header);
  if (out_ && !fault::planted("edge.crossing_answered_too")) return cross(turn, message);
  if (admission.answering == Admission::Answering::busy) {
    turn.out.events.emplace_back(OfferVoided{peer_, message.seq, By::us, kBusyRetry});
    send(turn, Busy{generation_, seq_, name_of_offer(message), kBusyRetry});
    return;
  }
  answer(turn, message);
}

void Edge::answer(Turn& turn, Offer& offer) {
  applying_ = Applying{.role = Role::responder,
                       .weight = weight_for(std::max<double>(offer.expected_wait, answer_steps_)),
                       .theirs = offer.figures,
                       .purpose = offer.purpose,
                       .samples = samples_since(turn, offer.figures),
                       .bytes_received = offer.payload.bytes->size()};
  AnswerJob job{.terms = terms(turn, *applying_),
                .own_level = level_,
                .theirs = std::move(offer.payload),
                .their_spot = offer.spot};
  start_job(turn, JobKind::answer, std::move(job));
}

void Edge::cross(Turn& turn, Offer& offer) {
  // Both ends know both stated waits, so both take the same weight: the smaller of the two.
  const double wait = std::max(offer.expected_wait, out_->offer.expected_wait);
  const bool leave = offer.purpose == Purpose::leave || out_->offer.purpose == Purpose::leave;
  applying_ = Applying{.role = Role::crossing,
                       .weight = weight_for(wait),
                       .theirs = offer.figures,
                       .purpose = leave ? Purpose::leave : Purpose::regular,
                       .samples = samples_since(turn, offer.figures),
                       .bytes_received = offer.payload.bytes->size()};
  ApplyJob job{.terms = terms(turn, *applying_),
               .own = out_->offer.payload,
               .theirs = std::move(offer.payload),
               .their_spot = offer.spot};
  start_job(turn, JobKind::apply, std::move(job));
}

// --- answers ------------------------------------------------------------------------------------

void Edge::handle(Turn& turn, Answer& message, const Admission&) {
  if (state_ != EdgeState::open || !out_ || message.generation != generation_) return;
  if (message.seq != out_->offer.seq) return;  // sent twice; the first one counted
  if (message.chain8 != chain8()) return reset(turn, ResetReason::chain_differs);
  applying_ = Applying{.role = Role::initiator,
                       .weight = fault::planted("edge.own_weight_taken") ? weight_for(answer_steps_)
                                                                         : message.weight,
                       .theirs = message.figures,
                       .purpose = out_->offer.purpose,
                       .samples = samples_since(turn, message.figures),
                       .bytes_received = message.payload.bytes->size()};
  ApplyJob job{.terms = terms(turn, *applying_),
               .own = out_->offer.payload,
               .theirs = std::move(message.payload),
               .their_spot = std::nullopt};
  start_job(turn, JobKind::apply, std::move(job));
}

void Edge::became_exchange(Turn& turn, JobKind kind, Result<CodecDone> result) {
  STARLING_CHECK(applying_.has_value());
  if (!result) return exchange_failed(turn, result.error());
  finish_exchange(turn, kind, std::move(std::get<ExchangeDone>(*result)));
}

void Edge::exchange_failed(Turn& turn, const Error& error) {
  if (error.code == Errc::corrupt) {
    // The references have parted, by a fault of either machine.
    if (state_ == EdgeState::open) return reset(turn, ResetReason::spot_differs);
  } else if (fault_of(error.code) == Fault::peer) {
    if (!count_offence(turn, error)) return close_with(turn, CloseReason::misbehaved);
    if (state_ == EdgeState::open) return reset(turn, ResetReason::bad_payload);
  }
  close_with(turn, CloseReason::failed);
}

void Edge::finish_exchange(Turn& turn, JobKind kind, ExchangeDone done) {
  fault::pass("exchange.applied");
  const Applying applied = *applying_;
  applying_.reset();
  ReplicaFigures& own = turn.node.replica;
  // What this end stated is what both ends average with, so the sum of the ages stays.
  const ReplicaFigures stated = out_ ? out_->offer.figures : own;
  Payload sent = out_ ? out_->offer.payload : std::move(done.answer);
  Exchanged event{.peer = peer_,
                  .seq = seq_,
                  .role = applied.role,
                  .own_level = sent.level,
                  .weight = applied.weight,
                  .norm = done.norm,
                  .scale = done.scale,
                  .took = out_ ? turn.now - out_->sent_at : Duration{},
                  .bytes_sent = sent.bytes ? sent.bytes->size() : 0,
                  .bytes_received = applied.bytes_received,
                  .channels_clipped = done.channels_clipped};
  if (out_) learn_answer_time(turn);
  // The peer has not seen the offer that theirs crossed.
  if (out_ && applied.role == Role::crossing)
    resend_answer_at_ = std::min(resend_answer_at_, out_->send_again_at);
  last_answer_.reset();
  if (applied.role != Role::initiator)
    last_answer_ = Answer{generation_, seq_, chain8(), applied.weight, stated, std::move(sent)};
  out_.reset();
  const double moved = static_cast<double>(applied.weight.value()) *
                       lead_that_counts(applied.theirs.age, stated.age);
  own.age = std::clamp(own.age + moved, 0.0, exchange_limits::kMaxOwnAge);
  peer_age_ = applied.theirs.age;
  guard_.on_exchange(static_cast<double>(done.norm), applied.samples);
  if (applied.purpose == Purpose::leave) push_taken_ = true;
  own_samples_at_exchange_ = own.samples;
  their_samples_at_exchange_ = applied.theirs.samples;
  chain_ = done.chain;
  seq_ = seq_.next();
  ++lease_exchanges_;
  last_exchange_ = turn.now;
  turn.out.events.emplace_back(event);
  if (kind == JobKind::answer) send_answer(turn);
  if (early_offer_) {
    inbox_.push_front(std::move(*early_offer_));
    early_offer_.reset();
  }
}

void Edge::send_answer(Turn& turn) {
  // While the edge is lost or resuming, Resume decides whether it is still needed.
  if (last_answer_ && state_ == EdgeState::open) send(turn, *last_answer_);
}

// A longer wait than this neighbour's patience counts as the patience: an outage is one wait of any
// length and says little about the next one, and a neighbour that is slow indeed moves the average,
// and the patience with it, within a few exchanges. The node is not blocked for so long: who always
// answers at the last moment would stretch its own patience, and take the offers of all others.
void Edge::learn_answer_time(const Turn& turn) {
  const Duration whole = turn.now - out_->sent_at;
  const Duration longest = patience(answer_time_);
  const Duration took = std::min(whole, longest);
  const double share = whole > took ? seconds(took) / seconds(whole) : 1;
  const auto steps = share * static_cast<double>(turn.node.replica.steps - out_->sent_step);
  if (answer_time_ == Duration{}) {
    // Nothing to compare it with: whoever met an outage at once would wait minutes for the next
    // turn.
    if (whole > longest && !std::exchange(first_wait_forgiven_, true)) return;
    answer_time_ = std::max(took, Duration{1});
    answer_steps_ = steps;
    return;
  }
  answer_time_ += std::chrono::duration_cast<Duration>((took - answer_time_) * kGain);
  answer_steps_ += kGain * (steps - answer_steps_);
}

ExchangeTerms Edge::terms(const Turn& turn, const Applying& applying) const {
  return {.edge = ends(),
          .own_side = side(),
          .weight = applying.weight,
          .max_norm = norm_limit(turn, applying),
          .chain = chain_};
}

float Edge::norm_limit(const Turn& turn, const Applying& applying) const {
  if (options_.aggregator == Aggregator::unguarded) return 0;
  const float own = guard_.limit(applying.samples);
  if (options_.aggregator == Aggregator::clip) {
    // Whoever clips at what most send makes no exception. As long as nobody knows what that is,
    // nothing is added: the first to speak may be the liar, and what is left out comes again.
    if (turn.node.usual_norm <= 0) return own > 0 ? own : std::numeric_limits<float>::min();
    const auto usual =
        static_cast<float>(turn.node.usual_norm * std::sqrt(std::max(1.0, applying.samples)));
    return own > 0 ? std::min(own, usual) : usual;
  }
  // One push of a leaving peer is taken whole; a second one would be a way round the guard.
  const bool unclipped =
      applying.purpose == Purpose::leave && (!push_taken_ || applying.role == Role::initiator);
  return unclipped ? 0 : own;
}

double Edge::samples_since(const Turn& turn, const ReplicaFigures& theirs) const {
  const auto own = static_cast<double>(turn.node.replica.samples - own_samples_at_exchange_);
  double other = own;
  if (their_samples_at_exchange_)
    other = theirs.samples > *their_samples_at_exchange_
                ? static_cast<double>(theirs.samples - *their_samples_at_exchange_)
                : 0.0;
  // A peer that claims a lot would lift its own bound: 16 times our own is as much as any counts.
  return std::max(1.0, own + std::min(other, 16 * std::max(own, turn.node.batch)));
}

}  // namespace starling::gossip
