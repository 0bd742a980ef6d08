// The kernels over sixteen lanes, written once; kernels_avx2.cc and kernels_avx512.cc say what the
// lanes are. Included by those two files only, inside an anonymous namespace's reach: `Lanes` is a
// type of that file, so no two files share an instantiation.
//
// Meaning: kernels_scalar.cc. Multiplies and adds are separate on purpose (never fused).
#pragma once

#include "gossip/delta/kernels.h"
#include "gossip/delta/kernels_dense.h"
#include "gossip/delta/kernels_gaps.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace starling::gossip {

template <class Lanes>
struct SimdKernels {
  using F = typename Lanes::F;            // 16 floats
  using I = typename Lanes::I;            // 16 x 32 bits
  using Energy = typename Lanes::Energy;  // 16 doubles: the lanes of kernels.h
  using Dense = DenseValues<Lanes>;

  // The processor's own prefetching stops at every 4 KiB and has to learn the streams again. A hint
  // for what lies that far ahead (or behind the end: it has no effect there) carries it over: 15 %
  // of an encode.
  static constexpr std::size_t kAhead = 1'024;

  static void store16(std::uint8_t* out, std::uint32_t mask) {
    const auto bits = static_cast<std::uint16_t>(mask);
    std::memcpy(out, &bits, sizeof(bits));
  }
  static std::uint32_t count_of(std::uint32_t mask) {
    return static_cast<std::uint32_t>(__builtin_popcount(mask));
  }

  static DifferenceFacts difference(const float* x, const float* r, std::size_t n, float* d) {
    I largest = Lanes::set(0U);
    Energy energy = Lanes::no_energy();
    for (std::size_t i = 0; i < n; i += 16) {
      __builtin_prefetch(x + i + kAhead, 0, 2);
      __builtin_prefetch(r + i + kAhead, 0, 2);
      const F value = Lanes::sub(Lanes::load(x + i), Lanes::load(r + i));
      Lanes::store(d + i, value);
      largest = Lanes::max(largest, Lanes::abs_bits(value));
      Lanes::add_squares(energy, value);
    }
    return {Lanes::reduce_max(largest), 0, total(energy)};
  }

