// The optimizer pass: Nesterov momentum and weight decay on the fp32 master, and the working copy
// that the next forward pass computes with, all in one walk over memory.
//
// Plain loops without torch, so that they vectorise, run under sanitizers and can be compared bit
// for bit. Symbols: x parameters, g gradients, v momenta, w working copy, n values.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace starling::training {

// The upper half of a float: 8 bits of exponent, 7 of fraction. Same bytes as c10::BFloat16.
struct Bf16 {
  std::uint16_t bits = 0;
};

// Nearest bf16, ties to even; exact for values that a bf16 can hold. Not for NaN.
[[nodiscard]] constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}
[[nodiscard]] constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// What the settings of a swarm say about the optimizer.
struct OptimizerOptions {
  // Share of the last step's velocity that is kept. Private to the node, never averaged.
  float momentum = 0.9F;
  // Pull towards zero, on tensors of rank >= 2 only: decaying the scale of a normalisation or a
  // bias costs accuracy and buys nothing.
  float weight_decay = 1e-4F;
};

// The numbers of one pass over one range.
struct SgdStep {
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
};

// One range of the arenas; all spans have the same length.
template <class T>
struct SgdRange {
  std::span<float> parameters;
  std::span<const T> gradients;
  std::span<float> momenta;
  std::span<T> working;
  // Gradients of further slices of the batch: they are added to the first, in this order, in fp32.
  std::span<const std::span<const T>> more_gradients = {};
};

// One step of Nesterov SGD.
//
// Rule:    d = g + weight_decay * x;  v = momentum * v + d;  x -= learning_rate * (d + momentum *
//          v);  w = x, rounded to its type. Every product and sum is rounded to fp32 once, so that
//          all instruction sets give the same bits.
// Cost:    one read of every g, one read and write of x and v, one write of w; memory-bound.
// Thread:  the holder of the master's lease.
// Source:  Sutskever et al. 2013, "On the importance of initialization and momentum in deep
//          learning", in the form of torch::optim::SGD.
void sgd_pass(const SgdRange<float>& range, const SgdStep& step);
void sgd_pass(const SgdRange<Bf16>& range, const SgdStep& step);

// Whether every value is a finite number: looks at the exponents only, one read.
[[nodiscard]] bool all_finite(std::span<const float> values);
[[nodiscard]] bool all_finite(std::span<const Bf16> values);

// w = x, rounded to w's type.
void write_working_copy(std::span<const float> parameters, std::span<float> working);
void write_working_copy(std::span<const float> parameters, std::span<Bf16> working);

}  // namespace starling::training
