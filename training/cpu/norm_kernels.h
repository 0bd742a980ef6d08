// The loops of batch normalisation, one table of functions for each instruction set.
//
// Symbols: x what a convolution made, y what comes out, g gradients; rows = images x height x
// width, channels innermost (channels_last) and a multiple of 16. T is float or Bf16; all
// arithmetic is fp32, one rounding an operation (no fused multiply-add), channels are lanes: all
// instruction sets give the same bytes.
//
// This header is compiled with different instruction sets in different files: it must not define a
// function with external linkage, or the linker could keep the AVX-512 copy for everybody.
#pragma once

#include "gossip/delta/isa.h"
#include "training/optimizer.h"

#include <cstddef>

namespace starling::training {

struct NormShape {
  std::size_t rows;
  std::size_t channels;
};

// y = scale x + shift, plus what is beside it, and nothing below zero. Beside it is nothing
// (residual null), residual, or, if residual_scale is not null, residual_scale residual +
// residual_shift: a projection that is normalised on the way.
template <class T>
struct NormApply {
  const T* x;
  const T* residual;
  T* y;
  const float* scale;
  const float* shift;
  const float* residual_scale;
  const float* residual_shift;
};

// How the gradient passes the relu behind the normalisation.
template <class T>
struct NormGate {
  // Null: there is no relu, or the gate is scale x + shift > 0. Else: where y > 0.
  const T* y;
  // With y null: the gate's line; null for no relu.
  const float* scale;
  const float* shift;
};

// Adds sum g and sum g (x - mean) over all rows, g behind the gate.
template <class T>
struct NormGradientSums {
  const T* x;
  T* g;           // with gate.y: becomes the gated (and summed) gradient
  const T* more;  // with gate.y: a second gradient to be added to g; may be null
  const float* mean;
  NormGate<T> gate;
};

// dx = a g + b x + c for each channel, g behind the gate (never gate.y: g is gated by then).
template <class T>
struct NormGradient {
  const T* x;
  const T* g;
  T* dx;  // may be x
  const float* a;
  const float* b;
  const float* c;
  NormGate<T> gate;
};

template <class T>
struct NormKernels {
  // Adds to sums[c] the sum of x - pivot, to sums[channels + c] that of its square.
  void (*sums)(const T* x, NormShape shape, const float* pivot, double* sums);
  void (*apply)(const NormApply<T>& args, NormShape shape);
  void (*gradient_sums)(const NormGradientSums<T>& args, NormShape shape, double* sums);
  void (*gradient)(const NormGradient<T>& args, NormShape shape);
};

// Defined in norm_<isa>.cc.
template <class T>
const NormKernels<T>& norm_kernels_scalar();
template <class T>
const NormKernels<T>& norm_kernels_avx2();
template <class T>
const NormKernels<T>& norm_kernels_avx512();

}  // namespace starling::training
