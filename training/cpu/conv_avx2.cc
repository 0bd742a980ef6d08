// Sixteen lanes as two AVX2 registers. Compiled with -mavx2 -mfma; runs only where
// conv_kernels() found them.
#include "training/cpu/conv_loops.h"

#include <immintrin.h>

namespace starling::training {
namespace {

struct Halves {
  using Element = float;
  struct F {
    __m256 low;
    __m256 high;
  };
  using P = F;
  static constexpr std::size_t kWide = 1;  // 12 registers of sums, of 16

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, const F& v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static F add(const F& a, const F& b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static F sub(const F& a, const F& b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  static F mul(const F& a, const F& b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static P factors(const float* p) { return load(p); }
  static P broadcast(const float* p) { return set(*p); }
  static F dot(const F& sum, const P& a, const P& b) {
    return {_mm256_fmadd_ps(a.low, b.low, sum.low), _mm256_fmadd_ps(a.high, b.high, sum.high)};
  }
  static P beside(const F& first, const F& /*first again*/) { return first; }
  static P interleave(const float* first, const float* /*first again*/) { return load(first); }
  static P behind(const F& first, const F& /*first again*/) { return first; }
  static void transpose(P* lines) {
    __m256 quarters[4][8];
    for (std::size_t i = 0; i < 8; ++i) {
      quarters[0][i] = lines[i].low;
      quarters[1][i] = lines[8 + i].low;
      quarters[2][i] = lines[i].high;
      quarters[3][i] = lines[8 + i].high;
    }
    for (auto& quarter : quarters) turn_over(quarter);
    for (std::size_t i = 0; i < 8; ++i) {
      lines[i] = {quarters[0][i], quarters[1][i]};
      lines[8 + i] = {quarters[2][i], quarters[3][i]};
    }
  }

 private:
  // 8 lines of 8 columns.
  static void turn_over(__m256* lines) {
    __m256 at[8];
    for (std::size_t i = 0; i < 8; i += 4) {
      const __m256 low = _mm256_unpacklo_ps(lines[i], lines[i + 1]);
      const __m256 high = _mm256_unpackhi_ps(lines[i], lines[i + 1]);
      const __m256 next_low = _mm256_unpacklo_ps(lines[i + 2], lines[i + 3]);
      const __m256 next_high = _mm256_unpackhi_ps(lines[i + 2], lines[i + 3]);
      at[i] = _mm256_shuffle_ps(low, next_low, 0x44);
      at[i + 1] = _mm256_shuffle_ps(low, next_low, 0xEE);
      at[i + 2] = _mm256_shuffle_ps(high, next_high, 0x44);
      at[i + 3] = _mm256_shuffle_ps(high, next_high, 0xEE);
    }
    // at[4 g + c] has, in its half h, column 4 h + c of lines 4 g to 4 g + 3.
    for (std::size_t c = 0; c < 4; ++c) {
      lines[c] = _mm256_permute2f128_ps(at[c], at[4 + c], 0x20);
      lines[4 + c] = _mm256_permute2f128_ps(at[c], at[4 + c], 0x31);
    }
  }
};

}  // namespace

const ConvKernels<float>& conv_kernels_avx2() { return ConvLoops<Halves>::kTable; }

}  // namespace starling::training
