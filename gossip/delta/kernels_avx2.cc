// Sixteen lanes as two AVX2 registers. Compiled with -mavx2; runs only where kernels_of() found it.
#include "gossip/delta/kernels_simd.h"

#include <immintrin.h>

namespace starling::gossip {

namespace {

// The places of the bits of every mask of eight, ascending.
struct Places {
  std::uint8_t of_mask[256][8]{};
  constexpr Places() {
    for (std::size_t mask = 0; mask < 256; ++mask) {
      std::size_t count = 0;
      for (std::uint8_t bit = 0; bit < 8; ++bit)
        if ((mask >> bit & 1U) != 0) of_mask[mask][count++] = bit;
    }
  }
};
constexpr Places kPlaces;

struct Avx2 {
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  // Of the first eight values and of the others.
  struct Energy {
    __m256d a, b;
    __m256d c, d;
  };

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static void store(std::uint32_t* p, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.b);
  }
  static F set(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static I set(std::uint32_t v) { return both(_mm256_set1_epi32(static_cast<int>(v))); }
  static I both(__m256i v) { return {v, v}; }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static I add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I mul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
  static I max(I x, I y) { return {_mm256_max_epu32(x.a, y.a), _mm256_max_epu32(x.b, y.b)}; }
  static std::uint32_t reduce_max(I v) {
    std::uint32_t lanes[8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epu32(v.a, v.b));
    std::uint32_t largest = 0;
    for (const std::uint32_t lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
  }

  static I abs_bits(F v) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_and_si256(_mm256_castps_si256(v.a), mask),
            _mm256_and_si256(_mm256_castps_si256(v.b), mask)};
  }
  static std::uint32_t signs(F v) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(v.a) | _mm256_movemask_ps(v.b) << 8);
  }
  // Both sides are below 2^31, so the signed comparison will do.
  static std::uint32_t at_least(I bits, I threshold) {
    const __m256i below_a = _mm256_cmpgt_epi32(threshold.a, bits.a);
    const __m256i below_b = _mm256_cmpgt_epi32(threshold.b, bits.b);
    return ~signs({_mm256_castsi256_ps(below_a), _mm256_castsi256_ps(below_b)}) & 0xffffU;
  }
  // Writes room for sixteen, whatever the mask.
  static void store_indices(std::uint16_t* out, std::uint32_t mask, std::uint32_t base) {
    const __m128i first = _mm_set1_epi16(static_cast<short>(base));
    const std::uint32_t low = mask & 0xffU;
    store_eight(out, low, first);
    store_eight(out + __builtin_popcount(low), mask >> 8, _mm_add_epi16(first, _mm_set1_epi16(8)));
  }
  static void store_eight(std::uint16_t* out, std::uint32_t mask, __m128i first) {
    const __m128i places = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPlaces.of_mask[mask]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm_add_epi16(_mm_cvtepu8_epi16(places), first));
  }

  static Energy no_energy() {
    const __m256d zero = _mm256_setzero_pd();
    return {zero, zero, zero, zero};
  }
  static void add_squares(__m256d& low, __m256d& high, __m256 v) {
    const __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    low = _mm256_add_pd(low, _mm256_mul_pd(first, first));
    high = _mm256_add_pd(high, _mm256_mul_pd(second, second));
  }
  static void add_squares(Energy& energy, F v) {
    add_squares(energy.a, energy.b, v.a);
    add_squares(energy.c, energy.d, v.b);
  }
  static void store_energy(double* out, const Energy& energy) {
    _mm256_storeu_pd(out, _mm256_add_pd(energy.a, energy.c));
    _mm256_storeu_pd(out + 4, _mm256_add_pd(energy.b, energy.d));
  }

  static __m256i fixed_point(__m256i bits, __m256i top) {
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i exponent = _mm256_srli_epi32(bits, 23);
    const __m256i hidden = _mm256_slli_epi32(_mm256_min_epu32(exponent, one), 23);
    const __m256i mantissa =
        _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff)), hidden);
    // A shift by 32 or more gives zero.
    return _mm256_srlv_epi32(mantissa, _mm256_sub_epi32(top, _mm256_max_epu32(exponent, one)));
  }
  static I fixed_point(I bits, I top) {
    return {fixed_point(bits.a, top.a), fixed_point(bits.b, top.b)};
  }
  // Exponent bits of 2^power; the power is that of a normal number.
  static F power_of_two(std::uint32_t power) {
    const __m256 value =
        _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>((power + 127) << 23)));
    return {value, value};
  }
  static F as_float(I bits) { return {_mm256_castsi256_ps(bits.a), _mm256_castsi256_ps(bits.b)}; }
  static I truncated(F value) {
    return {_mm256_cvttps_epi32(value.a), _mm256_cvttps_epi32(value.b)};
  }
  // All ones in each lane whose bit of the low byte is set.
  static __m256i lanes_of(std::uint32_t mask) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(mask));
    return _mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit);
  }
  static I add_masked(I sum, I value, std::uint32_t mask) {
    return add(sum, {_mm256_and_si256(value.a, lanes_of(mask)),
                     _mm256_and_si256(value.b, lanes_of(mask >> 8))});
  }

  static __m256i codes(__m256 ratio, int largest) {
    return _mm256_min_epi32(
        _mm256_max_epi32(_mm256_cvtps_epi32(ratio), _mm256_set1_epi32(-largest)),
        _mm256_set1_epi32(largest));
  }
  static I codes(F ratio, int largest) {
    return {codes(ratio.a, largest), codes(ratio.b, largest)};
  }
  // Sixteen codes as bytes, in order.
  static __m128i bytes_of(I codes) {
    // packs works within 128-bit halves: the permutation puts its quarters back in order.
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(codes.a, codes.b), 0b11011000);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
  static void store_bytes(std::uint8_t* out, I codes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes_of(codes));
  }
  static void store_nibbles(std::uint8_t* out, I codes) {
    const __m128i low = _mm_and_si128(bytes_of(codes), _mm_set1_epi8(0xf));
    const __m128i pairs = _mm_maddubs_epi16(low, _mm_set1_epi16(0x1001));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(pairs, pairs));
  }
  static F floats_of(__m128i codes) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
  }
  static F load_bytes(const std::uint8_t* in) {
    return floats_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  }
  static __m128i nibbles(const std::uint8_t* in) {
    const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in));
    const __m128i mask = _mm_set1_epi8(0xf);
    return _mm_unpacklo_epi8(_mm_and_si128(raw, mask), _mm_and_si128(_mm_srli_epi16(raw, 4), mask));
  }
  static F load_nibbles(const std::uint8_t* in) {
    const __m128i eight = _mm_set1_epi8(8);
    return floats_of(_mm_sub_epi8(_mm_xor_si128(nibbles(in), eight), eight));
  }
  static bool nibble_is_lowest(const std::uint8_t* in) {
    return _mm_movemask_epi8(_mm_cmpeq_epi8(nibbles(in), _mm_set1_epi8(8))) != 0;
  }
  static bool byte_is_lowest(const std::uint8_t* in) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(-128))) != 0;
  }

  static F choose(std::uint32_t mask, F set_value, F clear_value) {
    return {_mm256_blendv_ps(clear_value.a, set_value.a, _mm256_castsi256_ps(lanes_of(mask))),
            _mm256_blendv_ps(clear_value.b, set_value.b, _mm256_castsi256_ps(lanes_of(mask >> 8)))};
  }
};

}  // namespace

const Kernels& avx2_kernels() { return SimdKernels<Avx2>::kTable; }

}  // namespace starling::gossip
