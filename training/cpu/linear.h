// A linear layer over many rows, as matrix products: what a 1 x 1 convolution is to each pixel.
#pragma once

#include "training/cpu/conv_kernels.h"
#include "training/row_walk.h"

#include <cstddef>
#include <span>

namespace starling::training {

struct LinearShape {
  std::size_t rows = 0;
  std::size_t inputs = 0;  // multiples of 64
  std::size_t outputs = 0;
};

// y[r][o] = sum of x[r][i] weights[o][i], and both gradients from that of y.
//
// Functions need workspace_bytes() of memory on a 64-byte boundary, whose content is nobody's
// business before and after. Any thread, one at a time for each workspace. T is float or Bf16; sums
// are fp32.
// Source:  Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication".
template <class T>
class Linear {
 public:
  Linear(const LinearShape& shape, const ConvKernels<T>& kernels);

  [[nodiscard]] std::size_t workspace_bytes() const;

  // Shapes:  x rows x inputs, y rows x outputs, weights outputs x inputs; no two overlap. The walk
  //          is from x to y.
  void forward(const T* x, const T* weights, T* y, std::span<std::byte> workspace,
               RowWalk& walk) const;
  // A few rows at a time. The walk is from g to dx.
  using Backward = LayerBackward<T>;
  void backward(const Backward& args, std::span<std::byte> workspace, RowWalk& walk) const;

 private:
  static constexpr std::size_t kDepth = kDepthOf<T>;

  // What rows are multiplied by: ins x outs values as panels, and room for sums.
  struct Factor {
    const T* panels;
    std::size_t ins;
    std::size_t outs;
    float* sums;
  };
  // Those rows of y = x times the factor.
  void multiply(const T* x, const Factor& by, T* y, Rows rows, RowWalk& walk) const;
  // Adds those rows' share of the gradient of the weights.
  struct Sides {
    T* x;  // packed
    T* g;
    float* sums;
  };
  void add_gradient(const Backward& args, const Sides& sides, Rows rows, RowWalk& walk) const;
  // Where the parts of a backward pass begin, in bytes; panels come first.
  struct Parts {
    std::size_t sums;  // of products, then of the weights' gradient
    std::size_t x;
    std::size_t g;
    std::size_t end;
  };
  [[nodiscard]] Parts backward_parts() const;

  LinearShape shape_;
  const ConvKernels<T>& kernels_;
};

extern template class Linear<float>;
extern template class Linear<Bf16>;

}  // namespace starling::training
