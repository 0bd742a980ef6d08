// Batch normalisation with the relu and the residual that follow it, in two passes forward and two
// backward: what LibTorch does in up to eight.
#pragma once

#include "gossip/delta/isa.h"
#include "training/cpu/norm_kernels.h"
#include "training/row_walk.h"

#include <cstddef>
#include <span>
#include <vector>

namespace starling::training {

// The widest instruction set that the loops can use here. On AVX-512 they need bf16 instructions.
[[nodiscard]] gossip::Isa norm_isa();

// What one forward pass found in its images, kept for the backward pass. All of length `channels`.
struct NormState {
  explicit NormState(std::size_t channels);

  std::vector<float> mean;      // of the images
  std::vector<float> variance;  // unbiased: what running statistics are made of
  std::vector<float> inverse;   // 1 / sqrt(biased variance + epsilon)
  std::vector<float> scale;     // weight * inverse
  std::vector<float> shift;     // bias - mean * scale
};

// The learned values of a normalisation and where their gradients go.
struct NormWeights {
  std::span<const float> weight;
  std::span<const float> bias;
  std::span<float> weight_gradient;  // overwritten
  std::span<float> bias_gradient;
};

// One normalisation over rows x channels values (channels_last), channels a multiple of 16.
//
// Rows come a few at a time, in their order, so that they can be handled while they lie in the
// cache; all pointers are to row 0. Forward: measure() all rows, end_measure(), then apply().
// Backward: sum_gradient() all rows, end_gradient_sums(), then gradient().
//
// Lives as long as the layer; one thread. T is float or Bf16, arithmetic is fp32, sums are folded
// into doubles every 32,768 values, or more often; cut in the same way, all instruction sets give
// the same bits.
// Cost:    forward reads x twice and writes y once; backward reads x, g (and y, where a residual
//          was added) twice and once, and writes the gradient once.
// Source:  Ioffe & Szegedy 2015, "Batch normalization".
template <class T>
class Norm {
 public:
  Norm(std::size_t channels, gossip::Isa isa);

  // The statistics of x; at the end, with as many rows in all, the state holds them.
  void measure(const T* x, Rows rows);
  void end_measure(std::size_t rows, const NormWeights& weights);

  // y = normalised x, plus the residual if there is one (normalised by `residual_norm`, if that is
  // not null), then relu.
  struct Apply {
    const T* x = nullptr;
    const T* residual = nullptr;
    const Norm* residual_norm = nullptr;
    T* y = nullptr;
  };
  void apply(const Apply& args, Rows rows) const;

  // Turns the gradient behind the normalisation into the one before it.
  struct Backward {
    const T* x = nullptr;     // what forward read
    T* g = nullptr;           // the gradient behind; with `y` it becomes the residual's gradient
    const T* more = nullptr;  // added to g; only with `y`
    const T* y = nullptr;     // what forward wrote, if it added a residual: the relu's gate
    T* dx = nullptr;          // may be x
    bool relu = true;
  };
  // Reads x, g, more and y; writes g where there is a y.
  void sum_gradient(const Backward& args, Rows rows);
  // Writes the gradients of what is learned.
  void end_gradient_sums(std::size_t rows, const NormWeights& weights);
  // Reads x and g, writes dx.
  void gradient(const Backward& args, Rows rows) const;

  [[nodiscard]] const NormState& state() const { return state_; }

 private:
  [[nodiscard]] NormGate<T> gate_of(const Backward& args) const;

  const NormKernels<T>& kernels_;
  NormState state_;
  std::vector<double> sums_;  // two for each channel
  std::vector<float> pivot_;
  std::vector<float> a_;  // dx = a g + b x + c
  std::vector<float> b_;
  std::vector<float> c_;
};

extern template class Norm<float>;
extern template class Norm<Bf16>;

}  // namespace starling::training
