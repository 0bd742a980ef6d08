#include "tests/liars/quadratic_liars.h"

#include <cmath>

namespace starling::liars {

using namespace std::chrono_literals;
using gossip::testing::SwarmOptions;
using gossip::testing::VirtualSwarm;

Distances run_on_quadratic(std::uint64_t seed, gossip::Aggregator rule, std::optional<Lie> lie) {
  SwarmOptions options{.seed = seed, .nodes = kNodes, .parameters = 2'048, .budget_samples = 0};
  options.aggregator = rule;
  // As the node does: what holds back needs every coordinate.
  if (gossip::holds_back(rule)) options.level = gossip::Level::l3;
  VirtualSwarm swarm(options);
  swarm.connect_all();
  std::optional<Liar> liar;
  if (lie) liar.emplace(swarm, *lie, 1'000);
  swarm.run_for(30s);

  Distances found;
  double spread = 0;
  const std::size_t size = swarm.layout().size();
  for (std::size_t i = 0; i < size; ++i) {
    double mean = 0;
    for (std::size_t k = 0; k < kLiar; ++k)
      mean += static_cast<double>(swarm.node(k).master.parameters[i]) / kLiar;
    for (std::size_t k = 0; k < kLiar; ++k) {
      const auto x = static_cast<double>(swarm.node(k).master.parameters[i]);
      spread += (x - mean) * (x - mean) / kLiar;
      found.finite = found.finite && std::isfinite(x);
    }
  }
  found.each_other = std::sqrt(spread / static_cast<double>(swarm.layout().parameters()));
  for (std::size_t k = 0; k < kLiar; ++k) found.optimum += swarm.distance_to_optimum(k) / kLiar;
  return found;
}

}  // namespace starling::liars
