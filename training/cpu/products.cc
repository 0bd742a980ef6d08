#include "training/cpu/products.h"

#include "node/base/check.h"
#include "training/conv.h"
#include "training/cpu/linear.h"
#include "training/device.h"

namespace starling::training {
namespace {

constexpr std::int64_t kChannels = kPanel;  // a multiple of it

bool has_kernels(at::ScalarType type) {
  if (type == at::kFloat) return kernels_here<float>() != nullptr;
  return type == at::kBFloat16 && kernels_here<Bf16>() != nullptr;
}

bool is_ours(const at::Tensor& a, std::int64_t inputs, std::int64_t outputs) {
  return a.is_cpu() && inputs % kChannels == 0 && outputs % kChannels == 0 &&
         has_kernels(a.scalar_type());
}

template <class T>
T* matrix_of(const at::Tensor& x) {
  STARLING_DCHECK(x.is_contiguous());
  return static_cast<T*>(x.data_ptr());
}

LinearShape layer_shape(const at::Tensor& rows, std::int64_t inputs, std::int64_t outputs) {
  return {static_cast<std::size_t>(rows.size(0)), static_cast<std::size_t>(inputs),
          static_cast<std::size_t>(outputs)};
}

// Calls body(layer, workspace, T{}) with the values' type.
template <class Body>
void with_layer(const at::Tensor& rows, std::int64_t inputs, std::int64_t outputs, Body body) {
  const auto call = [&]<class T>(T type) {
    const Linear<T> layer(layer_shape(rows, inputs, outputs), *kernels_here<T>());
    const at::Tensor workspace = workspace_of(layer.workspace_bytes());
    body(layer, bytes_of(workspace), type);
  };
  rows.scalar_type() == at::kFloat ? call(float{}) : call(Bf16{});
}

}  // namespace

template <>
const ConvKernels<float>* kernels_here() {
  return conv_kernels<float>();
}
template <>
const ConvKernels<Bf16>* kernels_here() {
  static const bool has_tiles = cpu_has_tiles();
  return has_tiles ? nullptr : conv_kernels<Bf16>();
}

bool has_own_products(const at::Tensor& x, std::int64_t outputs) {
  return is_ours(x, x.size(1), outputs);
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weights, const RowTasks& tasks) {
  const std::int64_t outputs = weights.size(0);
  if (!is_ours(x, x.size(1), outputs)) {
    run_for_all(tasks.before, x);
    const at::Tensor y = at::mm(x, weights.t());
    run_for_all(tasks.after, y);
    return y;
  }
  const at::Tensor from = x.contiguous();
  STARLING_CHECK(from.is_same(x) || !tasks.before.run);
  const at::Tensor by = weights.contiguous();
  at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  RowWalk walk(tasks, from.data_ptr(), y.data_ptr());
  with_layer(x, x.size(1), outputs, [&]<class T>(const auto& layer, auto workspace, T) {
    layer.forward(matrix_of<const T>(from), matrix_of<const T>(by), matrix_of<T>(y), workspace,
                  walk);
  });
  return y;
}

at::Tensor linear_backward(const at::Tensor& g, const at::Tensor& x, const at::Tensor& weights,
                           at::Tensor& dw, const RowTasks& tasks) {
  at::Tensor dx;
  if (!is_ours(x, x.size(1), g.size(1))) {
    run_for_all(tasks.before, g);
    at::mm_out(dw, g.t(), x);
    if (!weights.defined()) return dx;
    dx = at::mm(g, weights);
    run_for_all(tasks.after, dx);
    return dx;
  }
  const at::Tensor from = x.contiguous();
  at::Tensor by;
  if (weights.defined()) {
    by = weights.contiguous();
    dx = at::empty({g.size(0), x.size(1)}, g.options());
  }
  RowWalk walk(tasks, g.data_ptr(), dx.defined() ? dx.data_ptr() : nullptr, memory_of(from));
  with_layer(x, x.size(1), g.size(1), [&]<class T>(const auto& layer, auto workspace, T) {
    layer.backward({matrix_of<const T>(from), matrix_of<const T>(g),
                    by.defined() ? matrix_of<const T>(by) : nullptr, matrix_of<T>(dw),
                    dx.defined() ? matrix_of<T>(dx) : nullptr},
                   workspace, walk);
  });
  return dx;
}

at::Tensor workspace_of(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}
std::span<std::byte> bytes_of(const at::Tensor& workspace) {
  return {static_cast<std::byte*>(workspace.data_ptr()),
          static_cast<std::size_t>(workspace.numel())};
}

}  // namespace starling::training
