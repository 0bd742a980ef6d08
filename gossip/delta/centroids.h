// From sums of |d| to the two centroids of a block: what every encoder, on CPU and GPU, works out
// alike.
//
// C++20 and free of Result, so that .cu files can include it.
#pragma once

#include "gossip/delta/format.h"
#include "gossip/delta/kernels.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace starling::gossip {

// floor(sum / count) of fixed-point values, as bf16.
[[nodiscard]] constexpr std::uint16_t mean_as_bf16(const FixedSum& part, std::uint32_t exponent) {
  if (part.count == 0) return 0;
  const std::uint64_t mean = part.sum / part.count;
  return to_bf16(static_cast<float>(mean) * unit_of(exponent));
}

// The smallest |d|, as bits, that lies above the mean: (floor(mean) + 1) units, exact in fp32.
[[nodiscard]] constexpr std::uint32_t first_above_mean(const FixedSum& all,
                                                       std::uint32_t exponent) {
  const std::uint64_t above = all.sum / all.count + 1;
  return std::bit_cast<std::uint32_t>(static_cast<float>(above) * unit_of(exponent));
}

struct Centroids {
  std::uint16_t low = 0;
  std::uint16_t high = 0;
};

[[nodiscard]] constexpr Centroids centroids_of(const FixedSum& all, const FixedSum& above,
                                               std::uint32_t exponent) {
  Centroids result;
  result.low = mean_as_bf16({all.sum - above.sum, all.count - above.count}, exponent);
  result.high = above.count == 0 ? result.low : mean_as_bf16(above, exponent);
  return result;
}

[[nodiscard]] constexpr double square(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

// |q|^2 of values that are low or high.
[[nodiscard]] constexpr double energy_of(const Centroids& centroids, std::uint32_t low_count,
                                         std::uint32_t high_count) {
  return low_count * square(from_bf16(centroids.low)) +
         high_count * square(from_bf16(centroids.high));
}

// The scale of a group of dense codes, from its largest |d|.
[[nodiscard]] constexpr std::uint16_t scale_of(float largest, int bits) {
  return bits == 4 ? std::min(to_bf16(largest / static_cast<float>(kMaxCode4)), kMaxScale4)
                   : std::min(to_bf16(largest / static_cast<float>(kMaxCode8)), kMaxScale8);
}

// The threshold that an edge carries on after `count` values reached the last one. One eighth of
// the relative surplus: the count settles around k0 without swinging, because a change of t by a
// share changes the count by several times that share.
[[nodiscard]] constexpr float next_threshold(float threshold, std::uint32_t count,
                                             std::uint32_t nominal) {
  const float surplus = (static_cast<float>(count) - static_cast<float>(nominal)) /
                        (8.0F * static_cast<float>(nominal));
  return threshold * (1.0F + surplus);
}

// Sampled blocks without whose thresholds nobody says how far all have drifted.
inline constexpr std::uint32_t kFewestDrifts = 8;

}  // namespace starling::gossip
