// Sixteen lanes as one AVX-512 register. Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl
// -mavx512bf16; runs only where norm_isa() found them.
#include "training/cpu/norm_loops.h"

#include <immintrin.h>

namespace starling::training {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr std::size_t kWide = 4;

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
  static F set(float v) { return _mm512_set1_ps(v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  // v where the gate is above zero or not a number, else zero.
  static F keep(F v, F gate) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(gate, _mm512_setzero_ps(), _CMP_NLE_UQ), v);
  }
};

}  // namespace

template <>
const NormKernels<float>& norm_kernels_avx512<float>() {
  return NormLoops<Avx512, float>::kTable;
}
template <>
const NormKernels<Bf16>& norm_kernels_avx512<Bf16>() {
  return NormLoops<Avx512, Bf16>::kTable;
}

}  // namespace starling::training
