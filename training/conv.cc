#include "training/conv.h"

#include <array>
#include <tuple>

namespace starling::training {

at::Tensor conv_forward(const Conv& conv, const at::Tensor& x) {
  // Not mkldnn_convolution(): that throws where the processor has too little for bf16.
  const at::Tensor y =
      at::conv2d(x, conv.weight, {}, {conv.stride, conv.stride}, {conv.padding, conv.padding});
  // With one channel the layouts cannot be told apart, and it may choose the other.
  return y.contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor conv_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                         InputGradient input) {
  const std::array<bool, 3> wanted{input == InputGradient::wanted, true, false};
  auto [dx, dw, bias] = at::convolution_backward(
      g, x, conv.weight, std::nullopt, {conv.stride, conv.stride}, {conv.padding, conv.padding},
      {1, 1}, /*transposed=*/false, {0, 0}, /*groups=*/1, wanted);
  conv.weight_gradient.copy_(dw);
  // Libraries may choose another layout; who reads the values next relies on this one.
  return dx.defined() ? dx.contiguous(at::MemoryFormat::ChannelsLast) : dx;
}

}  // namespace starling::training