  // No branch on what was found: one value in sixteen or sixty-four is selected, so every branch
  // would be guessed wrong.
  static DifferenceFacts difference_select(const float* x, const float* r, std::size_t n,
                                           std::uint32_t threshold_bits, Selected out) {
    const I threshold = Lanes::set(threshold_bits);
    I largest = Lanes::set(0U);
    Energy energy = Lanes::no_energy();
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < n; i += 16) {
      __builtin_prefetch(x + i + kAhead, 0, 2);
      __builtin_prefetch(r + i + kAhead, 0, 2);
      const F value = Lanes::sub(Lanes::load(x + i), Lanes::load(r + i));
      Lanes::store(out.d + i, value);
      const I bits = Lanes::abs_bits(value);
      largest = Lanes::max(largest, bits);
      const std::uint32_t mask = Lanes::at_least(bits, threshold);
      Lanes::store_indices(out.indices + count, mask, static_cast<std::uint32_t>(i));
      count += count_of(mask);
      Lanes::add_squares(energy, value);
    }
    return {Lanes::reduce_max(largest), count, total(energy)};
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
      Lanes::store_indices(out + count, mask, static_cast<std::uint32_t>(i));
      count += count_of(mask);
    }
    return count;
  }

  static std::uint32_t max_abs(const float* d, std::size_t n) {
    I largest = Lanes::set(0U);
    for (std::size_t i = 0; i < n; i += 16)
      largest = Lanes::max(largest, Lanes::abs_bits(Lanes::load(d + i)));
    return Lanes::reduce_max(largest);
  }

  // Bit by bit from the highest: it belongs to the result if as many values reach what there is
  // with it. No branch on a value.
  static std::uint32_t kth_largest(const float* d, std::size_t n, std::uint32_t k) {
    std::uint32_t found = 0;
    for (std::uint32_t bit = 1U << 30; bit != 0; bit >>= 1) {
      const I threshold = Lanes::set(found | bit);
      std::uint32_t count = 0;
      for (std::size_t i = 0; i < n; i += 16)
        count += count_of(Lanes::at_least(Lanes::abs_bits(Lanes::load(d + i)), threshold));
      found |= count >= k ? bit : 0U;
    }
    return found;
  }

  // 4,096 / 16 = 256 terms below 2^24 fit the 32 bits of a lane.
  static std::uint64_t total(I sum) {
    std::uint32_t lanes[16];
    Lanes::store(lanes, sum);
    std::uint64_t wide = 0;
    for (const std::uint32_t lane : lanes) wide += lane;
    return wide;
  }

  // fixed_point() of sixteen values. |d| times a power of two is exact, and so is what truncation
  // leaves of it: the shift of the definition in two instructions. The power is no normal float
  // where the exponent is below 24; there the shift itself is carried out.
  struct ByProduct {
    explicit ByProduct(std::uint32_t exponent) : power(Lanes::power_of_two(150 - exponent)) {}
    I operator()(I bits) const {
      return Lanes::truncated(Lanes::mul(Lanes::as_float(bits), power));
    }
    F power;
  };
  struct ByShift {
    explicit ByShift(std::uint32_t exponent) : top(Lanes::set(exponent)) {}
    I operator()(I bits) const { return Lanes::fixed_point(bits, top); }
    I top;
  };

  template <class Fixed>
  static std::uint64_t sum_and_signs_by(const float* d, std::size_t n, Fixed fixed,
                                        std::uint8_t* signs) {
    I sum = Lanes::set(0U);
    for (std::size_t i = 0; i < n; i += 16) {
      const F value = Lanes::load(d + i);
      store16(signs + i / 8, Lanes::signs(value));
      sum = Lanes::add(sum, fixed(Lanes::abs_bits(value)));
    }
    return total(sum);
  }
  static std::uint64_t sum_and_signs(const float* d, std::size_t n, std::uint32_t exponent,
                                     std::uint8_t* signs) {
    return exponent >= 24 ? sum_and_signs_by(d, n, ByProduct(exponent), signs)
                          : sum_and_signs_by(d, n, ByShift(exponent), signs);
  }

  template <class Fixed>
  static FixedSum sum_from_by(const float* d, std::size_t n, Fixed fixed, std::uint32_t from_bits,
                              std::uint8_t* flags) {
    const I threshold = Lanes::set(from_bits);
    I sum = Lanes::set(0U);
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < n; i += 16) {
      const I bits = Lanes::abs_bits(Lanes::load(d + i));
      const std::uint32_t mask = Lanes::at_least(bits, threshold);
      store16(flags + i / 8, mask);
      count += count_of(mask);
      sum = Lanes::add_masked(sum, fixed(bits), mask);
    }
    return {total(sum), count};
  }
  static FixedSum sum_from(const float* d, std::size_t n, std::uint32_t exponent,
                           std::uint32_t from_bits, std::uint8_t* flags) {
    return exponent >= 24 ? sum_from_by(d, n, ByProduct(exponent), from_bits, flags)
                          : sum_from_by(d, n, ByShift(exponent), from_bits, flags);
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
    const typename Dense::Signs source(signs, value);
    for (std::size_t i = 0; i < n; i += 16) Lanes::store(q + i, source.at(i));
  }

  static void expand_two(const std::uint8_t* signs, const std::uint8_t* sizes, std::size_t n,
                         const float low_high[2], float* q) {
    const typename Dense::Two source(signs, sizes, low_high[0], low_high[1]);
    for (std::size_t i = 0; i < n; i += 16) Lanes::store(q + i, source.at(i));
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

  // Where apply_with() takes the values of both deltas from.
  struct Both {
    F low;
    F high;
  };
  struct Written {
    static constexpr std::size_t kTogether = 0;
    const float* lower;
    const float* higher;
    Both at(std::size_t i) const { return {Lanes::load(lower + i), Lanes::load(higher + i)}; }
  };
  struct WrittenOnce {
    static constexpr std::size_t kTogether = 0;
    float* lower;
    float* higher;
    Both at(std::size_t i) const { return {Lanes::load(lower + i), Lanes::load(higher + i)}; }
    void clear(std::size_t i) const {
      const F zero = Lanes::set(0.0F);
      Lanes::store(lower + i, zero);
      Lanes::store(higher + i, zero);
    }
  };
  template <class Values>
  struct Unwritten {
    static constexpr std::size_t kTogether = Values::kTogether;
    Values lower;
    Values higher;
    void enter(std::size_t begin) {
      lower.enter(begin);
      higher.enter(begin);
    }
    Both at(std::size_t i) const { return {lower.at(i), higher.at(i)}; }
  };

  static double apply(const float* lower, const float* higher, std::size_t n, float factor,
                      ReplicaValues to) {
    return apply_with(Written{lower, higher}, n, factor, to);
  }
  static double apply_and_clear(float* lower, float* higher, std::size_t n, float factor,
                                ReplicaValues to) {
    return apply_with(WrittenOnce{lower, higher}, n, factor, to);
  }
  template <class Values>
  static double apply_dense(const DenseBlock& lower, const DenseBlock& higher, std::size_t n,
                            float factor, ReplicaValues to) {
    return apply_with(Unwritten<Values>{{lower, n}, {higher, n}}, n, factor, to);
  }

  template <class Source>
  static double apply_with(Source source, std::size_t n, float factor, ReplicaValues to) {
    float* const x = to.x;
    float* const r = to.r;
    const F scale = Lanes::set(factor);
    const F half = Lanes::set(0.5F);
    const I infinity = Lanes::set(0x7f800000U);
    Energy energy = Lanes::no_energy();
    const auto step = [&](std::size_t i) {
      __builtin_prefetch(x + i + kAhead, 1);
      __builtin_prefetch(r + i + kAhead, 1);
      const auto [low, high] = source.at(i);
      const F apart = Lanes::sub(high, low);
      Lanes::add_squares(energy, apart);
      // All is read before anything is stored: x and r are aligned alike, and some processors hold
      // a load back behind a store whose address has the same low twelve bits.
      const F with_low = Lanes::add(Lanes::load(r + i), Lanes::mul(half, low));
      const F reference = Lanes::add(with_low, Lanes::mul(half, high));
      const F before = Lanes::load(x + i);
      const F after = Lanes::add(before, Lanes::mul(scale, apart));
      const std::uint32_t not_finite = Lanes::at_least(Lanes::abs_bits(after), infinity);
      Lanes::store(x + i, Lanes::choose(not_finite, before, after));
      Lanes::store(r + i, reference);
      if constexpr (requires { source.clear(i); }) source.clear(i);
    };
    if constexpr (Source::kTogether == 0) {
      for (std::size_t i = 0; i < n; i += 16) step(i);
    } else {
      for (std::size_t begin = 0; begin < n; begin += Source::kTogether) {
        source.enter(begin);
        const std::size_t end = n - begin < Source::kTogether ? n : begin + Source::kTogether;
        for (std::size_t i = begin; i < end; i += 16) step(i);
      }
    }
    return total(energy);
  }

  static std::uint32_t ones(const std::uint8_t* bits, std::size_t n, std::uint16_t* out) {
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < n; i += 16) {
      const std::uint32_t mask = Dense::load16(bits + i / 8);
      Lanes::store_indices(out + count, mask, static_cast<std::uint32_t>(i));
      count += count_of(mask);
    }
    return count;
  }

  using Gaps = GapKernels<Lanes>;
  static constexpr Kernels kTable{difference,
                                  difference_select,
                                  select,
                                  max_abs,
                                  kth_largest,
                                  sum_and_signs,
                                  sum_from,
                                  quantize4,
                                  quantize8,
                                  expand_signs,
                                  expand_two,
                                  expand4,
                                  expand8,
                                  has_forbidden4,
                                  has_forbidden8,
                                  distance,
                                  apply,
                                  apply_and_clear,
                                  apply_dense<typename Dense::Signs>,
                                  apply_dense<typename Dense::Two>,
                                  apply_dense<typename Dense::template Codes<4>>,
                                  apply_dense<typename Dense::template Codes<8>>,
                                  Gaps::cut_gaps,
                                  Gaps::pack_flags,
                                  Gaps::join_gaps,
                                  ones};
};

}  // namespace starling::gossip
