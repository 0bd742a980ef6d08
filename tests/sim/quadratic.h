// What the simulated swarm trains: a noisy quadratic with an optimum that everybody could find
// alone, so that convergence, agreement and the exact mean can be checked.
#pragma once

#include "bootstrap/settings.h"
#include "gossip/delta/layout.h"
#include "gossip/gossip.h"
#include "node/base/random.h"

#include <cstdint>
#include <span>
#include <vector>

namespace starling::sim {

// A replica: what a checkpoint, a snapshot and a contribution hold.
struct Weights {
  std::vector<float> parameters;  // Layout::size(), padding zero
  std::vector<float> mean;        // one a channel
  std::vector<float> variance;
  std::int64_t batches = 0;

  friend bool operator==(const Weights&, const Weights&) = default;
};

struct ProblemOptions {
  std::uint64_t seed = 1;
  std::size_t parameters = 512;  // of the one big tensor, a multiple of 16
  std::uint64_t budget_samples = 0;
  Duration budget_time{0};
};

// f(x) = |x - optimum|^2 / 2; a step sees its gradient with noise. The same for all machines of a
// world, which owns it. Immutable.
class Quadratic {
 public:
  explicit Quadratic(const ProblemOptions& options);

  [[nodiscard]] const gossip::Layout& layout() const { return layout_; }
  [[nodiscard]] gossip::ModelFacts facts(const Hash& fingerprint) const;
  [[nodiscard]] const bootstrap::Settings& settings() const { return settings_; }

  void draw_genesis(std::span<float> parameters) const;
  [[nodiscard]] Weights genesis() const;
  // One step of stochastic gradient descent.
  void step(Weights& weights, Rng& rng) const;
  // Root mean square of x - optimum over the real parameters.
  [[nodiscard]] double distance(std::span<const float> parameters) const;
  // A bound on distance() after so many steps of whoever took fewest: what is left of the start,
  // and what noise keeps a single replica at.
  [[nodiscard]] static double bound_after(std::uint64_t steps);
  [[nodiscard]] bool is_real(std::size_t index) const { return real_[index] != 0; }

 private:
  gossip::Layout layout_;
  bootstrap::Settings settings_;
  std::uint64_t budget_samples_;
  Duration budget_time_;
  std::vector<float> genesis_;
  std::vector<float> optimum_;
  std::vector<std::uint8_t> real_;
  std::vector<std::uint32_t> indices_;  // of the real ones
};

// The bytes of a snapshot and back, checked as node/state_transfer_bytes.cc does.
[[nodiscard]] Bytes to_bytes(const Weights& weights);
[[nodiscard]] Result<Weights> parse_weights(ByteView bytes, const gossip::Layout& layout);
[[nodiscard]] bool all_finite(std::span<const float> values);

}  // namespace starling::sim
