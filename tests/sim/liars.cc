#include "tests/sim/liars.h"

#include "node/base/check.h"
#include "tests/gossip/virtual_swarm.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace starling::sim {
namespace {

using namespace std::chrono_literals;
using gossip::testing::SimNode;
using gossip::testing::SwarmOptions;
using gossip::testing::VirtualSwarm;

constexpr std::size_t kNodes = 5;
constexpr std::size_t kLiar = 4;

// Mean and deviation of a coordinate over the honest nodes.
struct Coordinate {
  double mean = 0;
  double deviation = 0;
};
Coordinate coordinate(VirtualSwarm& swarm, std::size_t i) {
  Coordinate found;
  for (std::size_t k = 0; k < kLiar; ++k)
    found.mean += static_cast<double>(swarm.node(k).master.parameters[i]) / kLiar;
  for (std::size_t k = 0; k < kLiar; ++k) {
    const double apart = static_cast<double>(swarm.node(k).master.parameters[i]) - found.mean;
    found.deviation += apart * apart / kLiar;
  }
  found.deviation = std::sqrt(found.deviation);
  return found;
}

float lie_about(Lie lie, const Coordinate& honest, Rng& rng) {
  switch (lie) {
    case Lie::sign_flip:
      return static_cast<float>(-honest.mean);
    case Lie::random:
      return static_cast<float>(4 * (rng.unit() - 0.5));
    case Lie::little:
      return static_cast<float>(honest.mean - 1.5 * honest.deviation);
    case Lie::inner:
      return static_cast<float>(-0.1 * honest.mean);
    case Lie::stale:
      return 0;
    case Lie::huge:
      return 1e30F;
  }
  return 0;
}

bool is_parameter(const gossip::Layout& layout, std::size_t i) {
  return layout.is_real(i / gossip::kBlock, i % gossip::kBlock);
}

}  // namespace

std::string_view name_of(Lie lie) {
  switch (lie) {
    case Lie::sign_flip:
      return "sign flip";
    case Lie::random:
      return "random";
    case Lie::little:
      return "a little (ALIE)";
    case Lie::inner:
      return "inner product (IPM)";
    case Lie::stale:
      return "stale";
    case Lie::huge:
      return "huge";
  }
  return "?";
}

Harm run_with_liar(std::uint64_t seed, gossip::Aggregator rule, std::optional<Lie> lie) {
  SwarmOptions options{.seed = seed, .nodes = kNodes, .parameters = 2'048, .budget_samples = 0};
  options.aggregator = rule;
  // As the node does: what holds back needs every coordinate.
  if (gossip::holds_back(rule)) options.level = gossip::Level::l3;
  VirtualSwarm swarm(options);
  swarm.connect_all();
  if (lie)
    swarm.before_job = [&](std::size_t index, SimNode& node) {
      if (index != kLiar) return;
      for (std::size_t i = 0; i < node.master.parameters.size(); ++i)
        if (is_parameter(swarm.layout(), i))
          node.master.parameters[i] = lie_about(*lie, coordinate(swarm, i), node.rng);
    };
  swarm.run_for(30s);

  Harm harm;
  double spread = 0;
  std::size_t parameters = 0;
  for (std::size_t i = 0; i < swarm.layout().size(); ++i) {
    if (!is_parameter(swarm.layout(), i)) continue;
    const double deviation = coordinate(swarm, i).deviation;
    spread += deviation * deviation;
    ++parameters;
  }
  harm.disagreement = std::sqrt(spread / static_cast<double>(parameters));
  for (std::size_t k = 0; k < kLiar; ++k) {
    harm.distance += swarm.distance_to_optimum(k) / kLiar;
    for (const float x : swarm.node(k).master.parameters)
      harm.finite = harm.finite && std::isfinite(x);
  }
  return harm;
}

}  // namespace starling::sim
