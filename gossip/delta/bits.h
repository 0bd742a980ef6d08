// The bits of a value, and strings of bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace starling::gossip {

// The bits of |value|: of two finite values the larger one has the larger bits.
[[nodiscard]] constexpr std::uint32_t abs_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

// Bit i of a string of bits, the lowest of each byte first.
[[nodiscard]] constexpr bool bit_of(const std::uint8_t* bits, std::size_t i) {
  return (bits[i / 8] >> (i % 8) & 1) != 0;
}

}  // namespace starling::gossip
