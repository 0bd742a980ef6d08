// Numbers of the delta's wire format that every implementation shares (CPU here, CUDA in training).
//
// C++20 and free of Result, so that .cu files can include it. The format itself is described at the
// top of codec.h.
#pragma once

#include "gossip/delta/level.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace starling::gossip {

// Consecutive parameters that share an index space and its centroids.
inline constexpr std::size_t kBlock = 4'096;
// Every tensor starts at a multiple of this many floats: one cache line.
inline constexpr std::size_t kTensorAlignment = 16;
// Parameters that share a scale at L5 and L6; tensors of rank <= 1 below L6.
inline constexpr std::size_t kGroup = 256;
inline constexpr std::size_t kSmallGroup = 64;
// Largest codes of the dense levels: scales are max|d| divided by these.
inline constexpr int kMaxCode4 = 7;
inline constexpr int kMaxCode8 = 127;

// What a sparse level selects in a block: k0 of the ladder; any k in [k0 / 2, 2 k0] is valid.
[[nodiscard]] constexpr bool is_sparse(Level level) { return level <= Level::l2; }
[[nodiscard]] constexpr std::uint32_t nominal_count(Level level) {
  return level == Level::l0 ? 16U : level == Level::l1 ? 64U : 256U;
}
inline constexpr std::uint32_t kMaxSelected = 512;
// Bits of the field that holds k - 1.
[[nodiscard]] constexpr std::uint32_t count_bits(Level level) {
  return static_cast<std::uint32_t>(std::bit_width(2 * nominal_count(level) - 1));
}

// The Rice parameter follows from k, so it costs no bits: about log2(0.7 x the mean gap), which is
// within 0.1 bit an index of the entropy when the selected indices are spread evenly.
[[nodiscard]] constexpr std::uint32_t rice_bits(std::uint32_t k) {
  const std::uint32_t width =
      static_cast<std::uint32_t>(std::bit_width(static_cast<std::uint32_t>(kBlock) * 7 / (10 * k)));
  return width == 0 ? 0 : width - 1;
}
// Longest index stream of k indices: remainders, stops, and quotients that sum to 4,095 / 2^b.
[[nodiscard]] constexpr std::uint32_t max_index_bits(std::uint32_t k) {
  return k * (rice_bits(k) + 1) + ((static_cast<std::uint32_t>(kBlock) - 1) >> rice_bits(k));
}

// A bitmap of the block (4,096 bits) would be the alternative to Rice codes; no level selects so
// many that it could be shorter, even with the worst gaps, so the format has none.
static_assert([] {
  for (std::uint32_t k = 1; k <= kMaxSelected; ++k)
    if (max_index_bits(k) >= kBlock) return false;
  return true;
}());

// bf16: the upper half of a float. Scales and centroids are finite and have no sign.
inline constexpr std::uint16_t kMaxBf16 = 0x7f7f;
[[nodiscard]] constexpr bool is_valid_scale(std::uint16_t bits) { return bits <= kMaxBf16; }
[[nodiscard]] constexpr float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
// Nearest bf16 of a finite value >= 0, ties to even; the largest finite one instead of infinity.
[[nodiscard]] constexpr std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<std::uint16_t>(rounded > kMaxBf16 ? kMaxBf16 : rounded);
}
// Largest scales whose largest code is still finite: 7 s and 127 s never overflow.
inline constexpr std::uint16_t kMaxScale4 = static_cast<std::uint16_t>(
    std::bit_cast<std::uint32_t>(std::bit_cast<float>(0x7f7fffffU) / 7.0F) >> 16);
inline constexpr std::uint16_t kMaxScale8 = static_cast<std::uint16_t>(
    std::bit_cast<std::uint32_t>(std::bit_cast<float>(0x7f7fffffU) / 127.0F) >> 16);

// |d| as an integer at the exponent of the block's largest |d|: 24 bits, truncated (rulings 13).
[[nodiscard]] constexpr std::uint32_t exponent_of(std::uint32_t abs_bits) {
  const std::uint32_t exponent = abs_bits >> 23;
  return exponent == 0 ? 1 : exponent;  // a denormal has the exponent of the smallest normal number
}
[[nodiscard]] constexpr std::uint32_t fixed_point(std::uint32_t abs_bits, std::uint32_t exponent) {
  const std::uint32_t hidden = abs_bits >> 23 == 0 ? 0U : 0x800000U;
  const std::uint32_t shift = exponent - exponent_of(abs_bits);
  return shift > 24 ? 0 : ((abs_bits & 0x7fffffU) | hidden) >> shift;
}
// What one unit of such an integer is worth: 2^(exponent - 150), exact.
[[nodiscard]] constexpr float unit_of(std::uint32_t exponent) {
  return std::bit_cast<float>(exponent >= 24 ? (exponent - 23) << 23 : 1U << (exponent - 1));
}

}  // namespace starling::gossip
