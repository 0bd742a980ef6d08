#include "training/cpu/unfold.h"

#include "node/base/check.h"
#include "training/cpu/products.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace starling::training {

namespace {

// Output pixels of an image up to which the direct weight gradient of a bf16 convolution with more
// than one tap is slower: it walks the kernel for blocks of channels, and there are many of those
// and few pixels.
constexpr std::int64_t kFewPixels = 49;
// The same for forward passes.
constexpr std::int64_t kVeryFewPixels = 4;

// N,C,H,W with channels_last strides as N,H,W,C, contiguous.
at::Tensor pixels_first(const at::Tensor& x) { return x.permute({0, 2, 3, 1}); }

at::Tensor as_rows(const at::Tensor& x) { return pixels_first(x).reshape({-1, x.size(1)}); }

std::int64_t outputs_of(std::int64_t pixels, std::int64_t kernel, const Conv& conv) {
  return (pixels + 2 * conv.padding - kernel) / conv.stride + 1;
}

// Whether rows are the pixels of x where they lie: all others are copies.
bool rows_are_pixels(const Conv& conv) {
  return conv.weight.size(2) * conv.weight.size(3) == 1 && conv.stride == 1 && conv.padding == 0;
}

// The rows of one input: N * H' * W' of them, each the values that the taps of one output pixel
// see.
//
// Taps that see nothing but padding, wherever they are put, are left out: of nine taps over a
// single pixel one is left, and a convolution whose output is one pixel is a linear layer.
//
// Holds views of x, or copies where rows overlap; one thread. Functions throw what LibTorch throws.
class Unfolded {
 public:
  Unfolded(const Conv& conv, const at::Tensor& x);

  // What conv_forward() returns; its tasks are run with the product.
  [[nodiscard]] at::Tensor forward(const RowTasks& tasks) const;
  // Overwrites the weight's gradient and returns that of x if it is wanted, which it may be only
  // for convolutions no pixel of whose input is seen twice. `g` and tasks as in conv_backward().
  [[nodiscard]] at::Tensor backward(const at::Tensor& g, InputGradient input,
                                    const RowTasks& tasks) const;

 private:
  // The kernel's taps along one side of the image that see a pixel at all.
  struct Taps {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t padding_before = 0;  // of what the taps see
    std::int64_t padding_behind = 0;
    std::int64_t outputs = 0;
  };
  [[nodiscard]] static Taps taps_of(const Conv& conv, std::int64_t kernel, std::int64_t pixels);
  // Every row's values in a padded image, N,H',W',taps,taps,channels: overlapping views.
  [[nodiscard]] at::Tensor windows(const at::Tensor& padded) const;
  [[nodiscard]] at::Tensor weights_of_taps(const at::Tensor& weight) const;
  // Puts the gradients of rows where their pixels are in x.
  [[nodiscard]] at::Tensor folded(const at::Tensor& rows) const;

  const Conv& conv_;
  Taps down_;
  Taps across_;
  std::array<std::int64_t, 4> shape_;  // of x: N,H,W,I
  at::Tensor rows_;
};

Unfolded::Taps Unfolded::taps_of(const Conv& conv, std::int64_t kernel, std::int64_t pixels) {
  Taps taps;
  taps.outputs = outputs_of(pixels, kernel, conv);
  const std::int64_t last_start = (taps.outputs - 1) * conv.stride - conv.padding;
  taps.begin = std::clamp<std::int64_t>(-last_start, 0, kernel - 1);
  const std::int64_t last = std::clamp(pixels - 1 + conv.padding, taps.begin, kernel - 1);
  taps.count = last - taps.begin + 1;
  taps.padding_before = conv.padding - taps.begin;
  taps.padding_behind = std::max<std::int64_t>(0, last_start + last - (pixels - 1));
  return taps;
}

Unfolded::Unfolded(const Conv& conv, const at::Tensor& x)
    : conv_(conv),
      down_(taps_of(conv, conv.weight.size(2), x.size(2))),
      across_(taps_of(conv, conv.weight.size(3), x.size(3))),
      shape_{x.size(0), x.size(2), x.size(3), x.size(1)} {
  STARLING_DCHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast));
  at::Tensor padded = pixels_first(x);
  if (down_.padding_before + down_.padding_behind + across_.padding_before +
          across_.padding_behind >
      0) {
    padded = at::constant_pad_nd(padded, {0, 0, across_.padding_before, across_.padding_behind,
                                          down_.padding_before, down_.padding_behind})
                 .contiguous();
  }
  rows_ = windows(padded).reshape(
      {shape_[0] * down_.outputs * across_.outputs, down_.count * across_.count * shape_[3]});
}

