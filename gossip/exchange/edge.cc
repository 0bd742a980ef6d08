#include "gossip/exchange/edge.h"

#include "node/base/check.h"
#include "node/base/fault.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace starling::gossip {
namespace {

// Messages that wait for a running job. A well-behaved peer has at most an answer, an offer and two
// messages about the edge itself under way.
constexpr std::size_t kInboxMax = 8;

std::size_t payload_bytes(const ExchangeMessage& message) {
  const SharedBytes* bytes = nullptr;
  if (const auto* open = std::get_if<EdgeOpen>(&message)) bytes = &open->snapshot;
  if (const auto* offer = std::get_if<Offer>(&message)) bytes = &offer->payload.bytes;
  if (const auto* answer = std::get_if<Answer>(&message)) bytes = &answer->payload.bytes;
  return bytes == nullptr || *bytes == nullptr ? 0 : (*bytes)->size();
}

}  // namespace

Weight weight_for(double age_steps) {
  const double share = age_steps > 4 ? 4 / age_steps : 1.0;
  return {static_cast<std::uint8_t>(std::max(1.0, std::floor(64 * share)))};
}

Edge::Edge(NodeId self, NodeId peer, const EdgeOptions& options)
    : self_(self), peer_(peer), options_(options), conduct_(options) {
  STARLING_CHECK(self_ != peer_);
  STARLING_CHECK(options_.blocks > 0);
}

// --- sessions -----------------------------------------------------------------------------------

void Edge::session_up(Turn& turn, Instance instance) {
  if (session_) session_down(turn);
  session_ = true;
  if (instance_ && *instance_ != instance) {
    if (state_ != EdgeState::closed) {
      turn.out.events.emplace_back(
          EdgeWasClosed{peer_, generation_, CloseReason::peer_restarted, By::them});
      void_edge(turn);
      enter(EdgeState::closed, kNever);
    }
    // The new process counts from zero, and nothing of the old one can arrive any more.
    generation_ = {};
  }
  instance_ = instance;
  if (state_ != EdgeState::lost) return;
  enter(EdgeState::resuming, turn.now + options_.resume_timeout);
  resume_sent_ = false;
  if (!running_) send_resume(turn);
}

void Edge::session_down(Turn& turn) {
  session_ = false;
  inbox_.clear();  // as if it had not been delivered: what counts comes again, or afresh, after
                   // Resume
  early_offer_.reset();
  resend_answer_at_ = kNever;
  switch (state_) {
    case EdgeState::open:
    case EdgeState::resuming:
      enter(EdgeState::lost, turn.now + options_.lost_timeout);
      return;
    case EdgeState::opening:
    case EdgeState::accepting:
    case EdgeState::resetting:
      turn.out.events.emplace_back(
          EdgeWasClosed{peer_, generation_, CloseReason::session_lost, By::us});
      void_edge(turn);
      enter(EdgeState::closed, kNever);
      return;
    case EdgeState::closed:
    case EdgeState::lost:
      return;
  }
}

// --- messages and jobs --------------------------------------------------------------------------

void Edge::receive(Turn& turn, ExchangeMessage message, const Admission& admission) {
  if (!session_) return;
  if (running_ || !inbox_.empty()) {
    if (has_room_for(message)) {
      inbox_.push_back({std::move(message), admission});
    } else if (state_ == EdgeState::closed) {
      inbox_.clear();
    } else {
      reset(turn, ResetReason::bad_header);
    }
    return;
  }
  std::visit([&](auto& value) { handle(turn, value, admission); }, message);
}

bool Edge::has_room_for(const ExchangeMessage& message) const {
  std::size_t bytes = payload_bytes(message);
  for (const auto& waiting : inbox_) bytes += payload_bytes(waiting.message);
  return inbox_.size() < kInboxMax && bytes <= options_.inbox_bytes;
}

