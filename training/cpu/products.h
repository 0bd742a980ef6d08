// Products of matrices that are tensors: ours (linear.h) where the processor has the instructions
// and nothing faster, else LibTorch's.
//
// Includes torch: for this folder's .cc files only.
#pragma once

#include "training/cpu/conv_kernels.h"
#include "training/row_walk.h"

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling::training {

// The loops that convolutions of T use here. Null where LibTorch's are faster: in bf16 on a
// processor that multiplies tiles of matrices (AMX).
template <class T>
[[nodiscard]] const ConvKernels<T>* kernels_here();
template <>
const ConvKernels<float>* kernels_here();
template <>
const ConvKernels<Bf16>* kernels_here();

// Whether a linear layer from values like x to so many outputs is multiplied by our loops.
[[nodiscard]] bool has_own_products(const at::Tensor& x, std::int64_t outputs);

// x weights'.
//
// Shapes:  matrices of one type, fp32 or bf16; weights outputs x inputs. An x that is not
// contiguous
//          is copied, and so must be there; g is contiguous. Throws what LibTorch throws.
[[nodiscard]] at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weights,
                                        const RowTasks& tasks);
// Writes g' x to `dw`, which is contiguous, and returns g weights, or nothing where the weights are
// not defined.
[[nodiscard]] at::Tensor linear_backward(const at::Tensor& g, const at::Tensor& x,
                                         const at::Tensor& weights, at::Tensor& dw,
                                         const RowTasks& tasks);

// Memory of the caching allocator: a step finds it as the step before left it.
[[nodiscard]] at::Tensor workspace_of(std::size_t bytes);
[[nodiscard]] std::span<std::byte> bytes_of(const at::Tensor& workspace);

}  // namespace starling::training
