// Convolutions without autograd: channels_last in, channels_last out.
//
// Includes torch: for this folder's .cc files only.
#pragma once

#include "training/row_walk.h"

#include <torch/torch.h>

#include <cstdint>

namespace starling::training {

// A convolution without bias, and where the gradient of its weight goes.
struct Conv {
  at::Tensor weight;           // O,I,H,W with channels_last strides
  at::Tensor weight_gradient;  // the same shape and strides; overwritten
  std::int64_t stride = 1;
  std::int64_t padding = 0;
};

// Shapes:  x is N,I,H,W with channels_last strides, in the type of the weight; so is the result.
//          tasks.before makes rows of x, tasks.after is given rows of the result.
[[nodiscard]] at::Tensor conv_forward(const Conv& conv, const at::Tensor& x,
                                      const RowTasks& tasks = {});

enum class InputGradient : std::uint8_t { wanted, unwanted };

// Writes the weight's gradient and returns that of x (undefined if unwanted). `g` is the gradient
// of what conv_forward(conv, x) returned; tasks.before makes rows of it, tasks.after is given rows
// of what is returned.
at::Tensor conv_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                         InputGradient input, const RowTasks& tasks = {});

// Whether conv_backward() can add the input's gradient to what is there; a GPU's product can.
[[nodiscard]] bool adds_input_gradient(const Conv& conv, const at::Tensor& x);
// Then, without tasks: writes the weight's gradient and adds that of x to `onto`, which has the
// shape and strides of x. One rounding a value.
void conv_backward_onto(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                        const at::Tensor& onto);

// Runs a task for all rows at once: of a matrix, or of what lies in channels_last.
void run_for_all(const RowTask& task, const at::Tensor& rows);
// As what a task reads.
[[nodiscard]] RowMemory memory_of(const at::Tensor& rows);

}  // namespace starling::training