void Edge::drain_inbox(Turn& turn) {
  while (!inbox_.empty() && !running_) {
    Waiting waiting = std::move(inbox_.front());
    inbox_.pop_front();
    std::visit([&](auto& value) { handle(turn, value, waiting.admission); }, waiting.message);
  }
}

void Edge::job_done(Turn& turn, CodecOutcome outcome) {
  STARLING_CHECK(running_.has_value());
  STARLING_CHECK(outcome.edge == ends());
  const Running done = *running_;
  running_.reset();
  if (done.is_void) {
    if (done.kind == JobKind::answer && outcome.result)
      turn.out.events.emplace_back(ExchangeTorn{peer_, seq_});
    if (next_job_) {
      auto next = std::move(*next_job_);
      next_job_.reset();
      emit_job(turn, next.first, std::move(next.second));
    }
  } else {
    switch (done.kind) {
      case JobKind::reference:
        became_reference(turn, std::move(outcome.result));
        break;
      case JobKind::install:
        became_installed(turn, std::move(outcome.result));
        break;
      case JobKind::offer:
        became_offer(turn, std::move(outcome.result));
        break;
      case JobKind::answer:
      case JobKind::apply:
        became_exchange(turn, done.kind, std::move(outcome.result));
        break;
      case JobKind::drop:
        break;
    }
  }
  if (state_ == EdgeState::resuming && !resume_sent_ && !running_) send_resume(turn);
  drain_inbox(turn);
}

void Edge::tick(Turn& turn) {
  if (turn.now >= deadline_) {
    if (state_ == EdgeState::lost) {
      turn.out.events.emplace_back(
          EdgeWasClosed{peer_, generation_, CloseReason::session_lost, By::us});
      void_edge(turn);
      enter(EdgeState::closed, kNever);
    } else {
      close_with(turn, CloseReason::timed_out);
    }
  }
  if (state_ != EdgeState::open) return;
  if (turn.now >= resend_answer_at_) {
    resend_answer_at_ = kNever;
    send_answer(turn);
  }
  if (!out_) return;
  if (turn.now >= out_->send_again_at) {
    out_->send_again_at = kNever;
    send(turn, out_->offer);
  }
  if (turn.now >= out_->park_at) park(turn);
}

Duration Edge::patience(Duration usual) const {
  return std::max(options_.park_min,
                  std::chrono::duration_cast<Duration>(usual * options_.park_factor));
}

TimePoint Edge::park_at(const Turn& turn) const {
  const Duration usual = turn.node.usual_answer;
  return turn.now + patience(usual > Duration{} ? std::min(usual, answer_time_) : answer_time_);
}

TimePoint Edge::next_deadline() const {
  TimePoint next = deadline_;
  if (state_ != EdgeState::open) return next;
  next = std::min(next, resend_answer_at_);
  if (out_) next = std::min(next, out_->parked ? out_->send_again_at : out_->park_at);
  return next;
}

void Edge::refused(Turn& turn, const ExchangeMessage& message) {
  if (fault::planted("edge.refused_not_sent_again")) return;
  constexpr auto kRetry = std::chrono::seconds(1);
  if (const auto* open = std::get_if<EdgeOpen>(&message)) {
    if (state_ != EdgeState::opening || open->generation != generation_) return;
    turn.out.events.emplace_back(EdgeWasClosed{peer_, generation_, CloseReason::full, By::them});
    void_edge(turn);
    enter(EdgeState::closed, kNever);
    return;
  }
  if (state_ != EdgeState::open) return;
  if (const auto* offer = std::get_if<Offer>(&message)) {
    if (offer->generation != generation_) return;
    const bool crossed = applying_ && applying_->role != Role::responder;
    if (out_ && offer->seq == out_->offer.seq && !crossed) return keep_refused(turn, kRetry);
    // The offer was taken as the answer to one that crossed it, so the peer still needs it.
    if (crossed || (last_answer_ && last_answer_->seq == offer->seq))
      resend_answer_at_ = turn.now + kRetry;
  } else if (const auto* answer = std::get_if<Answer>(&message)) {
    if (answer->generation == generation_ && last_answer_ && last_answer_->seq == answer->seq)
      resend_answer_at_ = turn.now + kRetry;
  }
}

