// The integer arithmetic that makes a mean the same on every machine, in every order.
//
// Symbols: y a member's value, w its weight, W the sum of weights, e the exponent of a block,
//          f the fraction bits, 24 of parameters and 30 of statistics,
//          Y = llrint(ldexp(y, f - e)) its fixed-point value, |Y| < 2^f, S = sum of w Y,
//          Z = S / W rounded half away from zero, x* = (float) ldexp(Z, e - f).
// Integer addition is associative and commutative, so any order, any tree and any number of threads
// give the same S; division and the one conversion to fp32 happen at one place, from integers.
//
// With 24 fraction bits Y holds every bit of a value in the block's upper binade, |Z| < 2^24 is an
// fp32 number as it is, and x* is within 2^(e - 24) of the exact mean: 2^-23 of the
// block's largest value at most (node/decisions/0024).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling::gossip::consensus {

// Difference between a biased exponent byte and e in frexp's convention, |y| < 2^e (rulings 19).
inline constexpr int kExponentBias = 126;
// Fraction bits of a parameter, and of a BatchNorm statistic, which has its exponent for itself.
inline constexpr int kParameterBits = 24;
inline constexpr int kStatisticBits = 30;

// How the values of a block are written as integers.
struct FixedPoint {
  std::uint8_t exponent = 0;  // biased, at least block_exponent() of the values
  int fraction = kParameterBits;
};
// The largest value of a num_batches_tracked: 2^40 batches are 10^4 years at 3 a second.
inline constexpr std::int64_t kMaxCounter = std::int64_t{1} << 40;

// Largest biased exponent byte of the values: 0 to 254, or 255 where one is infinite or no number.
[[nodiscard]] std::uint8_t block_exponent(std::span<const float> values);

// out[k] += weight * Y(values[k]).
//
// Rule:    the exponent is at least block_exponent(values).
void add_quantized(std::span<const float> values, FixedPoint point, std::uint32_t weight,
                   std::span<std::int64_t> out);

// Z = S / W, rounded half away from zero; W >= 1.
[[nodiscard]] std::int64_t divide_rounded(std::int64_t sum, std::uint64_t weight);

// x* of each Z: exact in double, at most one rounding to fp32.
void dequantize(std::span<const std::int64_t> z, FixedPoint point, std::span<float> out);

// The second moment of one member about the common mean, v + (m - mean)^2 (rulings 18).
[[nodiscard]] float moment_about(float mean, float variance, float common_mean);

}  // namespace starling::gossip::consensus
