// The part of Mixer that chooses: which edges to have, which one is next, at which level, when.
#include "gossip/exchange/mixer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace starling::gossip {

namespace {

// Codec jobs before their mean cost counts: the first ones touch memory for the first time.
constexpr std::uint32_t kJobsBelieved = 8;

}  // namespace

// --- which edges --------------------------------------------------------------------------------

TimePoint Mixer::earliest_open(TimePoint now, const Neighbour& neighbour) const {
  return self_ < neighbour.edge.peer() ? now : now + options_.open_grace;
}

void Mixer::close_unwanted(Turn& turn) {
  if (phase_ != Phase::mixing) return;
  std::size_t taken = edges_taken();
  for (auto& [peer, each] : neighbours_) {
    if (wanted_.contains(peer) || guests_.contains(peer)) continue;
    // Who answers nothing will not use up its lease, and costs a reference and a session until
    // then.
    const bool silent = each.edge.silent(turn.now);
    if (!silent && !each.edge.may_offer()) continue;
    const bool lease_over = silent || each.edge.lease_exchanges() >= options_.lease;
    if (!lease_over && taken <= options_.degree + 2) continue;
    each.edge.close(turn, CloseReason::not_wanted);
    --taken;
  }
}

void Mixer::open_wanted(Turn& turn) {
  if (phase_ != Phase::mixing || holding_back(turn.now)) return;
  for (const auto& peer : wanted_) {
    Neighbour& each = neighbour(peer);
    if (turn.now < each.open_at || !each.edge.may_open(turn.now)) continue;
    each.edge.open(turn);
  }
}

// --- which edge is next -------------------------------------------------------------------------

bool Mixer::offer_is_out() const {
  return std::any_of(neighbours_.begin(), neighbours_.end(),
                     [](const auto& entry) { return entry.second.edge.blocks_node(); });
}

void Mixer::maybe_offer(Turn& turn) {
  if (phase_ != Phase::mixing || holding_back(turn.now)) return;
  const std::uint64_t steps = node_.replica.steps;
  if (steps < last_offer_step_ + period_.tau || offer_is_out()) return;
  node_.usual_answer = median_answer_time();
  Neighbour* next = choose(turn.now);
  if (next == nullptr) return;
  control_level(turn, *next);
  last_offer_step_ = steps;
  next->offered_at = turn.now;
  next->edge.offer(turn, {.level = next->edge.level(), .purpose = Purpose::regular});
}

