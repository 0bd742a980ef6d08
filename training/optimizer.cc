#include "training/optimizer.h"

#include "node/base/check.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <cstddef>

namespace starling::training {
namespace {

// Restrict-qualified pointers tell the compiler that the ranges do not overlap.
template <class T>
struct Pointers {
  float* __restrict x;
  const T* __restrict g;
  float* __restrict v;
  T* __restrict w;
};

template <class T>
Pointers<T> pointers_of(const SgdRange<T>& range) {
  STARLING_CHECK_OP(range.parameters.size(), ==, range.gradients.size());
  STARLING_CHECK_OP(range.parameters.size(), ==, range.momenta.size());
  STARLING_CHECK_OP(range.parameters.size(), ==, range.working.size());
  return {range.parameters.data(), range.gradients.data(), range.momenta.data(),
          range.working.data()};
}

constexpr std::uint32_t kFloatExponent = 0x7f80'0000U;
constexpr std::uint16_t kBf16Exponent = 0x7f80U;
constexpr std::size_t kFiniteStride = 4'096;

STARLING_WIDE void pass_float(const Pointers<float>& p, std::size_t n, const SgdStep& step) {
  const auto [x, g, v, w] = p;
  const auto [rate, momentum, decay] = step;
  for (std::size_t i = 0; i < n; ++i) {
    const float d = g[i] + decay * x[i];
    const float velocity = momentum * v[i] + d;
    const float moved = x[i] - rate * (d + momentum * velocity);
    v[i] = velocity;
    x[i] = moved;
    w[i] = moved;
  }
}

STARLING_WIDE void pass_bf16(const Pointers<Bf16>& p, std::size_t n, const SgdStep& step) {
  const auto [x, g, v, w] = p;
  const auto [rate, momentum, decay] = step;
  for (std::size_t i = 0; i < n; ++i) {
    const float d = to_float(g[i]) + decay * x[i];
    const float velocity = momentum * v[i] + d;
    const float moved = x[i] - rate * (d + momentum * velocity);
    v[i] = velocity;
    x[i] = moved;
    w[i] = to_bf16(moved);
  }
}

STARLING_WIDE bool finite_floats(const float* values, std::size_t n) {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    bad |= static_cast<std::uint32_t>((bits & kFloatExponent) == kFloatExponent);
  }
  return bad == 0;
}

STARLING_WIDE bool finite_bf16s(const Bf16* values, std::size_t n) {
  std::uint16_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const bool special = (values[i].bits & kBf16Exponent) == kBf16Exponent;
    bad = static_cast<std::uint16_t>(bad | static_cast<std::uint16_t>(special));
  }
  return bad == 0;
}

// Stops at the first stretch that holds a bad value.
template <class T, class Test>
bool all_stretches(std::span<const T> values, Test test) {
  for (std::size_t at = 0; at < values.size(); at += kFiniteStride) {
    const std::size_t length = std::min(kFiniteStride, values.size() - at);
    if (!test(values.data() + at, length)) return false;
  }
  return true;
}

}  // namespace

void sgd_pass(const SgdRange<float>& range, const SgdStep& step) {
  pass_float(pointers_of(range), range.parameters.size(), step);
}

void sgd_pass(const SgdRange<Bf16>& range, const SgdStep& step) {
  pass_bf16(pointers_of(range), range.parameters.size(), step);
}

bool all_finite(std::span<const float> values) { return all_stretches(values, finite_floats); }
bool all_finite(std::span<const Bf16> values) { return all_stretches(values, finite_bf16s); }

void write_working_copy(std::span<const float> parameters, std::span<float> working) {
  STARLING_CHECK_OP(parameters.size(), ==, working.size());
  std::ranges::copy(parameters, working.begin());
}

void write_working_copy(std::span<const float> parameters, std::span<Bf16> working) {
  STARLING_CHECK_OP(parameters.size(), ==, working.size());
  std::ranges::transform(parameters, working.begin(), [](float value) { return to_bf16(value); });
}

}  // namespace starling::training
