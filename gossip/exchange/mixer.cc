#include "gossip/exchange/mixer.h"

#include "node/base/check.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace starling::gossip {
namespace {

constexpr std::size_t kNormsRemembered = 100;
// How long whoever says Busy is not asked again, at least: doubled each time, up to half of what a
// leave has.
constexpr Duration kBusyWaitMin = std::chrono::milliseconds(250);
constexpr Duration kBusyWaitMax = std::chrono::seconds(4);
// Exchanges for which a goodput counts that nothing confirms. Of a small model only a snapshot is
// large enough to be measured, and the line may have been slow just then.
constexpr std::uint32_t kGoodputKept = 50;
// What a step's time counts for in the usual one: the mean of some twenty.
constexpr double kStepGain = 0.05;
// Above the smallest bound that an edge sets, a float's smallest value, and below every real norm.
constexpr double kNothingTaken = 1e-37;

std::size_t attached_bytes(const ExchangeMessage& message) {
  const auto size = [](const SharedBytes& bytes) { return bytes ? bytes->size() : 0; };
  if (const auto* open = std::get_if<EdgeOpen>(&message)) return size(open->snapshot);
  if (const auto* offer = std::get_if<Offer>(&message)) return size(offer->payload.bytes);
  if (const auto* answer = std::get_if<Answer>(&message)) return size(answer->payload.bytes);
  return 0;
}

bool may_open_at_once(CloseReason reason) {
  switch (reason) {
    case CloseReason::stale_generation:
    case CloseReason::session_lost:
    case CloseReason::peer_restarted:
    case CloseReason::unknown_edge:
    case CloseReason::replica_changed:
      return true;
    default:
      return false;
  }
}

}  // namespace

Mixer::Mixer(NodeId self, const MixerOptions& options, std::uint32_t blocks, Rng rng)
    : self_(self),
      options_(options),
      rng_(rng),
      absent_(options.edge),
      stranger_openings_(1 / seconds(options.stranger_rest),
                         std::max(options.strangers_max, options.degree + 2)),
      message_bytes_(typical_bytes(blocks)) {
  options_.edge.blocks = blocks;
  period_.tau = options_.levels.fixed_tau.value_or(options_.levels.start_tau);
  STARLING_CHECK(period_.tau >= 1);
}

// --- events -------------------------------------------------------------------------------------

ExchangeEffects Mixer::on_session_up(TimePoint now, NodeId peer, Instance instance) {
  return turn_at(now, [&](Turn& turn) {
    Neighbour& up = neighbour(peer);
    up.open_at = earliest_open(now, up);
    up.edge.session_up(turn, instance);
  });
}

ExchangeEffects Mixer::on_session_down(TimePoint now, NodeId peer) {
  return turn_at(now, [&](Turn& turn) {
    if (Neighbour* down = find(peer)) down->edge.session_down(turn);
  });
}

ExchangeEffects Mixer::on_neighbours(TimePoint now, const std::vector<NodeId>& wanted,
                                     const std::vector<NodeId>& guests) {
  return turn_at(now, [&](Turn&) {
    std::set<NodeId> next(wanted.begin(), wanted.end());
    next.erase(self_);
    for (const auto& peer : next) {
      if (wanted_.contains(peer)) continue;
      Neighbour& fresh = neighbour(peer);
      fresh.open_at = std::max(fresh.open_at, earliest_open(now, fresh));
    }
    wanted_ = std::move(next);
    guests_ = {guests.begin(), guests.end()};
  });
}

ExchangeEffects Mixer::on_message(TimePoint now, NodeId from, ExchangeMessage message) {
  return turn_at(now, [&](Turn& turn) {
    Neighbour* sender = find(from);
    if (sender == nullptr) return;  // no session was announced: nothing can be meant by it
    sender->counters.bytes_received += attached_bytes(message);
    const Admission admission = admit(turn, *sender, message);
    sender->edge.receive(turn, std::move(message), admission);
  });
}

ExchangeEffects Mixer::on_job_done(TimePoint now, CodecOutcome outcome) {
  return turn_at(now, [&](Turn& turn) {
    const NodeId peer = outcome.edge.lower == self_ ? outcome.edge.higher : outcome.edge.lower;
    Neighbour* owner = find(peer);
    STARLING_CHECK(owner != nullptr);
    learn(outcome, *owner);
    owner->edge.job_done(turn, std::move(outcome));
  });
}

