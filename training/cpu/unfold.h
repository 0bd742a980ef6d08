// A convolution as one matrix product: its input unfolded into rows, one for each output pixel.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/conv.h"

#include <torch/torch.h>

#include <array>
#include <cstdint>

namespace starling::training {

// Whose part of a convolution is computed as a product, because it is faster so than by oneDNN's
// direct convolutions. A rule of shapes and types, not of clocks: the same step gives the same
// bits.
struct ProductParts {
  bool forward = false;
  bool input_gradient = false;
  bool weight_gradient = false;
};

// Shapes:  x as in conv_forward(). Nothing is a product on a GPU.
[[nodiscard]] ProductParts product_parts(const Conv& conv, const at::Tensor& x);

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

// conv_forward() and conv_backward() of what product_parts() gives to products.
[[nodiscard]] at::Tensor unfolded_forward(const Conv& conv, const at::Tensor& x,
                                          const RowTasks& tasks);
at::Tensor unfolded_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                             InputGradient input, const RowTasks& tasks);

}  // namespace starling::training
