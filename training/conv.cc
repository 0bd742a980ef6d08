#include "training/conv.h"

#include "training/cpu/unfold.h"
#include "training/cpu/winograd_conv.h"

#include <array>
#include <tuple>

namespace starling::training {

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
  auto [dx, dw, none] = at::convolution_backward(
      g, x, conv.weight, std::nullopt, {conv.stride, conv.stride}, {conv.padding, conv.padding},
      {1, 1}, /*transposed=*/false, {0, 0}, /*groups=*/1, wanted);
  if (dw.defined()) conv.weight_gradient.copy_(dw);
  if (!dx.defined()) return dx;
  // Libraries may choose another layout; who reads the values next relies on this one.
  dx = dx.contiguous(at::MemoryFormat::ChannelsLast);
  run_for_all(tasks.after, dx);
  return dx;
}

void run_for_all(const RowTask& task, const at::Tensor& rows) {
  if (!task.run) return;
  task.run(rows.data_ptr(), {0, static_cast<std::size_t>(rows.numel() / rows.size(1))});
}

RowMemory memory_of(const at::Tensor& rows) {
  return {rows.data_ptr(), static_cast<std::size_t>(rows.size(1) * rows.element_size())};
}

}  // namespace starling::training
