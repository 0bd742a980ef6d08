// SparseWriter: one crew makes the bytes of a sparse block of the values that were selected.
//
// How they are selected is block_coder.h's and threshold_coder.h's. The format is described in
// gossip/delta/codec.h.
#pragma once

#include "gossip/delta/centroids.h"
#include "training/cuda/block_shape.h"
#include "training/cuda/crew.h"

#include <bit>
#include <cstdint>

namespace starling::training::cuda {

// Words that hold the bits of any sparse block.
inline constexpr std::uint32_t kStreamWords = 128;
static_assert([] {
  for (std::uint32_t k = 1; k <= gossip::kMaxSelected; ++k)
    if (gossip::count_bits(gossip::Level::l2) + gossip::max_index_bits(k) + 2 * k >
        kStreamWords * 32)
      return false;
  return true;
}());

// What a coder wrote.
struct CoderBytes {
  std::uint32_t size = 0;
  double sent_energy = 0;
};

// What is selected of a block, its indices rising, and the bits that it becomes: some 3.5 KB.
struct SelectedMemory {
  float values[gossip::kMaxSelected];  // d
  std::uint16_t indices[gossip::kMaxSelected];
  std::uint32_t stream[kStreamWords];
};

// Sum and count of those of n values whose |d| is at least `from`; magnitude(i): the bits of |d|.
template <class Crew, class Magnitude>
STARLING_DEVICE gossip::FixedSum sum_from(Crew& crew, std::uint32_t n, std::uint32_t from,
                                          std::uint32_t exponent, Magnitude magnitude) {
  // Both at once: 4,096 integers of 24 bits, and how many they are.
  constexpr unsigned kCountPlace = 40;
  const auto both = crew.template sum<std::uint64_t>(n, [&](std::uint32_t i) {
    const std::uint32_t own = magnitude(i);
    return own >= from ? gossip::fixed_point(own, exponent) | std::uint64_t{1} << kCountPlace
                       : std::uint64_t{0};
  });
  gossip::FixedSum found{};
  found.sum = both & ((std::uint64_t{1} << kCountPlace) - 1);
  found.count = static_cast<std::uint32_t>(both >> kCountPlace);
  return found;
}

// Two bytes of a block.
STARLING_DEVICE inline void put_u16(std::uint8_t* out, std::uint32_t value) {
  out[0] = static_cast<std::uint8_t>(value);
  out[1] = static_cast<std::uint8_t>(value >> 8);
}
// A block that sends nothing; `out` null: BlockCoder::encode().
template <class Crew>
STARLING_DEVICE CoderBytes put_nothing(Crew& crew, std::uint8_t* out) {
  if (out != nullptr) crew.once([&] { put_u16(out, 0); });
  return {2, 0};
}

// Lives in a kernel, a copy in every thread: all members have the same values in all of them.
template <class Crew>
class SparseWriter {
 public:
  STARLING_DEVICE SparseWriter(Crew& crew, SelectedMemory& memory) : crew_(crew), m_(memory) {}

  // Writes the k values that lie in memory, of a block whose largest |d| has these bits. `out` is
  // aligned to four bytes and has room for the stream in whole words.
  STARLING_DEVICE CoderBytes write(gossip::Level level, std::uint32_t k, std::uint32_t largest,
                                   std::uint8_t* out) {
    const std::uint32_t exponent = gossip::exponent_of(largest);
    const auto own = [&](std::uint32_t i) { return magnitude(i); };
    const gossip::FixedSum all = sum_from(crew_, k, 0, exponent, own);
    const std::uint32_t from = gossip::first_above_mean(all, exponent);
    const gossip::FixedSum above = sum_from(crew_, k, from, exponent, own);
    const gossip::Centroids centroids = gossip::centroids_of(all, above, exponent);
    if (centroids.high == 0) return put_nothing(crew_, out);
    const std::uint32_t bytes = make_stream(level, k, from);
    auto* const words = reinterpret_cast<std::uint32_t*>(out);
    crew_.each(1 + (bytes + 3) / 4, [&](std::uint32_t i) {
      words[i] = i == 0 ? centroids.high | static_cast<std::uint32_t>(centroids.low) << 16
                        : m_.stream[i - 1];
    });
    return {4 + bytes, gossip::energy_of(centroids, k - above.count, above.count)};
  }

 private:
  STARLING_DEVICE std::uint32_t bits(std::uint32_t i) const {
    return std::bit_cast<std::uint32_t>(m_.values[i]);
  }
  STARLING_DEVICE std::uint32_t magnitude(std::uint32_t i) const {
    return magnitude_of(m_.values[i]);
  }

  // Count, remainders, quotients, signs, sizes; returns the bytes of the stream.
  STARLING_DEVICE std::uint32_t make_stream(gossip::Level level, std::uint32_t k,
                                            std::uint32_t from) {
    const std::uint32_t b = gossip::rice_bits(k);
    const auto gap = [&](std::uint32_t i) {
      return m_.indices[i] - (i == 0 ? 0U : m_.indices[i - 1] + 1U);
    };
    crew_.each(kStreamWords, [&](std::uint32_t i) { m_.stream[i] = 0; });
    std::uint32_t place = gossip::count_bits(level);
    crew_.each(k, [&](std::uint32_t i) {
      if (i == 0) put_bits(0, k - 1);
      put_bits(place + i * b, gap(i) & ((1U << b) - 1));
    });
    place += k * b;
    const std::uint32_t zeros = crew_.running_sum(
        k, [&](std::uint32_t i) { return gap(i) >> b; },
        [&](std::uint32_t i, std::uint32_t before, std::uint32_t own) {
          put_bits(place + before + own + i, 1);
        });
    place += zeros + k;
    crew_.each(k, [&](std::uint32_t i) {
      put_bits(place + i, bits(i) >> 31);
      put_bits(place + k + i, magnitude(i) >= from ? 1 : 0);
    });
    return (place + 2 * k + 7) / 8;
  }

  // At most 32 bits; only ones are written.
  STARLING_DEVICE void put_bits(std::uint32_t place, std::uint32_t value) {
    const std::uint64_t shifted = std::uint64_t{value} << (place % 32);
    const auto low = static_cast<std::uint32_t>(shifted);
    const auto high = static_cast<std::uint32_t>(shifted >> 32);
    if (low != 0) crew_.set_bits(m_.stream[place / 32], low);
    if (high != 0) crew_.set_bits(m_.stream[place / 32 + 1], high);
  }

  Crew& crew_;
  SelectedMemory& m_;
};

}  // namespace starling::training::cuda
