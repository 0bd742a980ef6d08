#include "tests/sim/plan.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace starling::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::array<std::string_view, kFaultKinds> kNames{
    "crash",    "power", "pause",   "stutter",   "isolate", "partition", "one_way", "clog",  "cut",
    "bad_line", "slow",  "no_room", "disk_full", "jump",    "leave",     "merge",   "finish"};

// What a cut leaves behind: retransmission timers, silent sessions, suspicions.
constexpr Duration kReconnect = 45s;

class Drawer {
 public:
  explicit Drawer(std::uint64_t seed) : rng_(seed * 0x1000'0001ULL + 7) {}

  std::uint64_t below(std::uint64_t bound) { return rng_.below(bound); }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + rng_.below(high - low + 1);
  }
  bool chance(double p) { return rng_.chance(p); }
  Duration time(Duration low, Duration high) {
    return low + Duration(static_cast<std::int64_t>(
                     rng_.below(static_cast<std::uint64_t>((high - low).count()) + 1)));
  }
  // Short ones are the likelier, as with real outages.
  Duration outage(Duration low, Duration high) {
    const double share = rng_.unit() * rng_.unit();
    return low +
           Duration(static_cast<std::int64_t>(share * static_cast<double>((high - low).count())));
  }
  template <class T>
  const T& one_of(const std::vector<T>& choices) {
    return choices[rng_.below(choices.size())];
  }
  // A random half or less of the hosts, at least one, never all.
  std::vector<Host> group(std::size_t hosts) {
    std::vector<Host> all(hosts);
    for (std::size_t i = 0; i < hosts; ++i) all[i] = static_cast<Host>(i);
    const std::size_t wanted = hosts < 2 ? hosts : between(1, std::max<std::size_t>(1, hosts / 2));
    for (std::size_t i = 0; i < wanted; ++i) std::swap(all[i], all[i + below(hosts - i)]);
    all.resize(wanted);
    std::ranges::sort(all);
    return all;
  }

 private:
  Rng rng_;
};

void draw_machines(Drawer& draw, std::size_t count, Plan& plan) {
  const Duration usual_step = draw.time(100ms, 500ms);
  const bool together = draw.chance(0.5);
  const double hidden = draw.chance(0.3) ? 0.3 : 0.0;
  const double serving = draw.chance(0.5) ? 1.0 : 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    MachineTraits traits;
    traits.dialable = i < kSeeds || !draw.chance(hidden);
    traits.serves_for_ever = draw.chance(serving);
    traits.step_time = draw.chance(0.1) ? usual_step * 4 : draw.time(usual_step / 2, usual_step);
    traits.batch = draw.between(4, 16);
    traits.clock_ppm = static_cast<std::int64_t>(draw.below(2'001)) - 1'000;
    traits.clock_offset = draw.time(0s, 1'000'000s);
    traits.checkpoint_every = draw.time(3s, 20s);
    // One of the seeds, and perhaps a few more.
    if (i > 0)
      traits.seeds.push_back(static_cast<Host>(draw.below(std::min<std::size_t>(i, kSeeds))));
    while (i > 1 && draw.chance(0.4)) traits.seeds.push_back(static_cast<Host>(draw.below(i)));
    plan.machines.push_back(std::move(traits));
    plan.starts.push_back(together ? draw.time(0s, 1s) : draw.time(0s, 20s));
    plan.distances.push_back(0us);
  }
  // Machine 0 looks for others too: it may be the one that restarts.
  if (count > 1) plan.machines[0].seeds.push_back(1);
  if (draw.chance(0.3))
    for (auto& distance : plan.distances) distance = draw.time(0ms, 60ms);
}

Fault draw_fault(Drawer& draw, FaultKind kind, std::size_t count) {
  Fault fault;
  fault.kind = kind;
  fault.hosts = {static_cast<Host>(draw.below(count))};
  switch (kind) {
    case FaultKind::crash:
    case FaultKind::power:
    case FaultKind::pause:
      fault.lasts = draw.outage(100ms, 30s);
      if (draw.chance(0.2)) fault.hosts = draw.group(count);
      break;
    case FaultKind::stutter:
      fault.lasts = draw.time(5s, 20s);
      fault.size = 0.2 + 2.0 * static_cast<double>(draw.below(100)) / 100;
      break;
    case FaultKind::isolate:
      fault.lasts = draw.outage(200ms, 40s);
      break;
    case FaultKind::partition:
    case FaultKind::one_way:
      fault.lasts = draw.outage(200ms, 40s);
      fault.hosts = draw.group(count);
      break;
    case FaultKind::clog:
      fault.lasts = draw.outage(200ms, 10s);
      fault.hosts = draw.group(count);
      break;
    case FaultKind::cut:
    case FaultKind::leave:
    case FaultKind::merge:
    case FaultKind::finish:
      break;
    case FaultKind::bad_line:
      fault.lasts = draw.time(5s, 30s);
      fault.size = 0.01 + 0.15 * static_cast<double>(draw.below(100)) / 100;
      break;
    case FaultKind::slow:
      fault.lasts = draw.time(2s, 30s);
      fault.size = static_cast<double>(draw.between(2, 40));
      break;
    case FaultKind::no_room:
      fault.lasts = draw.time(2s, 20s);
      fault.size = 0.1 + 0.9 * static_cast<double>(draw.below(100)) / 100;
      break;
    case FaultKind::disk_full:
      fault.lasts = draw.time(2s, 20s);
      break;
    case FaultKind::jump:
      fault.size = static_cast<double>(draw.between(1, 20));
      break;
  }
  return fault;
}

// Whether nothing that others show reaches a machine, or it has no room for it.
bool keeps_away(FaultKind kind) {
  return kind == FaultKind::isolate || kind == FaultKind::partition || kind == FaultKind::one_way ||
         kind == FaultKind::no_room;
}

void draw_faults(Drawer& draw, std::size_t count, Plan& plan) {
  // Each run has its own few kinds, so that each of them gets runs in which it rules.
  std::vector<FaultKind> kinds;
  for (std::size_t k = 0; k < kFaultKinds; ++k) {
    const auto kind = static_cast<FaultKind>(k);
    const bool rare = kind == FaultKind::finish || kind == FaultKind::leave;
    if (draw.chance(rare ? 0.15 : 0.35)) kinds.push_back(kind);
  }
  if (kinds.empty()) return;
  const Duration gap = draw.time(1s, 12s);
  Duration at = draw.time(1s, 12s);
  std::size_t left = 0;
  while (at < plan.safety) {
    Fault fault = draw_fault(draw, draw.one_of(kinds), count);
    fault.at = at;
    // Somebody must stay to have a swarm.
    const bool leaves = fault.kind == FaultKind::leave;
    if (!leaves || (fault.hosts.front() >= kSeeds && ++left * 3 < count))
      plan.faults.push_back(std::move(fault));
    at += draw.time(gap / 4, gap * 7 / 4);
  }
}

}  // namespace

