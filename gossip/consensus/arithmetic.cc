#include "gossip/consensus/arithmetic.h"

#include "gossip/delta/bits.h"
#include "node/base/check.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <bit>

namespace starling::gossip::consensus {
namespace {

// 2^power, of a normal number.
double power_of_two(int power) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(power + 1023) << 52);
}

// The largest of |values| by its bits.
STARLING_WIDE std::uint32_t largest_bits(const float* values, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t k = 0; k < n; ++k) largest = std::max(largest, abs_bits(values[k]));
  return largest;
}

// out += weight * round(values * scale). A double of 2^52 and above has no fraction, so adding
// 1.5 * 2^52 rounds as llrint() does, and the integer, of 32 bits, lies in the lowest ones.
STARLING_WIDE void add_scaled(const float* __restrict values, double scale, std::uint32_t weight,
                              std::int64_t* __restrict out, std::size_t n) {
  constexpr double kWhole = 0x1.8p52;
  for (std::size_t k = 0; k < n; ++k) {
    const double rounded = static_cast<double>(values[k]) * scale + kWhole;
    const std::int64_t whole =
        std::bit_cast<std::int64_t>(rounded) - std::bit_cast<std::int64_t>(kWhole);
    out[k] += whole * static_cast<std::int64_t>(weight);
  }
}

STARLING_WIDE void scale_down(const std::int64_t* __restrict z, double scale, float* __restrict out,
                              std::size_t n) {
  for (std::size_t k = 0; k < n; ++k)
    out[k] = static_cast<float>(static_cast<double>(z[k]) * scale);
}

// Rounds a / b half away from zero; b >= 1.
std::int64_t divide_away(std::int64_t a, std::uint64_t b) {
  const bool negative = a < 0;
  // Two's complement: the magnitude of INT64_MIN is representable without a sign.
  const std::uint64_t magnitude =
      negative ? 0 - static_cast<std::uint64_t>(a) : static_cast<std::uint64_t>(a);
  std::uint64_t quotient = magnitude / b;
  const std::uint64_t rest = magnitude % b;
  if (rest >= b - rest) ++quotient;
  return negative ? static_cast<std::int64_t>(0 - quotient) : static_cast<std::int64_t>(quotient);
}

}  // namespace

std::uint8_t block_exponent(std::span<const float> values) {
  return static_cast<std::uint8_t>(largest_bits(values.data(), values.size()) >> 23);
}

void add_quantized(std::span<const float> values, FixedPoint point, std::uint32_t weight,
                   std::span<std::int64_t> out) {
  STARLING_CHECK_OP(values.size(), ==, out.size());
  // 2^(f - e) lies between 2^-104 and 2^156, so scaling is one exact multiplication in double.
  const int e = static_cast<int>(point.exponent) - kExponentBias;
  add_scaled(values.data(), power_of_two(point.fraction - e), weight, out.data(), values.size());
}

std::int64_t divide_rounded(std::int64_t sum, std::uint64_t weight) {
  STARLING_CHECK(weight >= 1);
  return divide_away(sum, weight);
}

void dequantize(std::span<const std::int64_t> z, FixedPoint point, std::span<float> out) {
  STARLING_CHECK_OP(z.size(), ==, out.size());
  const int e = static_cast<int>(point.exponent) - kExponentBias;
  scale_down(z.data(), power_of_two(e - point.fraction), out.data(), z.size());
}

float moment_about(float mean, float variance, float common_mean) {
  const double away = static_cast<double>(mean) - static_cast<double>(common_mean);
  return static_cast<float>(static_cast<double>(variance) + away * away);
}

}  // namespace starling::gossip::consensus