// Not void: where a session is renewed its last words are lost, and a peer that had the whole offer
// by then answers it. Any other payload under the same number would part the references.
void Edge::keep_refused(Turn& turn, Duration retry) {
  // An edge that is about to close needs no reference, and another neighbour may have room.
  if (out_->offer.purpose == Purpose::leave) return void_offer(turn, retry);
  out_->send_again_at = turn.now + retry;
  park(turn);
}

void Edge::park(Turn& turn) {
  if (!std::exchange(out_->parked, true))
    turn.out.events.emplace_back(OfferParked{peer_, out_->offer.seq});
}

void Edge::set_level(Level level) {
  if (level == level_) return;
  level_ = level;
  guard_.clear();
}

// --- what the mixer asks ------------------------------------------------------------------------

bool Edge::may_open(TimePoint now) const {
  return state_ == EdgeState::closed && session_ && !cooling(now);
}

bool Edge::may_offer() const {
  return state_ == EdgeState::open && !running_ && !out_ && inbox_.empty();
}

bool Edge::silent(TimePoint now) const {
  return state_ == EdgeState::open && !running_ && parked() &&
         now - out_->sent_at >= options_.lost_timeout;
}

bool Edge::answering() const {
  return running_ && !running_->is_void && running_->kind == JobKind::answer;
}

bool Edge::offering() const { return plan_ || out_; }

bool Edge::blocks_node() const {
  if (plan_) return true;
  return out_ && !out_->parked && state_ == EdgeState::open;
}

// --- plumbing -----------------------------------------------------------------------------------

void Edge::send(Turn& turn, ExchangeMessage message) const {
  if (session_) turn.out.send.push_back({peer_, std::move(message)});
}

void Edge::start_job(Turn& turn, JobKind kind, CodecJob job) {
  if (!running_) return emit_job(turn, kind, std::move(job));
  STARLING_CHECK(running_->is_void);
  next_job_.emplace(kind, std::move(job));
}

void Edge::emit_job(Turn& turn, JobKind kind, CodecJob job) {
  running_ = Running{kind, kind == JobKind::drop};
  turn.out.jobs.push_back(std::move(job));
}

void Edge::void_edge(Turn& turn) {
  if (running_) {
    running_->is_void = true;
    next_job_.reset();
    if (running_->kind != JobKind::drop) next_job_.emplace(JobKind::drop, DropJob{ends()});
  } else if (has_reference_) {
    emit_job(turn, JobKind::drop, DropJob{ends()});
  }
  has_reference_ = false;
  out_.reset();
  last_answer_.reset();
  plan_.reset();
  applying_.reset();
  // What waits belongs to the edge that ends here, up to an opening of a later one: a peer may have
  // closed the edge and opened it again while a job was running.
  inbox_.erase(inbox_.begin(), std::ranges::find_if(inbox_, [&](const Waiting& waiting) {
                 const auto* opening = std::get_if<EdgeOpen>(&waiting.message);
                 return opening != nullptr && opening->generation > generation_;
               }));
  early_offer_.reset();
  guard_.clear();
  seq_ = {};
  peer_age_.reset();
  resend_answer_at_ = kNever;
}

void Edge::enter(EdgeState state, TimePoint deadline) {
  state_ = state;
  deadline_ = deadline;
  if (state == EdgeState::closed) lease_exchanges_ = 0;
}

std::string_view name_of(EdgeState state) {
  switch (state) {
    case EdgeState::closed:
      return "closed";
    case EdgeState::opening:
      return "opening";
    case EdgeState::accepting:
      return "accepting";
    case EdgeState::open:
      return "open";
    case EdgeState::resetting:
      return "resetting";
    case EdgeState::lost:
      return "lost";
    case EdgeState::resuming:
      return "resuming";
  }
  return "?";
}

}  // namespace starling::gossip