std::string_view name_of(FaultKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::string describe(const Fault& fault) {
  std::ostringstream out;
  out << name_of(fault.kind);
  for (const auto host : fault.hosts) out << " m" << host;
  if (fault.lasts > Duration{0}) out << " for " << seconds(fault.lasts) << " s";
  if (fault.size > 0) out << " size " << fault.size;
  return std::move(out).str();
}

Plan draw_plan(std::uint64_t seed, const PlanLimits& limits) {
  Drawer draw(seed);
  Plan plan;
  plan.seed = seed;
  const std::size_t drawn = draw.chance(0.2) ? draw.between(2, 4) : draw.between(5, 32);
  std::size_t count = limits.nodes.value_or(drawn);
  if (limits.nodes && limits.most_nodes > count) count = draw.between(count, limits.most_nodes);
  plan.safety = limits.safety.value_or(draw.time(20s, 70s));
  plan.stay_dead = draw.chance(0.3) ? 0.3 : 0.0;
  draw_machines(draw, count, plan);
  if (draw.chance(0.3)) {
    plan.wire.quality.delay_max = draw.time(10ms, 120ms);
    plan.wire.quality.loss = draw.chance(0.5) ? 0.02 : 0;
  }
  if (draw.chance(0.2)) plan.wire.quality.bytes_per_second = 250'000;
  plan.problem.seed = seed;
  plan.problem.parameters = draw.one_of<std::size_t>({256, 512, 4'608, 9'216});
  if (draw.chance(0.2)) {
    // The end comes by itself, in the middle of the faults or after them.
    const double share = 0.3 + static_cast<double>(draw.below(120)) / 100;
    double per_second = 0;
    for (const auto& machine : plan.machines)
      per_second += static_cast<double>(machine.batch) / seconds(machine.step_time);
    plan.problem.budget_samples =
        static_cast<std::uint64_t>(share * seconds(plan.safety) * per_second);
  }
  plan.join.grace = draw.time(1s, 10s);
  plan.gossip.exchange.levels.fixed_tau =
      draw.chance(0.3) ? std::optional<std::uint32_t>(1) : std::nullopt;
  // Edges open at genesis for free up to this age: with small runs either way is to be seen.
  const double genesis_age = draw.one_of<double>({5, 50, 100});
  plan.gossip.exchange.edge.genesis_age = plan.join.genesis_age = genesis_age;
  if (draw.chance(0.3)) plan.gossip.exchange.lag_steps = 40;
  plan.gossip.linger = draw.time(2s, 30s);
  if (!limits.calm) draw_faults(draw, count, plan);
  // Who can take nothing for longer than the others linger is promised nothing.
  for (const auto& fault : plan.faults)
    if (keeps_away(fault.kind))
      plan.gossip.linger = std::max(plan.gossip.linger, fault.lasts + kReconnect);
  return plan;
}

}  // namespace starling::sim
