// Pairs of bf16 as lanes. Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16;
// runs only where conv_kernels() found them.
#include "training/cpu/conv_lanes_avx512.h"
#include "training/cpu/conv_loops.h"

#include <immintrin.h>

namespace starling::training {
namespace {

struct Pairs : Avx512Floats {
  using Element = Bf16;
  using P = __m512bh;
  static constexpr std::size_t kWide = 4;

  using Avx512Floats::load;
  using Avx512Floats::store;
  static F load(const Bf16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void store(Bf16* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), nearest(v));
  }
  static void store(Bf16* p, P v) { _mm512_storeu_si512(p, reinterpret_cast<__m512i>(v)); }
  static P factors(const Bf16* p) { return reinterpret_cast<P>(_mm512_loadu_si512(p)); }
  static P broadcast(const Bf16* pair) {
    return reinterpret_cast<P>(_mm512_broadcastd_epi32(_mm_loadu_si32(pair)));
  }
  static F dot(F sum, P a, P b) { return _mm512_dpbf16_ps(sum, a, b); }
  // Lane by lane.
  static P beside(F first, F second) {
    const __m512i low = _mm512_cvtepu16_epi32(nearest(first));
    const __m512i high = _mm512_cvtepu16_epi32(nearest(second));
    return reinterpret_cast<P>(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
  // The same of values as they are; of a row that is not there, zeros.
  static P interleave(const Bf16* first, const Bf16* second) {
    return reinterpret_cast<P>(
        _mm512_or_si512(low_halves(first), _mm512_slli_epi32(low_halves(second), 16)));
  }
  // All of first, then all of second.
  static P behind(F first, F second) { return _mm512_cvtne2ps_pbh(second, first); }
  static void transpose(P* lines) {
    __m512i at[16];
    for (int i = 0; i < 16; ++i) at[i] = reinterpret_cast<__m512i>(lines[i]);
    Avx512Floats::transpose(at);
    for (int i = 0; i < 16; ++i) lines[i] = reinterpret_cast<P>(at[i]);
  }

 private:
  static __m512i low_halves(const Bf16* p) {
    if (p == nullptr) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m256i nearest(F v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
};

}  // namespace

const ConvKernels<Bf16>& conv_kernels_avx512bf16() { return ConvLoops<Pairs>::kTable; }

}  // namespace starling::training