ExchangeEffects Mixer::on_steps(TimePoint now, const TrainingState& training) {
  return turn_at(now, [&](Turn&) {
    // A trainer that was rebuilt counts from the start again: nothing is known of that one report.
    const bool counts_on = training.steps >= training_.steps;
    const std::uint64_t steps = counts_on ? training.steps - training_.steps : 0;
    if (steps > 0 && training.samples > training_.samples)
      node_.batch =
          static_cast<double>(training.samples - training_.samples) / static_cast<double>(steps);
    node_.replica.age += static_cast<double>(steps);
    node_.replica.steps += steps;
    node_.replica.samples = std::max(node_.replica.samples, training.samples);
    learn_step_time(training.step_time, steps);
    training_ = training;
  });
}

// As slowly as everything else that the period is decided by: one short step would double it, and a
// halving takes a hundred exchanges.
void Mixer::learn_step_time(Duration reported, std::uint64_t steps) {
  if (reported == Duration{} || step_time_ == Duration{}) {
    step_time_ = reported;
    return;
  }
  const double gain = std::min(1.0, kStepGain * static_cast<double>(steps));
  step_time_ += std::chrono::duration_cast<Duration>((reported - step_time_) * gain);
}

void Mixer::continue_from(const TrainingState& training) {
  training_ = training;
  node_.replica.samples = std::max(node_.replica.samples, training.samples);
}

void Mixer::on_goodput(NodeId peer, double bytes_per_second) {
  Neighbour* measured = find(peer);
  if (measured == nullptr || bytes_per_second <= 0) return;
  // The shell says what the session knows again and again: the same figure is no new measurement.
  if (measured->goodput_heard == bytes_per_second) return;
  measured->goodput_heard = bytes_per_second;
  measured->goodput = bytes_per_second;
  measured->goodput_age = 0;
}

ExchangeEffects Mixer::on_refused(TimePoint now, NodeId peer, const ExchangeMessage& message) {
  return turn_at(now, [&](Turn& turn) {
    if (Neighbour* refuser = find(peer)) refuser->edge.refused(turn, message);
  });
}

ExchangeEffects Mixer::on_tick(TimePoint now) {
  return turn_at(now, [&](Turn& turn) {
    for (auto& [peer, each] : neighbours_) each.edge.tick(turn);
  });
}

TimePoint Mixer::next_deadline() const {
  TimePoint next = phase_overdue_ ? kNever : phase_deadline_;
  if (lag_since_ && phase_ == Phase::mixing) {
    // Once past, exchanges go on and nothing is due any more.
    const TimePoint patience = *lag_since_ + options_.lag_patience;
    if (patience > last_event_) next = std::min(next, patience);
  }
  for (const auto& [peer, each] : neighbours_) {
    next = std::min(next, each.edge.next_deadline());
    if (phase_ != Phase::mixing && phase_ != Phase::leaving) continue;
    if (each.offer_at > last_event_) next = std::min(next, each.offer_at);
    if (phase_ == Phase::mixing && wanted_.contains(peer) &&
        each.edge.state() == EdgeState::closed && each.edge.has_session() &&
        each.open_at > last_event_)
      next = std::min(next, each.open_at);
  }
  return next;
}

void Mixer::set_record(Bytes record) {
  STARLING_CHECK(record.size() <= exchange_limits::kMaxRecord);
  node_.record = std::move(record);
}

// --- what follows from an event -----------------------------------------------------------------

void Mixer::settle(Turn& turn) {
  std::size_t counted = 0;
  const auto count_new = [&] {
    // count() may add events of its own: copied, because the vector may grow.
    for (; counted < turn.out.events.size(); ++counted) {
      const ExchangeEvent event = turn.out.events[counted];
      count(turn, event);
    }
  };
  count_new();
  watch_lag(turn.now);
  close_unwanted(turn);
  advance_phase(turn);
  open_wanted(turn);
  maybe_offer(turn);
  count_new();
  count_sends(turn.out);
  put_strangers_away(turn.now);
}

void Mixer::put_strangers_away(TimePoint now) {
  std::erase_if(neighbours_, [&](const auto& entry) {
    const auto& [peer, each] = entry;
    const Edge& edge = each.edge;
    if (edge.state() != EdgeState::closed || edge.has_session() || edge.job_running() ||
        wanted_.contains(peer))
      return false;
    if (edge.conduct().counts(now, options_.edge)) absent_.put(now, view_of(each), edge.conduct());
    return true;
  });
}

