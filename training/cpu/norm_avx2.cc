// Sixteen lanes as two AVX2 registers. Compiled with -mavx2; runs only where norm_isa() found it.
#include "training/cpu/norm_loops.h"

#include <immintrin.h>

namespace starling::training {
namespace {

struct Avx2 {
  struct F {
    __m256 low;
    __m256 high;
  };
  static constexpr std::size_t kWide = 2;

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load(const Bf16* p) { return {load8(p), load8(p + 8)}; }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static void store(Bf16* p, F v) {
    const __m256i packed = _mm256_packus_epi32(upper_half(v.low), upper_half(v.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static F set(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F keep(F v, F gate) { return {keep8(v.low, gate.low), keep8(v.high, gate.high)}; }

 private:
  static __m256 load8(const Bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static __m256 keep8(__m256 v, __m256 gate) {
    return _mm256_and_ps(_mm256_cmp_ps(gate, _mm256_setzero_ps(), _CMP_NLE_UQ), v);
  }
  // What vcvtneps2bf16 makes of eight floats: nearest, ties to even; values too small for a normal
  // float are zero, not-a-number stays so.
  static __m256i upper_half(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000));
    const __m256i tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    const __m256i sign = _mm256_and_si256(high, _mm256_set1_epi32(0x8000));
    const __m256i number = _mm256_blendv_epi8(rounded, sign, tiny);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(number, quiet, nan);
  }
};

}  // namespace

template <>
const NormKernels<float>& norm_kernels_avx2<float>() {
  return NormLoops<Avx2, float>::kTable;
}
template <>
const NormKernels<Bf16>& norm_kernels_avx2<Bf16>() {
  return NormLoops<Avx2, Bf16>::kTable;
}

}  // namespace starling::training
