#include "training/conv.h"

#include "training/cpu/unfold.h"
#include "training/cpu/winograd_conv.h"

#include <array>
#include <tuple>

namespace starling::training {
namespace {

// Gradients of x, of the weight and of a bias.
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
Gradients library_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                           std::array<bool, 3> wanted) {
  return at::convolution_backward(g, x, conv.weight, std::nullopt, {conv.stride, conv.stride},
                                  {conv.padding, conv.padding}, {1, 1}, /*transposed=*/false,
                                  {0, 0}, /*groups=*/1, wanted);
}

// channels_last as a matrix of rows.
at::Tensor rows_view(const at::Tensor& x) { return x.permute({0, 2, 3, 1}).view({-1, x.size(1)}); }

}  // namespace

at::Tensor conv_forward(const Conv& conv, const at::Tensor& x, const RowTasks& tasks) {
  if (is_winograds(conv, x)) return winograd_forward(conv, x, tasks);
  if (product_parts(conv, x).forward) return unfolded_forward(conv, x, tasks);
  run_for_all(tasks.before, x);
  // Not mkldnn_convolution(): that throws where the processor has too little for bf16.
  // With one channel the layouts cannot be told apart, and it may choose the other.
  at::Tensor y =
      at::conv2d(x, conv.weight, {}, {conv.stride, conv.stride}, {conv.padding, conv.padding})
          .contiguous(at::MemoryFormat::ChannelsLast);
  run_for_all(tasks.after, y);
  return y;
}

at::Tensor conv_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                         InputGradient input, const RowTasks& tasks) {
  if (is_winograds(conv, x)) return winograd_backward(conv, x, g, input, tasks);
  const ProductParts product = product_parts(conv, x);
  const bool wants_input = input == InputGradient::wanted;
  if (product.weight_gradient && (product.input_gradient || !wants_input)) {
    return unfolded_backward(conv, x, g, input, tasks);
  }
  run_for_all(tasks.before, g);
  if (product.weight_gradient) (void)unfolded_backward(conv, x, g, InputGradient::unwanted, {});
  const std::array<bool, 3> wanted{wants_input, !product.weight_gradient, false};
  auto [dx, dw, none] = library_backward(conv, x, g, wanted);
  if (dw.defined()) conv.weight_gradient.copy_(dw);
  if (!dx.defined()) return dx;
  // Libraries may choose another layout; who reads the values next relies on this one.
  dx = dx.contiguous(at::MemoryFormat::ChannelsLast);
  run_for_all(tasks.after, dx);
  return dx;
}

bool adds_input_gradient(const Conv& conv, const at::Tensor& x) {
  return x.is_cuda() && conv.weight.size(2) == 1 && conv.weight.size(3) == 1 && conv.stride == 1 &&
         conv.padding == 0;
}

void conv_backward_onto(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                        const at::Tensor& onto) {
  conv.weight_gradient.copy_(std::get<1>(library_backward(conv, x, g, {false, true, false})));
  const at::Tensor sum = rows_view(onto);
  sum.addmm_(rows_view(g), rows_view(conv.weight));
}

void run_for_all(const RowTask& task, const at::Tensor& rows) {
  if (!task.run) return;
  task.run(rows.data_ptr(), {0, static_cast<std::size_t>(rows.numel() / rows.size(1))});
}

RowMemory memory_of(const at::Tensor& rows) {
  return {rows.data_ptr(), static_cast<std::size_t>(rows.size(1) * rows.element_size())};
}

}  // namespace starling::training
