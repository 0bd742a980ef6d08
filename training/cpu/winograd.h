// 3 x 3 convolutions with 16 multiplications where their definition takes 36.
#pragma once

#include "training/cpu/conv_kernels.h"
#include "training/row_walk.h"

#include <cstddef>
#include <span>
#include <vector>

namespace starling::training {

// A 3 x 3 convolution with a stride and a padding of 1; all in channels_last.
struct WinogradShape {
  std::size_t images = 0;
  std::size_t height = 0;  // of input and output
  std::size_t width = 0;
  std::size_t inputs = 0;  // channels, multiples of 64
  std::size_t outputs = 0;
};

// Of all images: squares of 2 x 2 output pixels, cut off at the edges.
[[nodiscard]] std::size_t tiles_of(const WinogradShape& shape);

// A convolution forwards and backwards.
//
// Functions need workspace_bytes() of memory on a 64-byte boundary, whose content is nobody's
// business before and after. Any thread, one at a time for each workspace.
// T is float or Bf16.
// Accuracy: transformed values are rounded to T, as input and output are. Of bf16 values without a
//          mean, the result is 0.42 % off (root mean square), where bf16's own rounding is 0.17 %;
//          of floats about as much as by the definition.
// Source:  Winograd 1980, "Arithmetic complexity of computations"; Lavin & Gray 2016, "Fast
//          algorithms for convolutional neural networks", section 4.1.
template <class T>
class Winograd {
 public:
  Winograd(const WinogradShape& shape, const ConvKernels<T>& kernels);

  [[nodiscard]] std::size_t workspace_bytes() const;

  // Shapes:  x images x height x width x inputs, y the same with outputs, weights outputs x 3 x 3 x
  //          inputs; no two overlap. The walk is from x to y.
  void forward(const T* x, const T* weights, T* y, std::span<std::byte> workspace,
               RowWalk& walk) const;
  // The walk is from g to dx.
  using Backward = LayerBackward<T>;
  void backward(const Backward& args, std::span<std::byte> workspace, RowWalk& walk) const;

 private:
  static constexpr std::size_t kDepth = kDepthOf<T>;
  // Tiles lie image after image, line after line.
  struct Place {
    std::size_t image;
    std::size_t line;  // of the tile's first output pixel
    std::size_t column;
  };
  // Where the parts of a workspace begin, in bytes.
  struct Parts {
    std::size_t v;
    std::size_t m;
    std::size_t end;
  };

  [[nodiscard]] Place place_of(std::size_t tile) const;
  // The 4 x 4 pixels that a tile sees, or its own 2 x 2; `outside` stands for those beyond the
  // image.
  template <std::size_t kSide, class Value>
  void pixels_of(Value* image, std::size_t channels, std::size_t tile, Value* outside,
                 Value** to) const;
  [[nodiscard]] Parts correlation_parts(std::size_t ins, std::size_t outs) const;
  [[nodiscard]] Parts gradient_parts() const;
  // Rows, from 0, that the first tiles see, and those that are there once they have been written.
  [[nodiscard]] std::size_t rows_read(std::size_t tiles) const;
  [[nodiscard]] std::size_t rows_written(std::size_t tiles) const;
  // What correlate() reads and writes, forwards or backwards.
  struct Ends {
    const T* x;
    std::size_t ins;
    T* y;
    std::size_t outs;
  };
  // y from the transformed weights that lie at the workspace's beginning.
  void correlate(const Ends& ends, std::span<std::byte> workspace, RowWalk& walk) const;
  void weight_gradient(const Backward& args, std::span<std::byte> workspace, RowWalk& walk) const;
  void add_gradients(std::size_t tiles, bool first, std::span<std::byte> workspace,
                     RowWalk& walk) const;

  WinogradShape shape_;
  const ConvKernels<T>& kernels_;
  std::size_t tiles_down_;
  std::size_t tiles_across_;
  std::size_t tiles_;
  std::vector<T> zeros_;  // a pixel outside the image
};

extern template class Winograd<float>;
extern template class Winograd<Bf16>;

}  // namespace starling::training
