// The loops of Winograd's convolution in bf16, as a table of functions.
//
// Symbols (Lavin & Gray 2016, section 4.1, F(2 x 2, 3 x 3)): a tile is 2 x 2 pixels of the output
// and the 4 x 4 of the input that they see; transformed, a tile or a 3 x 3 kernel is 16 values, one
// for each point: U of the weights, V of the input, M of the output. For each point a convolution
// is one matrix product, M = V U, over channels, with 16 multiplications where the definition
// takes 36. What is multiplied is rounded to bf16, all other arithmetic and all sums are fp32.
//
// Strides count values, not bytes. Channels are multiples of 64.
//
// This header is compiled with different instruction sets in different files: it must not define a
// function with external linkage, or the linker could keep the AVX-512 copy for everybody.
#pragma once

#include "training/optimizer.h"

#include <cstddef>

namespace starling::training {

constexpr std::size_t kWinogradPoints = 16;
// Outputs of one product; what U is cut into.
constexpr std::size_t kWinogradPanel = 64;

// Pixels of one tile, row by row: 16 of an input, 4 of an output. None is null: what lies outside
// the image points to zeros.
using TilePixels = const Bf16* const*;

// Where the transformed values of two tiles go, each channel's beside one another: blocks of
// `width` channels, in which one pair of tiles follows the other.
struct TilePairs {
  Bf16* to;  // of this pair, first point, first block
  std::size_t width;
  std::size_t block_stride;
  std::size_t point_stride;
};

// out[r][0..63] (+)= sum over k of a[r][2k] b[k][..][0] + a[r][2k + 1] b[k][..][1].
struct WinogradProduct {
  const Bf16* a;
  std::size_t row_stride;
  std::size_t pair_stride;
  const Bf16* b;  // pairs x 64 x 2
  std::size_t pairs;
  float* out;
  std::size_t out_stride;
  std::size_t rows;
  bool add;  // to what is in out
};

struct WinogradKernels {
  // V of one tile: to[point * point_stride + channel].
  void (*input_tile)(TilePixels pixels, std::size_t channels, Bf16* to, std::size_t point_stride);
  // V of two tiles (2 x 16 pixels), and what a gradient of the output is transformed to (2 x 4).
  void (*input_pair)(TilePixels pixels, std::size_t channels, const TilePairs& to);
  void (*gradient_pair)(TilePixels pixels, std::size_t channels, const TilePairs& to);
  // U of all weights (outputs x 9 x inputs), as products want them: panels of 64 channels of what
  // comes out x points x pairs of channels of what goes in x 64 x 2. Forwards, and for the gradient
  // of the input, where outputs go in and taps are turned round.
  void (*forward_weights)(const Bf16* weights, std::size_t outputs, std::size_t inputs, Bf16* u);
  void (*backward_weights)(const Bf16* weights, std::size_t outputs, std::size_t inputs, Bf16* u);
  void (*product)(const WinogradProduct& args);
  // From M of one tile to 64 channels of its four pixels; a pixel outside the image is null.
  void (*output_tile)(const float* m, std::size_t point_stride, Bf16* const* pixels);
  // From the gradient of U (point x output x input) to that of the weights of one output.
  void (*weight_gradient)(const float* du, std::size_t point_stride, std::size_t inputs, Bf16* dw);
};

// Defined in winograd_avx512.cc: for processors with bf16 instructions.
const WinogradKernels& winograd_kernels_avx512();

}  // namespace starling::training
