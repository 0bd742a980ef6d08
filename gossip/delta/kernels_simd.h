// The kernels over sixteen lanes, written once; kernels_avx2.cc and kernels_avx512.cc say what the
// lanes are. Included by those two files only, inside an anonymous namespace's reach: `Lanes` is a
// type of that file, so no two files share an instantiation.
//
// Meaning: kernels_scalar.cc. Multiplies and adds are separate on purpose (never fused).
#pragma once

#include "gossip/delta/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace starling::gossip {

template <class Lanes>
struct SimdKernels {
  using F = typename Lanes::F;            // 16 floats
  using I = typename Lanes::I;            // 16 x 32 bits
  using Energy = typename Lanes::Energy;  // 8 doubles: the lanes of kernels.h

  static void store16(std::uint8_t* out, std::uint32_t mask) {
    const auto bits = static_cast<std::uint16_t>(mask);
    std::memcpy(out, &bits, sizeof(bits));
  }
  static std::uint32_t load16(const std::uint8_t* in) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, in, sizeof(bits));
    return bits;
  }
  static std::uint32_t ones(std::uint32_t mask) {
    return static_cast<std::uint32_t>(__builtin_popcount(mask));
  }

  static DifferenceFacts difference(const float* x, const float* r, std::size_t n,
                                    std::uint32_t threshold_bits, float* d) {
    const I threshold = Lanes::set(threshold_bits);
    I largest = Lanes::set(0U);
    Energy energy = Lanes::no_energy();
    std::uint32_t at_least = 0;
    for (std::size_t i = 0; i < n; i += 16) {
      const F value = Lanes::sub(Lanes::load(x + i), Lanes::load(r + i));
      Lanes::store(d + i, value);
      const I bits = Lanes::abs_bits(value);
      largest = Lanes::max(largest, bits);
      at_least += ones(Lanes::at_least(bits, threshold));
      Lanes::add_squares(energy, value);
    }
    return {Lanes::reduce_max(largest), at_least, total(energy)};
  }

  static double total(const Energy& energy) {
    double lanes[8];
    Lanes::store_energy(lanes, energy);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }

  static std::uint32_t select(const float* d, std::size_t n, std::uint32_t threshold_bits,
                              std::uint16_t* out) {
    const I threshold = Lanes::set(threshold_bits);
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < n; i += 16) {
      const std::uint32_t mask = Lanes::at_least(Lanes::abs_bits(Lanes::load(d + i)), threshold);
      if (mask == 0) continue;
      Lanes::store_indices(out + count, mask, static_cast<std::uint32_t>(i));
      count += ones(mask);
    }
    return count;
  }

  static std::uint32_t max_abs(const float* d, std::size_t n) {
    I largest = Lanes::set(0U);
    for (std::size_t i = 0; i < n; i += 16)
      largest = Lanes::max(largest, Lanes::abs_bits(Lanes::load(d + i)));
    return Lanes::reduce_max(largest);
  }

  // 4,096 / 16 = 256 terms below 2^24 fit the 32 bits of a lane.
  static FixedSum fixed_sum(const float* d, std::size_t n, std::uint32_t exponent,
                            std::uint32_t from_bits) {
    const I threshold = Lanes::set(from_bits);
    const I top = Lanes::set(exponent);
    I sum = Lanes::set(0U);
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < n; i += 16) {
      const I bits = Lanes::abs_bits(Lanes::load(d + i));
      const std::uint32_t mask = Lanes::at_least(bits, threshold);
      count += ones(mask);
      sum = Lanes::add_masked(sum, Lanes::fixed_point(bits, top), mask);
    }
    std::uint32_t lanes[16];
    Lanes::store(lanes, sum);
    std::uint64_t wide = 0;
    for (const std::uint32_t lane : lanes) wide += lane;
    return {wide, count};
  }

  static void pack_signs(const float* d, std::size_t n, std::uint8_t* out) {
    for (std::size_t i = 0; i < n; i += 16) store16(out + i / 8, Lanes::signs(Lanes::load(d + i)));
  }

  static void pack_at_least(const float* d, std::size_t n, std::uint32_t threshold_bits,
                            std::uint8_t* out) {
    const I threshold = Lanes::set(threshold_bits);
    for (std::size_t i = 0; i < n; i += 16)
      store16(out + i / 8, Lanes::at_least(Lanes::abs_bits(Lanes::load(d + i)), threshold));
  }

  static std::uint32_t sum_of(I squares) {
    std::uint32_t lanes[16];
    Lanes::store(lanes, squares);
    std::uint32_t sum = 0;
    for (const std::uint32_t lane : lanes) sum += lane;
    return sum;
  }

  static std::uint32_t quantize4(const float* d, std::size_t n, float scale, std::uint8_t* out) {
    const F divisor = Lanes::set(scale);
    I squares = Lanes::set(0U);
    for (std::size_t i = 0; i < n; i += 16) {
      const I codes = Lanes::codes(Lanes::div(Lanes::load(d + i), divisor), 7);
      squares = Lanes::add(squares, Lanes::mul(codes, codes));
      Lanes::store_nibbles(out + i / 2, codes);
    }
    return sum_of(squares);
  }

  static std::uint32_t quantize8(const float* d, std::size_t n, float scale, std::uint8_t* out) {
    const F divisor = Lanes::set(scale);
    I squares = Lanes::set(0U);
    for (std::size_t i = 0; i < n; i += 16) {
      const I codes = Lanes::codes(Lanes::div(Lanes::load(d + i), divisor), 127);
      squares = Lanes::add(squares, Lanes::mul(codes, codes));
      Lanes::store_bytes(out + i, codes);
    }
    return sum_of(squares);
  }

  static void expand_signs(const std::uint8_t* signs, std::size_t n, float value, float* q) {
    const F plus = Lanes::set(value);
    const F minus = Lanes::set(-value);
    for (std::size_t i = 0; i < n; i += 16)
      Lanes::store(q + i, Lanes::choose(load16(signs + i / 8), minus, plus));
  }

  static void expand_two(const std::uint8_t* signs, const std::uint8_t* sizes, std::size_t n,
                         const float low_high[2], float* q) {
    const F low = Lanes::set(low_high[0]);
    const F high = Lanes::set(low_high[1]);
    const F minus_low = Lanes::set(-low_high[0]);
    const F minus_high = Lanes::set(-low_high[1]);
    for (std::size_t i = 0; i < n; i += 16) {
      const std::uint32_t size = load16(sizes + i / 8);
      const F plus = Lanes::choose(size, high, low);
      const F minus = Lanes::choose(size, minus_high, minus_low);
      Lanes::store(q + i, Lanes::choose(load16(signs + i / 8), minus, plus));
    }
  }

  static void expand4(const std::uint8_t* codes, std::size_t n, float scale, float* q) {
    const F factor = Lanes::set(scale);
    for (std::size_t i = 0; i < n; i += 16)
      Lanes::store(q + i, Lanes::mul(Lanes::load_nibbles(codes + i / 2), factor));
  }

  static void expand8(const std::uint8_t* codes, std::size_t n, float scale, float* q) {
    const F factor = Lanes::set(scale);
    for (std::size_t i = 0; i < n; i += 16)
      Lanes::store(q + i, Lanes::mul(Lanes::load_bytes(codes + i), factor));
  }

  static bool has_forbidden4(const std::uint8_t* codes, std::size_t n) {
    bool found = false;
    for (std::size_t i = 0; i < n; i += 16) found |= Lanes::nibble_is_lowest(codes + i / 2);
    return found;
  }

  static bool has_forbidden8(const std::uint8_t* codes, std::size_t n) {
    bool found = false;
    for (std::size_t i = 0; i < n; i += 16) found |= Lanes::byte_is_lowest(codes + i);
    return found;
  }

  static double distance(const float* a, const float* b, std::size_t n) {
    Energy energy = Lanes::no_energy();
    for (std::size_t i = 0; i < n; i += 16)
      Lanes::add_squares(energy, Lanes::sub(Lanes::load(b + i), Lanes::load(a + i)));
    return total(energy);
  }

  static void add_increment(const float* own, const float* theirs, std::size_t n, float factor,
                            float* x) {
    const F scale = Lanes::set(factor);
    const I infinity = Lanes::set(0x7f800000U);
    for (std::size_t i = 0; i < n; i += 16) {
      const F before = Lanes::load(x + i);
      const F step = Lanes::mul(scale, Lanes::sub(Lanes::load(theirs + i), Lanes::load(own + i)));
      const F after = Lanes::add(before, step);
      const std::uint32_t not_finite = Lanes::at_least(Lanes::abs_bits(after), infinity);
      Lanes::store(x + i, Lanes::choose(not_finite, before, after));
    }
  }

  static void add_halves(const float* lower, const float* higher, std::size_t n, float* r) {
    const F half = Lanes::set(0.5F);
    for (std::size_t i = 0; i < n; i += 16) {
      const F first = Lanes::add(Lanes::load(r + i), Lanes::mul(half, Lanes::load(lower + i)));
      Lanes::store(r + i, Lanes::add(first, Lanes::mul(half, Lanes::load(higher + i))));
    }
  }

  static constexpr Kernels kTable{
      difference,     select,         max_abs,      fixed_sum,     pack_signs, pack_at_least,
      quantize4,      quantize8,      expand_signs, expand_two,    expand4,    expand8,
      has_forbidden4, has_forbidden8, distance,     add_increment, add_halves};
};

}  // namespace starling::gossip
