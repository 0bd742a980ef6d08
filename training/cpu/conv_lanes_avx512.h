// Sixteen floats as one AVX-512 register, for conv_avx512.cc and conv_avx512bf16.cc: each
// has its own copy, because they are compiled for different processors.
#pragma once

#include <immintrin.h>

namespace starling::training {
namespace {

struct Avx512Floats {
  using F = __m512;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F zero() { return _mm512_setzero_ps(); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }

  // 16 lines of 16 columns of 32 bits, turned over.
  static void transpose(__m512i* lines) {
    __m512i at[16];
    __m512i to[16];
    for (int i = 0; i < 16; i += 2) {
      to[i] = _mm512_unpacklo_epi32(lines[i], lines[i + 1]);
      to[i + 1] = _mm512_unpackhi_epi32(lines[i], lines[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      at[i] = _mm512_unpacklo_epi64(to[i], to[i + 2]);
      at[i + 1] = _mm512_unpackhi_epi64(to[i], to[i + 2]);
      at[i + 2] = _mm512_unpacklo_epi64(to[i + 1], to[i + 3]);
      at[i + 3] = _mm512_unpackhi_epi64(to[i + 1], to[i + 3]);
    }
    // at[4 g + c] has, in its quarter q, column 4 q + c of lines 4 g to 4 g + 3.
    for (int c = 0; c < 4; ++c) {
      const __m512i low_even = _mm512_shuffle_i32x4(at[c], at[4 + c], 0x88);
      const __m512i low_odd = _mm512_shuffle_i32x4(at[c], at[4 + c], 0xDD);
      const __m512i high_even = _mm512_shuffle_i32x4(at[8 + c], at[12 + c], 0x88);
      const __m512i high_odd = _mm512_shuffle_i32x4(at[8 + c], at[12 + c], 0xDD);
      lines[c] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
      lines[4 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
      lines[8 + c] = _mm512_shuffle_i32x4(low_even, high_even, 0xDD);
      lines[12 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
    }
  }
};

}  // namespace
}  // namespace starling::training
