#include "training/conv.h"

#include "training/cpu/unfold.h"
#include "training/cpu/winograd_conv.h"

#include <array>
#include <tuple>

namespace starling::training {

at::Tensor conv_forward(const Conv& conv, const at::Tensor& x) {
  if (is_winograds(conv, x)) return winograd_forward(conv, x);
  if (product_parts(conv, x).forward) return Unfolded(conv, x).forward();
  // Not mkldnn_convolution(): that throws where the processor has too little for bf16.
  const at::Tensor y =
      at::conv2d(x, conv.weight, {}, {conv.stride, conv.stride}, {conv.padding, conv.padding});
  // With one channel the layouts cannot be told apart, and it may choose the other.
  return y.contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor conv_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                         InputGradient input) {
  if (is_winograds(conv, x)) return winograd_backward(conv, x, g, input);
  const ProductParts product = product_parts(conv, x);
  const bool wants_input = input == InputGradient::wanted;
  at::Tensor dx;
  if (product.weight_gradient) {
    const Unfolded unfolded(conv, x);
    unfolded.write_weight_gradient(g);
    if (!wants_input) return dx;
    if (product.input_gradient) return unfolded.input_gradient(g);
  }
  const std::array<bool, 3> wanted{wants_input, !product.weight_gradient, false};
  at::Tensor dw;
  std::tie(dx, dw, std::ignore) = at::convolution_backward(
      g, x, conv.weight, std::nullopt, {conv.stride, conv.stride}, {conv.padding, conv.padding},
      {1, 1}, /*transposed=*/false, {0, 0}, /*groups=*/1, wanted);
  if (dw.defined()) conv.weight_gradient.copy_(dw);
  // Libraries may choose another layout; who reads the values next relies on this one.
  return dx.defined() ? dx.contiguous(at::MemoryFormat::ChannelsLast) : dx;
}

}  // namespace starling::training
