// A convolution as one matrix product: its input unfolded into rows, one for each output pixel.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/conv.h"

#include <torch/torch.h>

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

// conv_forward() and conv_backward() of what product_parts() gives to products.
[[nodiscard]] at::Tensor unfolded_forward(const Conv& conv, const at::Tensor& x,
                                          const RowTasks& tasks);
at::Tensor unfolded_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                             InputGradient input, const RowTasks& tasks);

}  // namespace starling::training
