// Launches the optimizer pass and the check of the gradients.
//
// All launches of this folder: asynchronous on `stream`, in its order; pointers are device memory
// that stays until the stream got there. They return null, or what the CUDA runtime said about the
// launch. Free of CUDA headers.
#pragma once

#include "training/cuda/sgd.h"

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace starling::training::cuda {

using Stream = CUstream_st*;

// One step of Nesterov SGD over one range; the arguments are explained in sgd.h.
//
// Shapes:  n values of x, g, v and w each, 16-byte aligned, n a multiple of 4.
// Cost:    one read of g, one read and write of x and v, one write of w: 511 MB for ResNet-50 with
//          bf16 gradients and working copy.
// Tested:  tests/training/cuda/sgd_test.cc; CPU twin sgd_pass(), equal to the byte.
[[nodiscard]] const char* launch_sgd(const SgdArgs<float>& args, Stream stream);
[[nodiscard]] const char* launch_sgd(const SgdArgs<Bf16>& args, Stream stream);

// Sets *refused to 1 if one of n values is not a finite number, and leaves it alone otherwise.
//
// Cost:    one read. CPU twin: all_finite().
[[nodiscard]] const char* launch_finite_check(const float* values, std::size_t n,
                                              std::uint32_t* refused, Stream stream);
[[nodiscard]] const char* launch_finite_check(const Bf16* values, std::size_t n,
                                              std::uint32_t* refused, Stream stream);

// w = x, rounded to w's type. CPU twin: write_working_copy().
[[nodiscard]] const char* launch_working_copy(const float* x, std::size_t n, float* w,
                                              Stream stream);
[[nodiscard]] const char* launch_working_copy(const float* x, std::size_t n, Bf16* w,
                                              Stream stream);

}  // namespace starling::training::cuda
