// The loops of the codec, one table of functions for each instruction set.
//
// Every function is defined by its result alone, down to the bit, so that the paths can be compared
// with memcmp: integers where there are sums, and where a sum of doubles is needed (energies)
// sixteen lanes by index modulo 16, folded in a fixed order. `n` is a multiple of 16, at most
// kBlock; inputs need no alignment.
//
// This header is compiled with different instruction sets in different files: it must not define a
// function with external linkage, or the linker could keep the AVX-512 copy for everybody.
#pragma once

#include "gossip/delta/isa.h"

#include <cstddef>
#include <cstdint>

namespace starling::gossip {

// What difference() found. max_abs_bits >= 0x7f800000: some d is not finite.
struct DifferenceFacts {
  std::uint32_t max_abs_bits;  // of the largest |d|
  std::uint32_t selected;      // difference_select(): how many |d| reach the threshold
  double energy;               // |d|^2
};

// Where difference_select() writes: n differences, and room for n + 16 indices.
struct Selected {
  float* d;
  std::uint16_t* indices;
};

// Values of a replica and of the reference, as many of each.
struct ReplicaValues {
  float* x;
  float* r;
};

// Where cut_gaps() writes: room for n + 8 of each.
struct CutGaps {
  std::uint16_t* remainders;
  std::uint16_t* places;
};

// Some remainders of a row of gaps: b bits each, 2 to kMostGapBits, the first of the row at bit
// `offset` of a byte, below 8. `begin` is a multiple of 8.
struct GapRow {
  std::uint32_t offset;
  std::uint32_t b;
  std::uint32_t begin;
  std::uint32_t end;
  std::uint32_t sum;  // of the remainders before `begin`
};
inline constexpr std::uint32_t kMostGapBits = 9;

// A dense delta of a block as it lies in its bytes.
struct DenseBlock {
  const std::uint8_t*
      numbers;                 // bf16: of L3 the centroid, of L4 high and low, else a scale a group
  const std::uint8_t* values;  // signs; signs, then sizes; codes of groups whose scale is not 0
};
// apply() of two such blocks of one level, without writing either out.
using ApplyDense = double (*)(const DenseBlock& lower, const DenseBlock& higher, std::size_t n,
                              float factor, ReplicaValues to);

struct FixedSum {
  std::uint64_t sum;
  std::uint32_t count;
};

struct Kernels {
  // d = x - r.
  DifferenceFacts (*difference)(const float* x, const float* r, std::size_t n, float* d);
  // The same and, in the same pass, select().
  DifferenceFacts (*difference_select)(const float* x, const float* r, std::size_t n,
                                       std::uint32_t threshold_bits, Selected out);
  // Indices of all |d| with bits >= the threshold's, ascending; `out` has room for n + 16.
  std::uint32_t (*select)(const float* d, std::size_t n, std::uint32_t threshold_bits,
                          std::uint16_t* out);
  // Bits of the largest |d|.
  std::uint32_t (*max_abs)(const float* d, std::size_t n);
  // Bits of the k-th largest |d|, from 1.
  std::uint32_t (*kth_largest)(const float* d, std::size_t n, std::uint32_t k);
  // Sum of fixed_point(|d|, exponent) over all d, and their sign bits: n / 8 bytes.
  std::uint64_t (*sum_and_signs)(const float* d, std::size_t n, std::uint32_t exponent,
                                 std::uint8_t* signs);
  // The same sum over all |d| with bits >= from_bits, and for each d whether it has: n / 8 bytes.
  FixedSum (*sum_from)(const float* d, std::size_t n, std::uint32_t exponent,
                       std::uint32_t from_bits, std::uint8_t* flags);
  // Codes d / scale, half to even, clamped to +-7 or +-127; returns the sum of their squares.
  std::uint32_t (*quantize4)(const float* d, std::size_t n, float scale, std::uint8_t* out);
  std::uint32_t (*quantize8)(const float* d, std::size_t n, float scale, std::uint8_t* out);
  // q = +-value by sign bit; or +-high, +-low by size bit.
  void (*expand_signs)(const std::uint8_t* signs, std::size_t n, float value, float* q);
  void (*expand_two)(const std::uint8_t* signs, const std::uint8_t* sizes, std::size_t n,
                     const float low_high[2], float* q);
  // q = code * scale.
  void (*expand4)(const std::uint8_t* codes, std::size_t n, float scale, float* q);
  void (*expand8)(const std::uint8_t* codes, std::size_t n, float scale, float* q);
  // True if a code is -8, or -128: no encoder makes it.
  bool (*has_forbidden4)(const std::uint8_t* codes, std::size_t n);
  bool (*has_forbidden8)(const std::uint8_t* codes, std::size_t n);
  // |b - a|^2.
  double (*distance)(const float* a, const float* b, std::size_t n);
  // x += factor (higher - lower), except where that is not finite: x stays there; r += 1/2 lower,
  // then r += 1/2 higher. Returns |higher - lower|^2.
  double (*apply)(const float* lower, const float* higher, std::size_t n, float factor,
                  ReplicaValues to);
  // The same, and then lower and higher are zeros: a sparse delta is written over zeros.
  double (*apply_and_clear)(float* lower, float* higher, std::size_t n, float factor,
                            ReplicaValues to);
  ApplyDense apply_signs;  // L3
  ApplyDense apply_two;    // L4
  ApplyDense apply4;       // L5
  ApplyDense apply8;       // L6
  // The gaps before rising indices, index - index before - 1 from -1 on, cut at bit b: remainders,
  // zeros behind the last, and i plus the sum of the quotients up to and with the i-th.
  void (*cut_gaps)(const std::uint16_t* indices, std::uint32_t k, std::uint32_t b, CutGaps out);
  // Bits of n bytes that are 0 or 1.
  void (*pack_flags)(const std::uint8_t* flags, std::size_t n, std::uint8_t* bits);
  // Index i of [begin, end) from cut gaps: (ones[i] - i) 2^b + i + the sum of the remainders up to
  // and with the i-th. Returns the sum of all. Reads 16 bytes from each eighth remainder on, and
  // eight of `ones`; `out` has room for as many.
  std::uint32_t (*join_gaps)(const std::uint8_t* bits, const GapRow& row, const std::uint16_t* ones,
                             std::uint16_t* out);
  // Places of the ones of a string of n bits, ascending; `out` has room for n + 16.
  std::uint32_t (*ones)(const std::uint8_t* bits, std::size_t n, std::uint16_t* out);
};

// Defined in kernels_<isa>.cc; kernels_of() checks that the processor has it.
const Kernels& scalar_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& kernels_of(Isa isa);

}  // namespace starling::gossip
