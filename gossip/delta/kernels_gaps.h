// The kernels of sparse streams over eight lanes of sixteen bits, in registers that both x86 paths
// have. Included by kernels_simd.h alone; `Lanes` keeps the instantiations of two files apart.
//
// Meaning: kernels_scalar.cc.
#pragma once

#include "gossip/delta/kernels.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace starling::gossip {

template <class Lanes>
struct GapKernels {
  static __m128i load(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  }
  static void store(void* to, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(to), v); }
  static __m128i set(std::uint32_t value) { return _mm_set1_epi16(static_cast<short>(value)); }
  static __m128i count(std::uint32_t bits) { return _mm_cvtsi32_si128(static_cast<int>(bits)); }
  // The numbers of eight lanes from `first` on.
  static __m128i numbers(std::uint32_t first) {
    return _mm_add_epi16(_mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7), set(first));
  }
  // Each lane plus all below it.
  static __m128i running_sums(__m128i v) {
    v = _mm_add_epi16(v, _mm_slli_si128(v, 2));
    v = _mm_add_epi16(v, _mm_slli_si128(v, 4));
    return _mm_add_epi16(v, _mm_slli_si128(v, 8));
  }
  // The last lane in all of them.
  static __m128i last(__m128i v) { return _mm_shuffle_epi8(v, _mm_set1_epi16(0x0f0e)); }

  static void cut_gaps(const std::uint16_t* indices, std::uint32_t k, std::uint32_t b,
                       CutGaps out) {
    const __m128i mask = set((1U << b) - 1);
    const __m128i all = set(k);
    __m128i before = _mm_srli_si128(set(0xffffU), 14);  // the index before the first is -1
    __m128i sum = _mm_setzero_si128();                  // of the quotients so far
    for (std::uint32_t i = 0; i < k; i += 8) {
      std::uint16_t tail[8] = {};
      const std::uint16_t* from = indices + i;
      if (k - i < 8) {
        std::memcpy(tail, from, (k - i) * sizeof(tail[0]));
        from = tail;
      }
      const __m128i index = load(from);
      const __m128i number = numbers(i);
      const __m128i previous = _mm_or_si128(_mm_slli_si128(index, 2), before);
      before = _mm_srli_si128(index, 14);
      const __m128i gap = _mm_sub_epi16(_mm_sub_epi16(index, previous), _mm_set1_epi16(1));
      const __m128i there = _mm_cmpgt_epi16(all, number);
      store(out.remainders + i, _mm_and_si128(_mm_and_si128(gap, mask), there));
      const __m128i quotients = _mm_and_si128(_mm_srl_epi16(gap, count(b)), there);
      const __m128i sums = _mm_add_epi16(running_sums(quotients), sum);
      sum = last(sums);
      store(out.places + i, _mm_add_epi16(sums, number));
    }
  }

  static void pack_flags(const std::uint8_t* flags, std::size_t n, std::uint8_t* bits) {
    for (std::size_t i = 0; i < n; i += 16) {
      const auto mask = static_cast<std::uint16_t>(
          _mm_movemask_epi8(_mm_cmpgt_epi8(load(flags + i), _mm_setzero_si128())));
      std::memcpy(bits + i / 8, &mask, sizeof(mask));
    }
  }

  static std::uint32_t join_gaps(const std::uint8_t* bits, const GapRow& row,
                                 const std::uint16_t* ones, std::uint16_t* out) {
    // Eight remainders take b bytes, so the first of each eight begins at the same bit of a byte.
    // A lane takes the two bytes that its remainder lies in, moves it to the top and down again.
    const auto [offset, b, begin, end, sum_before] = row;
    const __m128i place = _mm_add_epi16(_mm_mullo_epi16(numbers(0), set(b)), set(offset));
    const __m128i byte = _mm_srli_epi16(place, 3);
    const __m128i two_bytes =
        _mm_add_epi16(_mm_or_si128(byte, _mm_slli_epi16(byte, 8)), _mm_set1_epi16(0x0100));
    const __m128i powers = _mm_setr_epi8(-128, 64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i bit = _mm_or_si128(_mm_and_si128(place, _mm_set1_epi16(7)), set(0x8000U));
    const __m128i up = _mm_sll_epi16(_mm_shuffle_epi8(powers, bit), count(9 - b));
    const __m128i down = count(16 - b);
    const __m128i all = set(end);
    __m128i sum = set(sum_before);
    for (std::uint32_t i = begin; i < end; i += 8) {
      const __m128i number = numbers(i);
      const __m128i words = _mm_shuffle_epi8(load(bits + std::size_t{i} / 8 * b), two_bytes);
      const __m128i remainder = _mm_and_si128(_mm_srl_epi16(_mm_mullo_epi16(words, up), down),
                                              _mm_cmpgt_epi16(all, number));
      const __m128i sums = _mm_add_epi16(running_sums(remainder), sum);
      sum = last(sums);
      const __m128i quotients = _mm_sll_epi16(_mm_sub_epi16(load(ones + i), number), count(b));
      store(out + i, _mm_add_epi16(_mm_add_epi16(quotients, number), sums));
    }
    return static_cast<std::uint16_t>(_mm_extract_epi16(sum, 0));
  }
};

}  // namespace starling::gossip
