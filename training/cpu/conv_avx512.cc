// Sixteen lanes as one AVX-512 register. Compiled with -mavx512f -mavx512bw -mavx512dq
// -mavx512vl; runs only where conv_kernels() found them.
#include "training/cpu/conv_lanes_avx512.h"
#include "training/cpu/conv_loops.h"

#include <immintrin.h>

namespace starling::training {
namespace {

struct Floats : Avx512Floats {
  using Element = float;
  using P = F;
  static constexpr std::size_t kWide = 4;

  static P factors(const float* p) { return load(p); }
  static P broadcast(const float* p) { return set(*p); }
  static F dot(F sum, P a, P b) { return _mm512_fmadd_ps(a, b, sum); }
  static P beside(F first, F /*first again*/) { return first; }
  static P interleave(const float* first, const float* /*first again*/) { return load(first); }
  static P behind(F first, F /*first again*/) { return first; }
  static void transpose(P* lines) {
    __m512i at[16];
    for (int i = 0; i < 16; ++i) at[i] = _mm512_castps_si512(lines[i]);
    Avx512Floats::transpose(at);
    for (int i = 0; i < 16; ++i) lines[i] = _mm512_castsi512_ps(at[i]);
  }
};

}  // namespace

const ConvKernels<float>& conv_kernels_avx512() { return ConvLoops<Floats>::kTable; }

}  // namespace starling::training
