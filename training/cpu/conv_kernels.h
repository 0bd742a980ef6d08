// The loops of convolutions, one table of functions for each instruction set: matrix products, and
// what Winograd's way needs beside them.
//
// T is float or Bf16: what is multiplied is rounded to it; all other arithmetic and all sums are
// fp32. Strides count values, not bytes. Channels are multiples of 64.
//
// Winograd's symbols (Lavin & Gray 2016, section 4.1, F(2 x 2, 3 x 3)): a tile is 2 x 2 pixels of
// the output and the 4 x 4 of the input that they see; transformed, a tile or a 3 x 3 kernel is 16
// values, one for each point: U of the weights, V of the input, M of the output. For each point a
// convolution is one matrix product, M = V U, over channels, with 16 multiplications where the
// definition takes 36.
//
// This header is compiled with different instruction sets in different files: it must not define a
// function with external linkage, or the linker could keep the AVX-512 copy for everybody.
#pragma once

#include "training/optimizer.h"

#include <cstddef>

namespace starling::training {

// Columns of a product: what the right matrix is cut into.
constexpr std::size_t kPanel = 64;
// Values, 32 bits of them, that one instruction multiplies and adds to the same sum, and that
// therefore lie beside one another in whatever is multiplied.
template <class T>
constexpr std::size_t kDepthOf = 4 / sizeof(T);

// Memory that is read soon: a product asks for a line of the cache at each of its steps, which
// leave memory idle.
struct Ahead {
  const std::byte* at;  // moves towards the end
  const std::byte* end;
};

// out[r][c] (+)= sum over k and d of a[r][k][d] b[k][c][d], for 64 columns c and d below the depth.
template <class T>
struct PanelProduct {
  const T* a;
  std::size_t row_stride;
  std::size_t k_stride;
  const T* b;  // count x 64 x depth
  std::size_t count;
  float* out;
  std::size_t out_stride;
  std::size_t rows;
  bool add;  // to what is in out
  // Not null: the sums go there in the end, rounded, and out is what they are kept in meanwhile.
  T* rounded;
  std::size_t rounded_stride;
  Ahead* ahead = nullptr;  // may be null
};

// Columns / width blocks of count / depth x width x depth values.
template <class T>
struct PackedBlocks {
  T* to;
  std::size_t width;
  std::size_t block_stride;
};

constexpr std::size_t kTilePoints = 16;

// Pixels of one tile, row by row: 16 of an input, 4 of an output. None is null: what lies outside
// the image points to zeros.
template <class T>
using TilePixels = const T* const*;

// Where the transformed values of a few (kDepthOf) tiles go, each channel's beside one another:
// blocks of `width` channels, in which one few follows the other.
template <class T>
struct TileGroup {
  T* to;  // of this few, first point, first block
  std::size_t width;
  std::size_t block_stride;
  std::size_t point_stride;
};

// What a layer reads and writes backwards: both gradients, from that of its output.
template <class T>
struct LayerBackward {
  const T* x;
  const T* g;
  const T* weights;  // may be null where dx is
  T* dw;             // overwritten
  T* dx;             // null: not wanted
};

template <class T>
struct ConvKernels {
  void (*product)(const PanelProduct<T>& args);
  // Panels of a right matrix, columns / 64 x count / depth x 64 x depth, whose columns are the
  // rows of `from` (columns x count).
  void (*pack_columns)(const T* from, std::size_t columns, std::size_t count, T* to);
  // Blocks of a matrix of count x columns values; the last row has zeros beside it if it has no
  // other.
  void (*pack_rows)(const T* from, std::size_t columns, std::size_t count,
                    const PackedBlocks<T>& to);

  // V of one tile: to[point * point_stride + channel].
  void (*input_tile)(TilePixels<T> pixels, std::size_t channels, T* to, std::size_t point_stride);
  // V of a few tiles (16 pixels each), and what a gradient of the output is transformed to (4
  // each).
  void (*input_group)(TilePixels<T> pixels, std::size_t channels, const TileGroup<T>& to);
  void (*gradient_group)(TilePixels<T> pixels, std::size_t channels, const TileGroup<T>& to);
  // U of all weights (outputs x 9 x inputs), as products want them: panels of 64 channels of what
  // comes out x points x channels of what goes in / depth x 64 x depth. Forwards, and for the
  // gradient of the input, where outputs go in and taps are turned round.
  void (*forward_weights)(const T* weights, std::size_t outputs, std::size_t inputs, T* u);
  void (*backward_weights)(const T* weights, std::size_t outputs, std::size_t inputs, T* u);
  // From M of one tile to 64 channels of its four pixels; a pixel outside the image is null.
  void (*output_tile)(const float* m, std::size_t point_stride, T* const* pixels);
  // From the gradient of U (point x output x input) to that of the weights of one output.
  void (*weight_gradient)(const float* du, std::size_t point_stride, std::size_t inputs, T* dw);
};

// Defined in conv_<isa>.cc.
const ConvKernels<float>& conv_kernels_avx2();
const ConvKernels<float>& conv_kernels_avx512();
const ConvKernels<Bf16>& conv_kernels_avx512bf16();

// The fastest that this processor can run; null if it can run none. For Bf16 it needs bf16
// instructions, for float AVX2.
template <class T>
[[nodiscard]] const ConvKernels<T>* conv_kernels();
template <>
const ConvKernels<float>* conv_kernels();
template <>
const ConvKernels<Bf16>* conv_kernels();

}  // namespace starling::training