void Mixer::learn(const CodecOutcome& outcome, Neighbour& neighbour) {
  if (!outcome.result) return;
  const auto from_encode = [&](const EncodeFigures& figures, const Payload& payload) {
    if (outcome.cost > Duration{}) {
      // The plain mean until the window is full, then a moving one of the same length.
      job_costs_ = std::min(job_costs_ + 1, options_.levels.window);
      job_cost_ += (outcome.cost - job_cost_) / job_costs_;
    }
    neighbour.history.on_encode(figures);
    if (figures.difference_energy > 0) neighbour.difference = std::sqrt(figures.difference_energy);
    if (payload.bytes)
      message_bytes_[static_cast<std::size_t>(payload.level)] =
          static_cast<double>(payload.bytes->size());
  };
  if (const auto* offer = std::get_if<OfferDone>(&*outcome.result))
    from_encode(offer->figures, offer->payload);
  if (const auto* exchange = std::get_if<ExchangeDone>(&*outcome.result))
    from_encode(exchange->figures, exchange->answer);
}

void Mixer::count(Turn& turn, const ExchangeEvent& event) {
  const auto counters = [&](NodeId peer) -> NeighbourView& { return neighbour(peer).counters; };
  if (const auto* opened = std::get_if<EdgeOpened>(&event)) {
    control_level(turn, neighbour(opened->peer));  // a pinned level holds from the first answer on
  } else if (const auto* reset = std::get_if<EdgeWasReset>(&event)) {
    ++counters(reset->peer).resets;
  } else if (const auto* closed = std::get_if<EdgeWasClosed>(&event)) {
    count_close(turn.now, *closed);
  } else if (const auto* exchanged = std::get_if<Exchanged>(&event)) {
    count_exchange(turn, *exchanged);
  } else if (const auto* voided = std::get_if<OfferVoided>(&event)) {
    if (voided->by == By::us) return;
    Neighbour& busy = neighbour(voided->peer);
    ++busy.counters.busy;
    // The wait is the peer's word, and an offer for nothing is lost for the other neighbours.
    busy.busy_wait = std::clamp(busy.busy_wait * 2, kBusyWaitMin, kBusyWaitMax);
    busy.offer_at = turn.now + std::max(voided->retry_after, busy.busy_wait);
    if (leave_push_ == voided->peer) leave_push_.reset();
  } else if (const auto* refused = std::get_if<PayloadRefused>(&event)) {
    ++counters(refused->peer).refused;
    counters(refused->peer).refused_why = refused->error.detail;
  }
}

void Mixer::count_exchange(Turn& turn, const Exchanged& event) {
  Neighbour& peer = neighbour(event.peer);
  ++exchanges_;
  ++peer.counters.exchanges;
  // Only what an edge was good for ends these waits: a word opens one, and ends it again.
  peer.retry = {};
  peer.busy_wait = {};
  if (++peer.goodput_age >= kGoodputKept) peer.goodput.reset();
  if (event.scale < 1 || event.channels_clipped > 0) {
    ++peer.counters.clipped;
    peer.counters.last_scale = event.scale;
  }
  if (peer.difference > 0)
    peer.counters.disagreement_ratio = static_cast<double>(event.norm) / peer.difference;
  remember_norm(event);
  if (options_.edge.aggregator == Aggregator::clip) node_.usual_norm = usual_norm();
  peer.history.on_exchange();
  control_level(turn, peer);
  control_period(turn);
}

// What was clipped away moved nothing: it would only lift the bound for whoever sends it. Where
// nothing at all was taken (`clip` before anybody knows what is usual) nothing was measured either.
void Mixer::remember_norm(const Exchanged& event) {
  const double taken = static_cast<double>(event.norm) * static_cast<double>(event.scale);
  if (event.scale < 1 && taken <= kNothingTaken) return;
  norms_.push_back(taken);
  if (norms_.size() > kNormsRemembered) norms_.pop_front();
}

void Mixer::count_close(TimePoint now, const EdgeWasClosed& event) {
  Neighbour& peer = neighbour(event.peer);
  // At once where an edge ended for no fault, but only once until it has been of use: the reason is
  // the peer's word, and each opening may cost a snapshot.
  if (peer.retry == Duration{} && may_open_at_once(event.reason)) {
    peer.retry = options_.retry_min / 2;
    peer.open_at = event.reason == CloseReason::stale_generation ? now : earliest_open(now, peer);
    return;
  }
  peer.retry = std::clamp(peer.retry * 2, options_.retry_min, options_.retry_max);
  // A quarter of jitter, so that two ends do not try in step.
  const auto jitter =
      static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(peer.retry.count() / 4 + 1)));
  peer.open_at = now + peer.retry + Duration{jitter};
}

