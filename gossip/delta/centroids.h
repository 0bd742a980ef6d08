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
  // Copies: std::min takes references, and a GPU's code that refers to a constant of the host is a
  // trap, of which nvcc says nothing.
  const int code = bits == 4 ? kMaxCode4 : kMaxCode8;
  const std::uint16_t most = bits == 4 ? kMaxScale4 : kMaxScale8;
  return std::min(to_bf16(largest / static_cast<float>(code)), most);
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

// A share of one, for count_share().
inline constexpr int kShareBits = 15;
inline constexpr std::uint32_t kWholeShare = 1U << kShareBits;

// How many values a block whose own threshold drifted by `drift` selects when it is moved by
// `median`, against those that it should; whole parts of kWholeShare, so that a sum has no order.
// The count falls with the fourth power of the threshold at L2, where values are normal, and with
// the ninth at L0. A block beyond half or twice as many selects exactly: it says no more than those
// bounds.
[[nodiscard]] constexpr std::uint64_t count_share(float drift, float median) {
  constexpr float kHalf = 0.917F;
  constexpr float kTwice = 1.09F;
  // In this order a ratio of two infinities is taken for the lower bound.
  const float bounded = std::min(kTwice, std::max(kHalf, drift / median));
  const auto ratio = static_cast<std::uint64_t>(static_cast<float>(kWholeShare) * bounded);
  const std::uint64_t square = ratio * ratio >> kShareBits;
  const std::uint64_t fourth = square * square >> kShareBits;
  return fourth * fourth >> kShareBits;
}

// The drift by which all blocks together select as many as they should. The median's is too small:
// of thresholds a few per cent off to either side those below select more than those above leave.
// An eighth of the surplus is its eighth root, near enough.
[[nodiscard]] constexpr float common_drift(float median, std::uint64_t shares,
                                           std::uint32_t known) {
  const double mean = static_cast<double>(shares) / (static_cast<double>(kWholeShare) * known);
  return median * static_cast<float>(1 + (mean - 1) / 8);
}

}  // namespace starling::gossip
