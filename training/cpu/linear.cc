#include "training/cpu/linear.h"

#include "node/base/check.h"
#include "training/cpu/cache_lines.h"

#include <algorithm>
#include <utility>

namespace starling::training {
namespace {

// Of x, so much is multiplied by all panels before the next: it stays in the second level of the
// cache, and the panels, which are read once for each, cost little.
constexpr std::size_t kRowBytes = 384 * 1024;
constexpr std::size_t kLeastBlockRows = 96;
constexpr std::size_t kMostBlockRows = 384;
// Rows of one product: what it writes stays in the first level.
constexpr std::size_t kProductRows = 48;
// Rows that go backwards together: all that is made of them on the way lies in the second level of
// the cache. Where there are few in all, the gradient of the weights is larger than what is made of
// its rows, and summed in one go.
constexpr std::size_t kBackwardRows = 128;
constexpr std::size_t kFewRows = 512;

template <class T>
std::size_t block_rows(std::size_t ins, std::size_t rows) {
  return std::min(rows, std::clamp(kRowBytes / (ins * sizeof(T)), kLeastBlockRows, kMostBlockRows));
}

std::size_t backward_rows(std::size_t rows) { return rows <= kFewRows ? rows : kBackwardRows; }

}  // namespace

template <class T>
Linear<T>::Linear(const LinearShape& shape, const ConvKernels<T>& kernels)
    : shape_(shape), kernels_(kernels) {
  STARLING_CHECK_OP(shape.inputs % kPanel, ==, 0U);
  STARLING_CHECK_OP(shape.outputs % kPanel, ==, 0U);
}

template <class T>
Linear<T>::Parts Linear<T>::backward_parts() const {
  const std::size_t rows = (backward_rows(shape_.rows) + kDepth - 1) / kDepth * kDepth;
  const std::size_t sums = shape_.inputs * shape_.outputs * sizeof(T);
  const std::size_t x =
      sums + (kProductRows * kPanel + shape_.inputs * shape_.outputs) * sizeof(float);
  const std::size_t g = x + shape_.inputs / kPanel * stride_of<T>(kPanel * rows) * sizeof(T);
  return {sums, x, g, g + shape_.outputs / kGroup * stride_of<T>(kGroup * rows) * sizeof(T)};
}

template <class T>
std::size_t Linear<T>::workspace_bytes() const {
  return backward_parts().end;
}

template <class T>
void Linear<T>::multiply(const T* x, const Factor& by, T* y, Rows rows, RowWalk& walk) const {
  for (std::size_t column = 0; column < by.outs; column += kPanel) {
    for (std::size_t row = rows.begin; row < rows.end; row += kProductRows) {
      kernels_.product({.a = x + row * by.ins,
                        .row_stride = by.ins,
                        .k_stride = kDepth,
                        .b = by.panels + column * by.ins,
                        .count = by.ins / kDepth,
                        .out = by.sums,
                        .out_stride = kPanel,
                        .rows = std::min(kProductRows, rows.end - row),
                        .add = false,
                        .rounded = y + row * by.outs + column,
                        .rounded_stride = by.outs,
                        .ahead = walk.ahead()});
    }
  }
}

template <class T>
void Linear<T>::forward(const T* x, const T* weights, T* y, std::span<std::byte> workspace,
                        RowWalk& walk) const {
  STARLING_CHECK_OP(workspace.size(), >=, workspace_bytes());
  auto* const panels = reinterpret_cast<T*>(workspace.data());
  auto* const sums = reinterpret_cast<float*>(workspace.data() + backward_parts().sums);
  kernels_.pack_columns(weights, shape_.outputs, shape_.inputs, panels);
  const std::size_t block = block_rows<T>(shape_.inputs, shape_.rows);
  for (std::size_t begin = 0; begin < shape_.rows; begin += block) {
    const std::size_t end = std::min(shape_.rows, begin + block);
    walk.before(end);
    walk.expect(std::min(shape_.rows, end + block), end);
    multiply(x, {panels, shape_.inputs, shape_.outputs, sums}, y, {begin, end}, walk);
    walk.after(end);
  }
}

template <class T>
void Linear<T>::add_gradient(const Backward& args, const Sides& sides, Rows rows,
                             RowWalk& walk) const {
  const auto [inputs, outputs] = std::pair(shape_.inputs, shape_.outputs);
  const std::size_t height = rows.end - rows.begin;
  const std::size_t count = (height + kDepth - 1) / kDepth;
  const std::size_t panel = stride_of<T>(kPanel * count * kDepth);
  const std::size_t group = stride_of<T>(kGroup * count * kDepth);
  kernels_.pack_rows(args.x + rows.begin * inputs, inputs, height, {sides.x, kPanel, panel});
  kernels_.pack_rows(args.g + rows.begin * outputs, outputs, height, {sides.g, kGroup, group});
  const bool last = rows.end == shape_.rows;
  for (std::size_t column = 0; column < inputs; column += kPanel) {
    for (std::size_t row = 0; row < outputs; row += kGroup) {
      const std::size_t at = row * inputs + column;
      kernels_.product({.a = sides.g + row / kGroup * group,
                        .row_stride = kDepth,
                        .k_stride = kDepth * kGroup,
                        .b = sides.x + column / kPanel * panel,
                        .count = count,
                        .out = sides.sums + at,
                        .out_stride = inputs,
                        .rows = kGroup,
                        .add = rows.begin > 0,
                        .rounded = last ? args.dw + at : nullptr,
                        .rounded_stride = inputs,
                        .ahead = walk.ahead()});
    }
  }
}

template <class T>
void Linear<T>::backward(const Backward& args, std::span<std::byte> workspace,
                         RowWalk& walk) const {
  const Parts parts = backward_parts();
  STARLING_CHECK_OP(workspace.size(), >=, parts.end);
  auto* const panels = reinterpret_cast<T*>(workspace.data());
  auto* const sums = reinterpret_cast<float*>(workspace.data() + parts.sums);
  const Sides sides{reinterpret_cast<T*>(workspace.data() + parts.x),
                    reinterpret_cast<T*>(workspace.data() + parts.g), sums + kProductRows * kPanel};
  if (args.dx != nullptr) {
    kernels_.pack_rows(args.weights, shape_.inputs, shape_.outputs,
                       {panels, kPanel, kPanel * shape_.outputs});
  }
  const std::size_t block = backward_rows(shape_.rows);
  for (std::size_t begin = 0; begin < shape_.rows; begin += block) {
    const std::size_t end = std::min(shape_.rows, begin + block);
    walk.before(end);
    walk.expect(std::min(shape_.rows, end + block), args.dx == nullptr ? 0 : end);
    add_gradient(args, sides, {begin, end}, walk);
    if (args.dx == nullptr) continue;
    multiply(args.g, {panels, shape_.outputs, shape_.inputs, sums}, args.dx, {begin, end}, walk);
    walk.after(end);
  }
}

template class Linear<float>;
template class Linear<Bf16>;

}  // namespace starling::training