void Mixer::count_sends(const ExchangeEffects& out) {
  for (const auto& outgoing : out.send)
    if (Neighbour* to = find(outgoing.to))
      to->counters.bytes_sent += attached_bytes(outgoing.message);
}

// --- admission ----------------------------------------------------------------------------------

Admission Mixer::admit(Turn& turn, const Neighbour& from, const ExchangeMessage& message) {
  Admission admission;
  if (std::holds_alternative<EdgeOpen>(message)) {
    admission.refuse_open = refuse_open(turn, from);
    if (!wanted_.contains(from.edge.peer()) && !guests_.contains(from.edge.peer()))
      admission.openings = &stranger_openings_;
  } else if (std::holds_alternative<Offer>(message)) {
    const auto answering = static_cast<std::size_t>(
        std::count_if(neighbours_.begin(), neighbours_.end(),
                      [](const auto& entry) { return entry.second.edge.answering(); }));
    const bool ending = phase_ == Phase::leaving || phase_ == Phase::left ||
                        (phase_ == Phase::draining && phase_overdue_);
    if (ending || answering >= options_.answers_max || holding_back(turn.now))
      admission.answering = Admission::Answering::busy;
  }
  return admission;
}

std::optional<CloseReason> Mixer::refuse_open(Turn& turn, const Neighbour& from) {
  if (from.edge.state() != EdgeState::closed) return std::nullopt;
  switch (phase_) {
    case Phase::leaving:
    case Phase::left:
      return CloseReason::leaving;
    case Phase::draining:
    case Phase::frozen:
      return CloseReason::finishing;
    case Phase::mixing:
      break;
  }
  const std::uint32_t reserved = guests_.contains(from.edge.peer()) ? options_.degree : 0;
  if (edges_taken() < options_.degree + 2 + reserved) return std::nullopt;
  if (!wanted_.contains(from.edge.peer())) return CloseReason::full;
  // One of our own topology: an edge that fell out of it makes room, where one is idle.
  for (auto& [peer, each] : neighbours_) {
    if (wanted_.contains(peer) || !each.edge.may_offer()) continue;
    each.edge.close(turn, CloseReason::not_wanted);
    break;
  }
  return std::nullopt;
}

std::size_t Mixer::edges_taken() const {
  return static_cast<std::size_t>(std::count_if(
      neighbours_.begin(), neighbours_.end(),
      [](const auto& entry) { return entry.second.edge.state() != EdgeState::closed; }));
}

Mixer::Neighbour& Mixer::neighbour(NodeId peer) {
  const auto [at, is_new] =
      neighbours_.try_emplace(peer, self_, peer, options_.edge, options_.levels);
  if (is_new) {
    if (auto known = absent_.take(last_event_, peer)) {
      at->second.edge.recall(std::move(known->conduct));
      at->second.counters = std::move(known->view);
    }
  }
  return at->second;
}

Mixer::Neighbour* Mixer::find(NodeId peer) {
  const auto found = neighbours_.find(peer);
  return found == neighbours_.end() ? nullptr : &found->second;
}

// --- queries ------------------------------------------------------------------------------------

const Edge* Mixer::find_edge(NodeId peer) const {
  const auto found = neighbours_.find(peer);
  return found == neighbours_.end() ? nullptr : &found->second.edge;
}

double Mixer::largest_norm() const {
  return norms_.empty() ? 0 : *std::max_element(norms_.begin(), norms_.end());
}

std::vector<NeighbourView> Mixer::neighbours() const {
  std::vector<NeighbourView> views;
  views.reserve(neighbours_.size());
  for (const auto& [peer, each] : neighbours_) views.push_back(view_of(each));
  return views;
}

NeighbourView Mixer::view_of(const Neighbour& neighbour) const {
  const Edge& edge = neighbour.edge;
  NeighbourView view = neighbour.counters;
  view.peer = edge.peer();
  view.state = edge.state();
  view.level = edge.level();
  view.level_reason = neighbour.decision.reason;
  view.wanted = wanted_.contains(edge.peer());
  view.parked = edge.parked();
  // Of an edge before this one where there was none yet.
  view.last_exchange = std::max(neighbour.counters.last_exchange, edge.last_exchange());
  view.offences = edge.offences(last_event_);
  view.drops = edge.drops();
  view.closed_until = edge.conduct().closed_until;
  return view;
}

}  // namespace starling::gossip
