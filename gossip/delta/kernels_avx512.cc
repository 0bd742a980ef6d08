// Sixteen lanes as one AVX-512 register. Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl;
// runs only where kernels_of() found them.
#include "gossip/delta/kernels_simd.h"

#include <immintrin.h>

namespace starling::gossip {

namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  // Two sums, each of every other eight values: one after the other would wait for the addition.
  struct Energy {
    __m512d first;
    __m512d second;
  };

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void store(std::uint32_t* p, I v) { _mm512_storeu_si512(p, v); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static I set(std::uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I max(I a, I b) { return _mm512_max_epu32(a, b); }
  static std::uint32_t reduce_max(I v) { return _mm512_reduce_max_epu32(v); }

  static I abs_bits(F v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
  }
  static std::uint32_t signs(F v) {
    return static_cast<std::uint32_t>(_mm512_movepi32_mask(_mm512_castps_si512(v)));
  }
  static std::uint32_t at_least(I bits, I threshold) {
    return static_cast<std::uint32_t>(_mm512_cmpge_epu32_mask(bits, threshold));
  }
  static void store_indices(std::uint16_t* out, std::uint32_t mask, std::uint32_t base) {
    const I lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const I indices = _mm512_add_epi32(lanes, set(base));
    const I packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), indices);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(packed));
  }

  static Energy no_energy() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static void add_squares(Energy& energy, F v) {
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    energy.first = _mm512_add_pd(energy.first, _mm512_mul_pd(first, first));
    energy.second = _mm512_add_pd(energy.second, _mm512_mul_pd(second, second));
  }
  static void store_energy(double* out, const Energy& energy) {
    _mm512_storeu_pd(out, _mm512_add_pd(energy.first, energy.second));
  }

  static I fixed_point(I bits, I top) {
    const I one = _mm512_set1_epi32(1);
    const I exponent = _mm512_srli_epi32(bits, 23);
    const I hidden = _mm512_slli_epi32(_mm512_min_epu32(exponent, one), 23);
    const I mantissa = _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffff)), hidden);
    // A shift by 32 or more gives zero.
    return _mm512_srlv_epi32(mantissa, _mm512_sub_epi32(top, _mm512_max_epu32(exponent, one)));
  }
  // Exponent bits of 2^power; the power is that of a normal number.
  static F power_of_two(std::uint32_t power) {
    return _mm512_castsi512_ps(set((power + 127) << 23));
  }
  static F as_float(I bits) { return _mm512_castsi512_ps(bits); }
  static I truncated(F value) { return _mm512_cvttps_epi32(value); }
  static I add_masked(I sum, I value, std::uint32_t mask) {
    return _mm512_mask_add_epi32(sum, static_cast<__mmask16>(mask), sum, value);
  }

  static I codes(F ratio, int largest) {
    const I nearest = _mm512_cvtps_epi32(ratio);
    return _mm512_min_epi32(_mm512_max_epi32(nearest, _mm512_set1_epi32(-largest)),
                            _mm512_set1_epi32(largest));
  }
  static void store_bytes(std::uint8_t* out, I codes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(codes));
  }
  static void store_nibbles(std::uint8_t* out, I codes) {
    const __m128i low = _mm_and_si128(_mm512_cvtepi32_epi8(codes), _mm_set1_epi8(0xf));
    const __m128i pairs = _mm_maddubs_epi16(low, _mm_set1_epi16(0x1001));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(pairs, pairs));
  }
  static F load_bytes(const std::uint8_t* in) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  static __m128i nibbles(const std::uint8_t* in) {
    const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in));
    const __m128i mask = _mm_set1_epi8(0xf);
    return _mm_unpacklo_epi8(_mm_and_si128(raw, mask), _mm_and_si128(_mm_srli_epi16(raw, 4), mask));
  }
  static F load_nibbles(const std::uint8_t* in) {
    const __m128i eight = _mm_set1_epi8(8);
    const __m128i codes = _mm_sub_epi8(_mm_xor_si128(nibbles(in), eight), eight);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
  static bool nibble_is_lowest(const std::uint8_t* in) {
    return _mm_movemask_epi8(_mm_cmpeq_epi8(nibbles(in), _mm_set1_epi8(8))) != 0;
  }
  static bool byte_is_lowest(const std::uint8_t* in) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(-128))) != 0;
  }

  static F choose(std::uint32_t mask, F set_value, F clear_value) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), clear_value, set_value);
  }
};

}  // namespace

const Kernels& avx512_kernels() { return SimdKernels<Avx512>::kTable; }

}  // namespace starling::gossip
