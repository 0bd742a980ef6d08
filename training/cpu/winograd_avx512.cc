// Sixteen lanes as one AVX-512 register. Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl
// -mavx512bf16; runs only where winograd_available() found them.
#include "training/cpu/winograd_loops.h"

#include <immintrin.h>

namespace starling::training {
namespace {

struct Avx512 {
  using F = __m512;
  using P = __m512bh;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const Bf16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void store(Bf16* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
  }
  static void store(Bf16* p, P v) { _mm512_storeu_si512(p, reinterpret_cast<__m512i>(v)); }
  static P load_pairs(const Bf16* p) { return reinterpret_cast<P>(_mm512_loadu_si512(p)); }
  static P broadcast(const Bf16* pair) {
    return reinterpret_cast<P>(_mm512_set1_ps(*reinterpret_cast<const float*>(pair)));
  }
  static F zero() { return _mm512_setzero_ps(); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F dot(F sum, P a, P b) { return _mm512_dpbf16_ps(sum, a, b); }
  // Lane by lane: first beside second.
  static P pairs(F first, F second) {
    const __m512i low = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(first)));
    const __m512i high =
        _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(second)));
    return reinterpret_cast<P>(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
  // All of low, then all of high.
  static P join(F low, F high) { return _mm512_cvtne2ps_pbh(high, low); }

  // 16 lines of 16 pairs, turned over.
  static void transpose(P* lines) {
    __m512i at[16];
    __m512i to[16];
    for (int i = 0; i < 16; ++i) at[i] = reinterpret_cast<__m512i>(lines[i]);
    for (int i = 0; i < 16; i += 2) {
      to[i] = _mm512_unpacklo_epi32(at[i], at[i + 1]);
      to[i + 1] = _mm512_unpackhi_epi32(at[i], at[i + 1]);
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
      to[c] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
      to[4 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
      to[8 + c] = _mm512_shuffle_i32x4(low_even, high_even, 0xDD);
      to[12 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
    }
    for (int i = 0; i < 16; ++i) lines[i] = reinterpret_cast<P>(to[i]);
  }
};

}  // namespace

const WinogradKernels& winograd_kernels_avx512() { return WinogradLoops<Avx512>::kTable; }

}  // namespace starling::training
