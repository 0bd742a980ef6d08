#include "gossip/membership/topology.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace starling::gossip {
namespace {

constexpr std::string_view kDomain = "starling/topology/1";
constexpr std::size_t kLargeSwarm = 64;
constexpr std::size_t kMaxCycles = kMaxDegree / 2;

}  // namespace

std::size_t cycles_for(std::size_t members, const TopologyOptions& options) {
  if (options.degree != 0) return std::clamp<std::size_t>((options.degree + 1) / 2, 1, kMaxCycles);
  return members > kLargeSwarm ? 3 : 2;
}

Topology::Topology(const SwarmId& swarm, TopologyOptions options)
    : swarm_(swarm),
      options_(options),
      // One threshold is crossed while the swarm grows, so the third cycle is always kept.
      cycles_(cycles_for(kLargeSwarm + 1, options)) {}

void Topology::set_degree(std::uint32_t degree) {
  if (degree == options_.degree) return;
  options_.degree = degree;
  const auto members = std::exchange(places_, {});
  cycles_.assign(cycles_for(kLargeSwarm + 1, options_), {});
  for (const auto& id : members) add(id);
}

std::pair<Hash, NodeId> Topology::place_of(std::size_t cycle, const NodeId& id) const {
  Hasher hasher;
  hasher.add(kDomain).add(static_cast<std::uint64_t>(cycle)).add(swarm_.view()).add(id.view());
  return {hasher.finish(), id};
}

void Topology::add(const NodeId& id) {
  if (!places_.insert(id).second) return;
  for (std::size_t k = 0; k < cycles_.size(); ++k) cycles_[k].insert(place_of(k, id));
}

void Topology::remove(const NodeId& id) {
  if (places_.erase(id) == 0) return;
  for (std::size_t k = 0; k < cycles_.size(); ++k) cycles_[k].erase(place_of(k, id));
}

void Topology::walk(const Cycle& cycle, std::pair<Hash, NodeId> from, Direction direction,
                    const std::function<bool(const NodeId&)>& visit) const {
  if (cycle.empty()) return;
  const bool forward = direction == Direction::forward;
  auto at = forward ? cycle.upper_bound(from) : cycle.lower_bound(from);
  for (std::size_t steps = 0; steps < cycle.size(); ++steps) {
    if (forward) {
      if (at == cycle.end()) at = cycle.begin();
    } else {
      if (at == cycle.begin()) at = cycle.end();
      --at;
    }
    if (at->second == from.second || !visit(at->second)) return;
    if (forward) ++at;
  }
}

std::vector<NodeId> Topology::neighbours_of(const NodeId& self, const Possible& possible) const {
  const std::size_t cycles = cycles_around(self);
  std::set<NodeId> found;
  if (cycles == 0) {
    for (const auto& id : places_)
      if (id != self && (!possible || possible(id))) found.insert(id);
    return {found.begin(), found.end()};
  }
  for (std::size_t k = 0; k < cycles; ++k)
    for (const auto direction : {Direction::forward, Direction::backward})
      if (const auto id = next(k, self, direction, possible)) found.insert(*id);
  return {found.begin(), found.end()};
}

// How many cycles count; none where all members are neighbours.
std::size_t Topology::cycles_around(const NodeId& self) const {
  const std::size_t members = places_.size() + (places_.contains(self) ? 0 : 1);
  const std::size_t cycles = std::min(cycles_.size(), cycles_for(members, options_));
  return members <= 2 * cycles + 1 ? 0 : cycles;
}

std::optional<NodeId> Topology::next(std::size_t cycle, const NodeId& self, Direction direction,
                                     const Possible& possible) const {
  std::optional<NodeId> found;
  std::size_t steps = 0;
  walk(cycles_[cycle], place_of(cycle, self), direction, [&](const NodeId& id) {
    if (possible && !possible(id)) return ++steps < kMaxWalk;
    found = id;
    return false;
  });
  return found;
}

std::vector<NodeId> Topology::neighbours_among_strangers(
    const NodeId& self, const Possible& possible,
    const std::function<Reach(const NodeId&)>& reach) const {
  const std::size_t cycles = cycles_around(self);
  if (cycles == 0) return neighbours_of(self, possible);
  const std::size_t share = std::max<std::size_t>(1, 2 * cycles / 4);
  std::map<Network, std::size_t> taken;
  std::set<NodeId> found;
  for (std::size_t k = 0; k < cycles; ++k) {
    for (const auto direction : {Direction::forward, Direction::backward}) {
      const auto plain = next(k, self, direction, possible);
      if (k == 0 && plain) found.insert(*plain);
      std::optional<NodeId> fresh;
      std::optional<NodeId> chosen;
      std::size_t steps = 0;
      walk(cycles_[k], place_of(k, self), direction, [&](const NodeId& id) {
        if (!possible(id)) return ++steps < kMaxSearch;
        const Reach known = reach(id);
        if (known.network && taken[*known.network] >= share) return ++steps < kMaxSearch;
        if (!known.reached) {
          if (!fresh) fresh = id;
          return ++steps < kMaxSearch;
        }
        if (known.network) ++taken[*known.network];
        chosen = id;
        return false;
      });
      if (fresh) found.insert(*fresh);
      if (!chosen && !fresh) chosen = plain;
      if (chosen) found.insert(*chosen);
    }
  }
  return {found.begin(), found.end()};
}

std::vector<NodeId> Topology::witnesses_of(const NodeId& subject, std::size_t count,
                                           const Possible& eligible) const {
  std::set<NodeId> found;
  for (const auto direction : {Direction::forward, Direction::backward}) {
    std::size_t taken = 0;
    walk(cycles_[0], place_of(0, subject), direction, [&](const NodeId& id) {
      if (eligible(id)) {
        found.insert(id);
        ++taken;
      }
      return taken < count;
    });
  }
  return {found.begin(), found.end()};
}

std::vector<NodeId> neighbours(std::span<const NodeId> members, const NodeId& self,
                               const SwarmId& swarm, TopologyOptions options) {
  Topology topology(swarm, options);
  for (const auto& id : members) topology.add(id);
  return topology.neighbours_of(self);
}

}  // namespace starling::gossip
