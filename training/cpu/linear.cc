#include "training/cpu/linear.h"

#include "node/base/check.h"
#include "training/cpu/cache_lines.h"

#include <algorithm>

namespace starling::training {
namespace {

// Of x, so much is multiplied by all panels before the next: it stays in the second level of the
// cache, and the panels, which are read once for each, cost little.
constexpr std::size_t kRowBytes = 384 * 1024;
constexpr std::size_t kLeastBlockRows = 96;
constexpr std::size_t kMostBlockRows = 384;
// Rows of one product: what it writes stays in the first level.
constexpr std::size_t kProductRows = 48;
// Rows that are summed before the gradient of the weights, which lies in memory, is added to.
constexpr std::size_t kGradientRows = 512;
template <class T>
std::size_t block_rows(std::size_t ins, std::size_t rows) {
  return std::min(rows, std::clamp(kRowBytes / (ins * sizeof(T)), kLeastBlockRows, kMostBlockRows));
}

}  // namespace

template <class T>
Linear<T>::Linear(const LinearShape& shape, const ConvKernels<T>& kernels)
    : shape_(shape), kernels_(kernels) {
  STARLING_CHECK_OP(shape.inputs % kPanel, ==, 0U);
  STARLING_CHECK_OP(shape.outputs % kPanel, ==, 0U);
}

template <class T>
Linear<T>::Parts Linear<T>::gradient_parts() const {
  const std::size_t rows = std::min(kGradientRows, (shape_.rows + kDepth - 1) / kDepth * kDepth);
  const std::size_t x = shape_.outputs * shape_.inputs * kDepth;  // as many floats
  const std::size_t g = x + shape_.inputs / kPanel * stride_of<T>(kPanel * rows);
  return {x, g, g + shape_.outputs / kGroup * stride_of<T>(kGroup * rows)};
}

template <class T>
std::size_t Linear<T>::workspace_bytes() const {
  const std::size_t products =
      shape_.inputs * shape_.outputs * sizeof(T) + kProductRows * kPanel * sizeof(float);
  return std::max(products, gradient_parts().end * sizeof(T));
}

template <class T>
void Linear<T>::multiply(const T* x, std::size_t ins, std::size_t outs, T* y,
                         std::span<std::byte> workspace) const {
  const auto* const panels = reinterpret_cast<const T*>(workspace.data());
  auto* const sums = reinterpret_cast<float*>(workspace.data() + ins * outs * sizeof(T));
  const std::size_t block = block_rows<T>(ins, shape_.rows);
  for (std::size_t begin = 0; begin < shape_.rows; begin += block) {
    const std::size_t end = std::min(shape_.rows, begin + block);
    for (std::size_t column = 0; column < outs; column += kPanel) {
      for (std::size_t row = begin; row < end; row += kProductRows) {
        kernels_.product({.a = x + row * ins,
                          .row_stride = ins,
                          .k_stride = kDepth,
                          .b = panels + column * ins,
                          .count = ins / kDepth,
                          .out = sums,
                          .out_stride = kPanel,
                          .rows = std::min(kProductRows, end - row),
                          .add = false,
                          .rounded = y + row * outs + column,
                          .rounded_stride = outs});
      }
    }
  }
}

template <class T>
void Linear<T>::forward(const T* x, const T* weights, T* y, std::span<std::byte> workspace) const {
  STARLING_CHECK_OP(workspace.size(), >=, workspace_bytes());
  kernels_.pack_columns(weights, shape_.outputs, shape_.inputs,
                        reinterpret_cast<T*>(workspace.data()));
  multiply(x, shape_.inputs, shape_.outputs, y, workspace);
}

template <class T>
void Linear<T>::input_gradient(const T* g, const T* weights, T* dx,
                               std::span<std::byte> workspace) const {
  STARLING_CHECK_OP(workspace.size(), >=, workspace_bytes());
  kernels_.pack_rows(weights, shape_.inputs, shape_.outputs,
                     {reinterpret_cast<T*>(workspace.data()), kPanel, kPanel * shape_.outputs});
  multiply(g, shape_.outputs, shape_.inputs, dx, workspace);
}

template <class T>
void Linear<T>::weight_gradient(const T* x, const T* g, T* dw,
                                std::span<std::byte> workspace) const {
  STARLING_CHECK_OP(workspace.size(), >=, workspace_bytes());
  const Parts parts = gradient_parts();
  auto* const sums = reinterpret_cast<float*>(workspace.data());
  T* const packed_x = reinterpret_cast<T*>(workspace.data()) + parts.x;
  T* const packed_g = reinterpret_cast<T*>(workspace.data()) + parts.g;
  for (std::size_t begin = 0; begin < shape_.rows; begin += kGradientRows) {
    const std::size_t rows = std::min(kGradientRows, shape_.rows - begin);
    const std::size_t count = (rows + kDepth - 1) / kDepth;
    const std::size_t panel = stride_of<T>(kPanel * count * kDepth);
    const std::size_t group = stride_of<T>(kGroup * count * kDepth);
    kernels_.pack_rows(x + begin * shape_.inputs, shape_.inputs, rows, {packed_x, kPanel, panel});
    kernels_.pack_rows(g + begin * shape_.outputs, shape_.outputs, rows, {packed_g, kGroup, group});
    const bool last = begin + kGradientRows >= shape_.rows;
    for (std::size_t column = 0; column < shape_.inputs; column += kPanel) {
      for (std::size_t row = 0; row < shape_.outputs; row += kGroup) {
        const std::size_t at = row * shape_.inputs + column;
        kernels_.product({.a = packed_g + row / kGroup * group,
                          .row_stride = kDepth,
                          .k_stride = kDepth * kGroup,
                          .b = packed_x + column / kPanel * panel,
                          .count = count,
                          .out = sums + at,
                          .out_stride = shape_.inputs,
                          .rows = kGroup,
                          .add = begin > 0,
                          .rounded = last ? dw + at : nullptr,
                          .rounded_stride = shape_.inputs});
      }
    }
  }
}

template class Linear<float>;
template class Linear<Bf16>;

}  // namespace starling::training
