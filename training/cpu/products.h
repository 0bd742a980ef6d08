// Products of matrices that are tensors: ours (linear.h) where the processor has the instructions
// and nothing faster, else LibTorch's.
//
// Includes torch: for this folder's .cc files only.
#pragma once

#include "training/cpu/conv_kernels.h"

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

// Shapes:  matrices of one type, fp32 or bf16; who is not contiguous is copied, and `out` must be.
//          Throw what LibTorch throws.
[[nodiscard]] at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weights);
[[nodiscard]] at::Tensor times(const at::Tensor& g, const at::Tensor& weights);
// Writes g' x.
void transposed_times(const at::Tensor& g, const at::Tensor& x, at::Tensor& out);

// Memory of the caching allocator: a step finds it as the step before left it.
[[nodiscard]] at::Tensor workspace_of(std::size_t bytes);
[[nodiscard]] std::span<std::byte> bytes_of(const at::Tensor& workspace);

}  // namespace starling::training
