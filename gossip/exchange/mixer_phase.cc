// The part of Mixer that ends things: draining for the final consensus, leaving, another replica.
#include "gossip/exchange/mixer.h"

#include <algorithm>

namespace starling::gossip {

ExchangeEffects Mixer::begin_drain(TimePoint now, TimePoint deadline) {
  return turn_at(now, [&](Turn&) {
    if (phase_ != Phase::mixing) return;
    phase_ = Phase::draining;
    phase_deadline_ = deadline;
    phase_overdue_ = false;
  });
}

ExchangeEffects Mixer::begin_leave(TimePoint now, TimePoint deadline) {
  return turn_at(now, [&](Turn&) {
    if (phase_ == Phase::leaving || phase_ == Phase::left) return;
    phase_ = Phase::leaving;
    phase_deadline_ = deadline;
    phase_overdue_ = false;
    leave_push_.reset();
  });
}

bool Mixer::jobs_running() const {
  return std::any_of(neighbours_.begin(), neighbours_.end(),
                     [](const auto& entry) { return entry.second.edge.job_running(); });
}

// An offer on an edge whose session is gone is given up at once: its peer is dead or will have to
// be settled after the drain.
bool Mixer::settled() const {
  if (jobs_running()) return false;
  return std::none_of(neighbours_.begin(), neighbours_.end(), [](const auto& entry) {
    const Edge& edge = entry.second.edge;
    const bool connected = edge.state() == EdgeState::open || edge.state() == EdgeState::resuming;
    return connected && edge.offering();
  });
}

bool Mixer::drained() const {
  return (phase_ == Phase::frozen || phase_ == Phase::left) && !jobs_running();
}

void Mixer::close_all(Turn& turn, CloseReason reason) {
  for (auto& [peer, each] : neighbours_) each.edge.close(turn, reason);
}

void Mixer::advance_phase(Turn& turn) {
  if (turn.now >= phase_deadline_) phase_overdue_ = true;
  if (phase_ == Phase::leaving) advance_leave(turn);
  if (phase_ != Phase::draining) return;
  if (!settled() && !(phase_overdue_ && !jobs_running())) return;
  phase_ = Phase::frozen;
  phase_deadline_ = kNever;
  close_all(turn, CloseReason::finishing);
}

void Mixer::advance_leave(Turn& turn) {
  if (phase_overdue_) return leave_now(turn, CloseReason::leaving);
  if (leave_push_) {
    const Neighbour* taker = find(*leave_push_);
    if (taker == nullptr || !taker->edge.offering() || taker->edge.state() != EdgeState::open)
      leave_now(turn, CloseReason::leaving);
    return;
  }
  if (offer_is_out()) return;  // finish the exchange in flight
  Neighbour* taker = choose_for_leave();
  if (taker == nullptr) {
    const bool hope = std::any_of(neighbours_.begin(), neighbours_.end(), [](const auto& entry) {
      const Edge& edge = entry.second.edge;
      return edge.state() == EdgeState::open && !edge.parked();
    });
    if (!hope) leave_now(turn, CloseReason::leaving);
    return;
  }
  if (turn.now < taker->offer_at) return;
  leave_push_ = taker->edge.peer();
  const Level level = level_for_leave(line_of(*taker), (phase_deadline_ - turn.now) / 2);
  taker->edge.offer(turn, {.level = level, .purpose = Purpose::leave});
}

// The fastest: by measured goodput, then by the time of its answers.
Mixer::Neighbour* Mixer::choose_for_leave() {
  Neighbour* best = nullptr;
  for (auto& [peer, each] : neighbours_) {
    if (!each.edge.may_offer()) continue;
    if (best == nullptr) {
      best = &each;
      continue;
    }
    // One that was busy comes after one that can be asked now.
    if (each.offer_at != best->offer_at && each.offer_at < best->offer_at) best = &each;
    if (each.offer_at != best->offer_at) continue;
    const double goodput = each.goodput.value_or(0);
    const double best_goodput = best->goodput.value_or(0);
    if (goodput > best_goodput ||
        (goodput >= best_goodput && each.edge.answer_time() < best->edge.answer_time()))
      best = &each;
  }
  return best;
}

void Mixer::leave_now(Turn& turn, CloseReason reason) {
  phase_ = Phase::left;
  phase_deadline_ = kNever;
  close_all(turn, reason);
}

ExchangeEffects Mixer::end(TimePoint now) {
  // Not `replica_changed`, which asks for the next edge at once: until the neighbours have heard
  // what this node does now there is none.
  return turn_at(now, [&](Turn& turn) { leave_now(turn, CloseReason::not_wanted); });
}

ExchangeEffects Mixer::adopt_replica(TimePoint now, double age) {
  return turn_at(now, [&](Turn& turn) {
    close_all(turn, CloseReason::replica_changed);
    node_.replica.age = std::clamp(age, 0.0, exchange_limits::kMaxOwnAge);
    exchanges_ = 0;
    tau_left_at_.clear();
    norms_.clear();
    lag_since_.reset();
  });
}

}  // namespace starling::gossip