Duration Mixer::median_answer_time() const {
  std::vector<Duration> times;
  for (const auto& [peer, each] : neighbours_)
    if (each.edge.answer_time() > Duration{}) times.push_back(each.edge.answer_time());
  if (times.empty()) return Duration{};
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Least recently synced first, and an offer that came to nothing is a turn as well: whoever answers
// Busy would get every one of them otherwise. A neighbour that answers k times as slowly as the
// median has to wait k times as long for its turn (rulings 5).
Mixer::Neighbour* Mixer::choose(TimePoint now) {
  const Duration usual = node_.usual_answer;
  Neighbour* best = nullptr;
  double best_score = 0;
  for (auto& [peer, each] : neighbours_) {
    if (!each.edge.may_offer() || now < each.offer_at) continue;
    double slowness = 1;
    if (usual > Duration{})
      slowness = std::max(1.0, seconds(each.edge.answer_time()) / seconds(usual));
    // A neighbour without a turn yet waits for ever; chance decides among several.
    double score = 1e12 * (1 + rng_.unit());
    if (const auto last = std::max(each.edge.last_exchange(), each.offered_at))
      score = (seconds(now - *last) + 1e-6 * (1 + rng_.unit())) / slowness;
    if (best != nullptr && score <= best_score) continue;
    best = &each;
    best_score = score;
  }
  return best;
}

// --- level and period ---------------------------------------------------------------------------

Line Mixer::line_of(const Neighbour& neighbour) const {
  return {.bytes_per_second = neighbour.goodput,
          .step_time = step_time_,
          .message_bytes = message_bytes_};
}

void Mixer::control_level(Turn& turn, Neighbour& neighbour) {
  const Level present = neighbour.edge.level();
  const LevelInputs inputs{.present = present,
                           .tau = period_.tau,
                           .progress = training_.progress,
                           .line = line_of(neighbour)};
  neighbour.decision = decide_level(inputs, neighbour.history, options_.levels);
  if (neighbour.decision.level == present) return;
  neighbour.history.on_left(present);
  neighbour.edge.set_level(neighbour.decision.level);
  turn.out.events.emplace_back(LevelChanged{neighbour.edge.peer(), neighbour.decision});
}

// Whether `fit` does not hold on more than half of the edges that are in use.
template <class Fit>
bool Mixer::fails_on_most(const Fit& fit) const {
  std::size_t edges = 0;
  std::size_t failing = 0;
  for (const auto& [peer, each] : neighbours_) {
    if (each.edge.state() != EdgeState::open || each.edge.parked()) continue;
    ++edges;
    if (!fit(each)) ++failing;
  }
  return 2 * failing > edges;
}

// The period belongs to all edges: one slow line, or one neighbour that reads slowly on purpose,
// does not set it. Such an edge has its turn as rarely as it answers slowly (choose()).
void Mixer::control_period(Turn& turn) {
  const LevelOptions& levels = options_.levels;
  const std::uint32_t half = std::max(1U, period_.tau / 2);
  const bool nothing_fits = !levels.fixed_level && fails_on_most([&](const Neighbour& each) {
    return fits(line_of(each), levels, Level::l2, period_.tau);
  });
  const bool room = !fails_on_most([&](const Neighbour& each) {
    return fits(line_of(each), levels, each.decision.wanted, half);
  });
  exchanges_with_room_ = room ? exchanges_with_room_ + 1 : 0;
  PeriodInputs inputs{.tau = period_.tau,
                      .job_cost = job_costs_ < kJobsBelieved ? Duration{} : job_cost_,
                      .step_time = step_time_,
                      .nothing_fits = nothing_fits,
                      .exchanges_with_room = exchanges_with_room_,
                      .exchanges_since_left_half = std::nullopt};
  if (const auto left = tau_left_at_.find(half); left != tau_left_at_.end())
    inputs.exchanges_since_left_half = exchanges_ - left->second;
  const PeriodDecision decision = decide_period(inputs, levels);
  const std::uint32_t before = std::exchange(period_, decision).tau;
  if (decision.tau == before) return;
  tau_left_at_[before] = exchanges_;
  exchanges_with_room_ = 0;
  for (auto& [peer, each] : neighbours_) each.edge.forget_norms();
  turn.out.events.emplace_back(PeriodChanged{decision});
}

double Mixer::usual_norm() const {
  std::vector<double> norms;
  for (const auto& [peer, each] : neighbours_)
    if (const double norm = each.edge.usual_norm(); norm > 0) norms.push_back(norm);
  if (norms.size() < 3) return 0;  // no majority
  const auto at = norms.begin() + static_cast<std::ptrdiff_t>(norms.size() / 2);
  std::nth_element(norms.begin(), at, norms.end());
  return *at;
}

// --- lag ----------------------------------------------------------------------------------------

// Of two ages in the middle the lower one counts: two values do not say which of them is the lie.
// To believe an age that is too high costs the replica, which is thrown away for another one, and
// the part in the final consensus; to believe one that is too low costs a state transfer that did
// not happen, and the exchanges heal what it would have healed, only later.
Lag Mixer::lag() const {
  std::vector<double> ages;
  for (const auto& [peer, each] : neighbours_)
    if (const auto age = each.edge.peer_age()) ages.push_back(*age);
  Lag lag{.own_age = age(), .median_age = age(), .far_behind = false, .caught_up = true};
  if (ages.empty()) return lag;
  const auto middle = ages.begin() + static_cast<std::ptrdiff_t>((ages.size() - 1) / 2);
  std::nth_element(ages.begin(), middle, ages.end());
  lag.median_age = *middle;
  const double bearable = std::max(options_.lag_share * lag.median_age, options_.lag_steps);
  const double behind = lag.median_age - lag.own_age;
  lag.far_behind = behind > bearable;
  lag.caught_up = behind <= bearable / 2;
  return lag;
}

void Mixer::watch_lag(TimePoint now) {
  const Lag present = lag();
  if (present.caught_up) {
    lag_since_.reset();
  } else if (present.far_behind && !lag_since_) {
    lag_since_ = now;
  }
}

bool Mixer::holding_back(TimePoint now) const {
  return lag_since_ && now < *lag_since_ + options_.lag_patience;
}

}  // namespace starling::gossip
