#include "training/cpu/winograd_conv.h"

#include "node/base/check.h"
#include "training/cpu/products.h"
#include "training/cpu/winograd.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace starling::training {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
// Channels for each tile from which on transforming the weights costs more than it saves.
constexpr std::size_t kChannelsOfTile = 32;

WinogradShape shape_of(const Conv& conv, const at::Tensor& x) {
  return {.images = static_cast<std::size_t>(x.size(0)),
          .height = static_cast<std::size_t>(x.size(2)),
          .width = static_cast<std::size_t>(x.size(3)),
          .inputs = static_cast<std::size_t>(conv.weight.size(1)),
          .outputs = static_cast<std::size_t>(conv.weight.size(0))};
}

template <class T>
T* pixels_of(const at::Tensor& x) {
  STARLING_DCHECK(x.is_contiguous(kLast));
  return static_cast<T*>(x.data_ptr());
}

template <class T>
void forward_as(const Conv& conv, const at::Tensor& x, const at::Tensor& y, const RowTasks& tasks) {
  const Winograd<T> winograd(shape_of(conv, x), *kernels_here<T>());
  const at::Tensor workspace = workspace_of(winograd.workspace_bytes());
  RowWalk walk(tasks, x.data_ptr(), y.data_ptr());
  winograd.forward(pixels_of<const T>(x), pixels_of<const T>(conv.weight), pixels_of<T>(y),
                   bytes_of(workspace), walk);
}

// dx may be undefined: it is not wanted then.
template <class T>
void backward_as(const Conv& conv, const at::Tensor& x, const at::Tensor& g, const at::Tensor& dx,
                 const RowTasks& tasks) {
  const Winograd<T> winograd(shape_of(conv, x), *kernels_here<T>());
  const at::Tensor workspace = workspace_of(winograd.workspace_bytes());
  RowWalk walk(tasks, g.data_ptr(), dx.defined() ? dx.data_ptr() : nullptr, memory_of(x));
  winograd.backward({pixels_of<const T>(x), pixels_of<const T>(g), pixels_of<const T>(conv.weight),
                     pixels_of<T>(conv.weight_gradient), dx.defined() ? pixels_of<T>(dx) : nullptr},
                    bytes_of(workspace), walk);
}

}  // namespace

bool is_winograds(const Conv& conv, const at::Tensor& x) {
  const at::Tensor& weight = conv.weight;
  if (weight.size(2) != 3 || weight.size(3) != 3 || conv.stride != 1 || conv.padding != 1)
    return false;
  // Over a single pixel it is a linear layer.
  if (!has_own_products(x, weight.size(0)) || x.size(2) * x.size(3) == 1) return false;
  const WinogradShape shape = shape_of(conv, x);
  return tiles_of(shape) * kChannelsOfTile >= std::max(shape.inputs, shape.outputs);
}

at::Tensor winograd_forward(const Conv& conv, const at::Tensor& x, const RowTasks& tasks) {
  at::Tensor y =
      at::empty({x.size(0), conv.weight.size(0), x.size(2), x.size(3)}, x.options(), kLast);
  x.scalar_type() == at::kFloat ? forward_as<float>(conv, x, y, tasks)
                                : forward_as<Bf16>(conv, x, y, tasks);
  return y;
}

at::Tensor winograd_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                             InputGradient input, const RowTasks& tasks) {
  at::Tensor dx = input == InputGradient::wanted ? at::empty_like(x) : at::Tensor();
  x.scalar_type() == at::kFloat ? backward_as<float>(conv, x, g, dx, tasks)
                                : backward_as<Bf16>(conv, x, g, dx, tasks);
  return dx;
}

}  // namespace starling::training
