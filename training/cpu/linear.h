// A linear layer over many rows, as matrix products: what a 1 x 1 convolution is to each pixel.
#pragma once

#include "training/cpu/conv_kernels.h"

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

  // Shapes:  x rows x inputs, y rows x outputs, weights outputs x inputs; no two overlap.
  void forward(const T* x, const T* weights, T* y, std::span<std::byte> workspace) const;
  void input_gradient(const T* g, const T* weights, T* dx, std::span<std::byte> workspace) const;
  // Overwrites dw.
  void weight_gradient(const T* x, const T* g, T* dw, std::span<std::byte> workspace) const;

 private:
  static constexpr std::size_t kDepth = kDepthOf<T>;

  // y = x times the panels at the workspace's beginning.
  void multiply(const T* x, std::size_t ins, std::size_t outs, T* y,
                std::span<std::byte> workspace) const;
  // Where both sides of the weights' gradient begin, in values, and where they end.
  struct Parts {
    std::size_t x;
    std::size_t g;
    std::size_t end;
  };
  [[nodiscard]] Parts gradient_parts() const;

  LinearShape shape_;
  const ConvKernels<T>& kernels_;
};

extern template class Linear<float>;
extern template class Linear<Bf16>;

}  // namespace starling::training
