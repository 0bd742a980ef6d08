#include "training/conv.h"

#include "training/cpu/unfold.h"
#include "training/cpu/winograd_conv.h"

#include <array>
#include <cstdint>
#include <tuple>

namespace starling::training {
namespace {

// The same pixels as another number of images of another height; channels_last.
at::Tensor as_images(const at::Tensor& x, std::int64_t images, std::int64_t height) {
  const at::Tensor pixels = x.permute({0, 2, 3, 1}).contiguous();
  return pixels.view({images, height, -1, x.size(1)}).permute({0, 3, 1, 2});
}

// What LibTorch gets for x. On one thread it computes 1 x 1 convolutions of fewer than 16 floating
// images as a product of MKL's, four times slower than oneDNN on processors of other makers. They
// do not care which pixels are an image: each line is one.
at::Tensor for_libtorch(const Conv& conv, const at::Tensor& x) {
  const bool by_pixels = conv.weight.size(2) * conv.weight.size(3) == 1 && conv.stride == 1;
  return by_pixels && x.is_cpu() ? as_images(x, x.size(0) * x.size(2), 1) : x;
}

}  // namespace

at::Tensor conv_forward(const Conv& conv, const at::Tensor& x) {
  if (is_winograds(conv, x)) return winograd_forward(conv, x);
  if (product_parts(conv, x).forward) return Unfolded(conv, x).forward();
  // Not mkldnn_convolution(): that throws where the processor has too little for bf16.
  const at::Tensor in = for_libtorch(conv, x);
  const at::Tensor y =
      at::conv2d(in, conv.weight, {}, {conv.stride, conv.stride}, {conv.padding, conv.padding});
  if (!in.is_same(x)) return as_images(y, x.size(0), x.size(2));
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
  const at::Tensor in = for_libtorch(conv, x);
  std::tie(dx, dw, std::ignore) = at::convolution_backward(
      for_libtorch(conv, g), in, conv.weight, std::nullopt, {conv.stride, conv.stride},
      {conv.padding, conv.padding}, {1, 1}, /*transposed=*/false, {0, 0}, /*groups=*/1, wanted);
  if (dw.defined()) conv.weight_gradient.copy_(dw);
  if (!dx.defined()) return dx;
  if (!in.is_same(x)) return as_images(dx, x.size(0), x.size(2));
  // Libraries may choose another layout; who reads the values next relies on this one.
  return dx.contiguous(at::MemoryFormat::ChannelsLast);
}

}  // namespace starling::training
