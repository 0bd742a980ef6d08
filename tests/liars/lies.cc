#include "tests/liars/lies.h"

#include <cmath>
#include <iterator>
#include <utility>

namespace starling::liars {

using gossip::testing::SimNode;
using gossip::testing::VirtualSwarm;

namespace {

// Of Lie::little: how many deviations below the mean; of Lie::dissensus: epsilon.
constexpr float kDeviations = 1.5F;
constexpr float kEpsilon = 1.5F;
constexpr float kHonest = static_cast<float>(kLiar);
// Of Lie::delay: replicas kept of the steps that it goes back.
constexpr std::uint64_t kRemembered = 20;

bool is_parameter(const gossip::Layout& layout, std::size_t i) {
  return layout.is_real(i / gossip::kBlock, i % gossip::kBlock);
}

float root_mean_square(const std::vector<float>& values) {
  double squares = 0;
  for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
  return static_cast<float>(std::sqrt(squares / static_cast<double>(values.size())));
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
    case Lie::dissensus:
      return "dissensus";
    case Lie::delay:
      return "delay";
    case Lie::huge:
      return "huge";
    case Lie::label_flip:
      return "label flip";
  }
  return "?";
}

Liar::Liar(VirtualSwarm& swarm, Lie lie, std::uint64_t delay_steps)
    : swarm_(swarm), lie_(lie), delay_steps_(delay_steps) {
  remember(0, mean());
  swarm.before_job = [this](std::size_t index, SimNode& node, const gossip::CodecJob& job) {
    if (index == kLiar) tell(node, job);
  };
}

void Liar::tell(SimNode& node, const gossip::CodecJob& job) {
  if (lie_ == Lie::label_flip) return;
  std::vector<float>& told = node.master.parameters;
  const std::vector<float> all = mean();
  if (lie_ == Lie::delay) {
    remember(node.steps, all);
    told = past_.begin()->second;
    return;
  }
  if (lie_ == Lie::dissensus) {
    const EdgeEnds& edge = gossip::edge_of(job);
    push_away(swarm_.index_of(edge.lower == node.id() ? edge.higher : edge.lower), told, all);
    return;
  }
  const float size = root_mean_square(all);
  for (std::size_t i = 0; i < told.size(); ++i)
    if (is_parameter(swarm_.layout(), i)) told[i] = lie_about(i, all[i], size, node.rng);
}

float Liar::lie_about(std::size_t coordinate, float mean, float size, Rng& rng) const {
  switch (lie_) {
    case Lie::sign_flip:
      return -mean;
    case Lie::random:
      // A uniform deviate between -1/2 and 1/2 has the root mean square 1 / sqrt(12).
      return 4 * size * std::sqrt(12.0F) * static_cast<float>(rng.unit() - 0.5);
    case Lie::little:
      return mean - kDeviations * deviation(coordinate, mean);
    case Lie::inner:
      return -0.1F * mean;
    case Lie::huge:
      return 1e30F;
    case Lie::dissensus:
    case Lie::delay:
    case Lie::label_flip:
      break;
  }
  return mean;
}

// The sum over the other honest nodes of (x_k - x_i) is kHonest (mean - x_i).
void Liar::push_away(std::size_t victim, std::vector<float>& told,
                     const std::vector<float>& mean) const {
  const std::vector<float>& own = swarm_.node(victim).master.parameters;
  for (std::size_t i = 0; i < told.size(); ++i)
    told[i] = own[i] - kEpsilon * kHonest * (mean[i] - own[i]);
}

std::vector<float> Liar::mean() const {
  std::vector<float> sum(swarm_.layout().size(), 0.0F);
  for (std::size_t k = 0; k < kLiar; ++k) {
    const std::vector<float>& x = swarm_.node(k).master.parameters;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i] / kHonest;
  }
  return sum;
}

float Liar::deviation(std::size_t coordinate, float mean) const {
  float squares = 0;
  for (std::size_t k = 0; k < kLiar; ++k) {
    const float apart = swarm_.node(k).master.parameters[coordinate] - mean;
    squares += apart * apart / kHonest;
  }
  return std::sqrt(squares);
}

void Liar::remember(std::uint64_t step, const std::vector<float>& mean) {
  if (lie_ != Lie::delay) return;
  if (past_.empty() || step >= past_.rbegin()->first + delay_steps_ / kRemembered)
    past_.emplace(step, mean);
  // The newest one that is old enough comes first.
  while (past_.size() > 1 && std::next(past_.begin())->first + delay_steps_ <= step)
    past_.erase(past_.begin());
}

}  // namespace starling::liars