at::Tensor Unfolded::windows(const at::Tensor& padded) const {
  const std::int64_t pixel = shape_[3];
  const std::int64_t line = padded.size(2) * pixel;
  return padded.as_strided(
      {shape_[0], down_.outputs, across_.outputs, down_.count, across_.count, pixel},
      {padded.size(1) * line, conv_.stride * line, conv_.stride * pixel, line, pixel, 1});
}

at::Tensor Unfolded::weights_of_taps(const at::Tensor& weight) const {
  return pixels_first(weight)
      .narrow(1, down_.begin, down_.count)
      .narrow(2, across_.begin, across_.count);
}

at::Tensor Unfolded::forward(const RowTasks& tasks) const {
  const std::int64_t outputs = conv_.weight.size(0);
  const at::Tensor weights = weights_of_taps(conv_.weight).reshape({outputs, -1});
  return linear_forward(rows_, weights, tasks)
      .view({shape_[0], down_.outputs, across_.outputs, outputs})
      .permute({0, 3, 1, 2});
}

at::Tensor Unfolded::backward(const at::Tensor& g, InputGradient input,
                              const RowTasks& tasks) const {
  at::Tensor weights;
  if (input == InputGradient::wanted) {
    STARLING_CHECK(down_.count * across_.count == 1 || down_.outputs * across_.outputs == 1);
    weights = weights_of_taps(conv_.weight).reshape({conv_.weight.size(0), -1});
  }
  const at::Tensor taps = weights_of_taps(conv_.weight_gradient);
  const bool whole = taps.is_contiguous();
  at::Tensor dw = whole ? taps.view({taps.size(0), -1})
                        : at::empty({taps.size(0), rows_.size(1)}, taps.options());
  const RowTasks along{tasks.before, rows_are_pixels(conv_) ? tasks.after : RowTask{}};
  at::Tensor seen = linear_backward(as_rows(g), rows_, weights, dw, along);
  if (!whole) {
    conv_.weight_gradient.zero_();
    taps.copy_(dw.view(taps.sizes()));
  }
  if (!seen.defined()) return seen;
  at::Tensor dx = folded(seen);
  if (!rows_are_pixels(conv_)) run_for_all(tasks.after, dx);
  return dx;
}

at::Tensor Unfolded::folded(const at::Tensor& rows) const {
  const at::IntArrayRef shape(shape_);
  if (rows.numel() == shape_[0] * shape_[1] * shape_[2] * shape_[3])
    return rows.view(shape).permute({0, 3, 1, 2});
  // Pixels between strides, or behind the last, that no tap has seen.
  at::Tensor padded =
      at::zeros({shape_[0], down_.padding_before + shape_[1] + down_.padding_behind,
                 across_.padding_before + shape_[2] + across_.padding_behind, shape_[3]},
                rows.options());
  at::Tensor to = windows(padded);
  to.copy_(rows.view(to.sizes()));
  return padded.narrow(1, down_.padding_before, shape_[1])
      .narrow(2, across_.padding_before, shape_[2])
      .permute({0, 3, 1, 2})
      .contiguous(at::MemoryFormat::ChannelsLast);
}

}  // namespace

ProductParts product_parts(const Conv& conv, const at::Tensor& x) {
  if (!x.is_cpu()) return {};
  const std::int64_t taps = conv.weight.size(2) * conv.weight.size(3);
  const std::int64_t outputs = outputs_of(x.size(2), conv.weight.size(2), conv) *
                               outputs_of(x.size(3), conv.weight.size(3), conv);
  // The direct weight gradient of a 3 x 3 convolution over one pixel took ten to twenty times as
  // long as its forward pass, most of it for taps that see padding.
  if (outputs == 1) return {true, true, true};
  // In fp32 LibTorch multiplies by a library that is slow on processors of other makers.
  if (x.scalar_type() != at::kBFloat16 && !has_own_products(x, conv.weight.size(0))) return {};
  if (taps == 1) return {true, true, true};
  return {outputs <= kVeryFewPixels, false, outputs <= kFewPixels};
}

at::Tensor unfolded_forward(const Conv& conv, const at::Tensor& x, const RowTasks& tasks) {
  if (rows_are_pixels(conv)) return Unfolded(conv, x).forward(tasks);
  run_for_all(tasks.before, x);
  return Unfolded(conv, x).forward({{}, tasks.after});
}

at::Tensor unfolded_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                             InputGradient input, const RowTasks& tasks) {
  return Unfolded(conv, x).backward(g, input, tasks);
}

}  // namespace starling::training
