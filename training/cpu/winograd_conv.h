// 3 x 3 convolutions of tensors in Winograd's way (winograd.h).
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/conv.h"

#include <torch/torch.h>

namespace starling::training {

// Whether that is faster here than the other ways. A rule of shapes, types and the processor's
// instructions, not of clocks: the same step gives the same bits. Never on a GPU.
[[nodiscard]] bool is_winograds(const Conv& conv, const at::Tensor& x);

// conv_forward() and conv_backward() of a convolution that is_winograds().
[[nodiscard]] at::Tensor winograd_forward(const Conv& conv, const at::Tensor& x,
                                          const RowTasks& tasks);
at::Tensor winograd_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                             InputGradient input, const RowTasks& tasks);

}  // namespace starling::training
