// The bits of a value, and strings of bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace starling::gossip {

// The bits of |value|: of two finite values the larger one has the larger bits.
[[nodiscard]] constexpr std::uint32_t abs_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

// Bit i of a string of bits, the lowest of each byte first.
[[nodiscard]] constexpr bool bit_of(const std::uint8_t* bits, std::size_t i) {
  return (bits[i / 8] >> (i % 8) & 1) != 0;
}

// How many bits one put() takes at most: what is left of a word when up to seven are waiting.
inline constexpr std::uint32_t kPutBits = 56;

[[nodiscard]] inline std::uint64_t load_u64(const std::uint8_t* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}
// The bits from a place on, the lowest first, 57 of them at least.
[[nodiscard]] inline std::uint64_t load_bits(const std::uint8_t* bytes, std::size_t place) {
  return load_u64(bytes + place / 8) >> place % 8;
}

// Appends bits from the lowest bit of each byte upwards. Every put writes a whole word, for which
// there must be room, and moves on by the bytes that are full: no branch, so nothing to guess.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* out) : begin_(out), at_(out) {}

  // Units:   count <= 56; the bits of value above count are zero.
  void put(std::uint64_t value, std::uint32_t count) {
    word_ |= value << filled_;
    std::memcpy(at_, &word_, sizeof(word_));
    filled_ += count;
    at_ += filled_ / 8;
    word_ >>= filled_ / 8 * 8;
    filled_ %= 8;
  }
  // Bits above the last are zero.
  void put_all(const std::uint8_t* bits, std::uint32_t count) {
    for (; count > kPutBits; count -= kPutBits, bits += kPutBits / 8)
      put(load_u64(bits) & ((std::uint64_t{1} << kPutBits) - 1), kPutBits);
    put(load_u64(bits) & ((std::uint64_t{1} << count) - 1), count);
  }
  // What is not a whole byte yet; returns the bytes of all.
  [[nodiscard]] std::size_t finish() {
    std::memcpy(at_, &word_, sizeof(word_));
    return static_cast<std::size_t>(at_ - begin_) + (filled_ + 7) / 8;
  }

 private:
  std::uint8_t* begin_;
  std::uint8_t* at_;
  std::uint64_t word_ = 0;
  std::uint32_t filled_ = 0;
};

}  // namespace starling::gossip
