#include "training/cpu/norm.h"

#include "node/base/check.h"
#include "training/models/plan.h"
#include "training/norm_formulas.h"

#include <algorithm>

namespace starling::training {
namespace {

template <class T>
const NormKernels<T>& kernels_of(gossip::Isa isa) {
#ifdef STARLING_X86_KERNELS
  if (isa == gossip::Isa::avx512) return norm_kernels_avx512<T>();
  if (isa == gossip::Isa::avx2) return norm_kernels_avx2<T>();
#else
  STARLING_CHECK(isa == gossip::Isa::scalar);
#endif
  return norm_kernels_scalar<T>();
}

float widened(float value) { return value; }
float widened(Bf16 value) { return to_float(value); }

}  // namespace

gossip::Isa norm_isa() {
#ifdef STARLING_X86_KERNELS
  if (gossip::is_available(gossip::Isa::avx512) && __builtin_cpu_supports("avx512bf16") != 0) {
    return gossip::Isa::avx512;
  }
#endif
  return gossip::is_available(gossip::Isa::avx2) ? gossip::Isa::avx2 : gossip::Isa::scalar;
}

NormState::NormState(std::size_t channels)
    : mean(channels), variance(channels), inverse(channels), scale(channels), shift(channels) {}

template <class T>
Norm<T>::Norm(std::size_t channels, gossip::Isa isa)
    : kernels_(kernels_of<T>(isa)),
      state_(channels),
      sums_(2 * channels),
      pivot_(channels),
      a_(channels),
      b_(channels),
      c_(channels) {
  STARLING_CHECK_OP(channels % 16, ==, 0U);
}

template <class T>
void Norm<T>::measure(const T* x, Rows rows) {
  const std::size_t channels = pivot_.size();
  // Deviations from the first row, not from zero: a channel whose mean is far larger than its
  // spread keeps its digits.
  if (rows.begin == 0) {
    for (std::size_t c = 0; c < channels; ++c) pivot_[c] = widened(x[c]);
    std::ranges::fill(sums_, 0.0);
  }
  kernels_.sums(x + rows.begin * channels, {rows.end - rows.begin, channels}, pivot_.data(),
                sums_.data());
}

template <class T>
void Norm<T>::end_measure(std::size_t rows, const NormWeights& weights) {
  const std::size_t channels = pivot_.size();
  STARLING_CHECK_OP(rows, >, 0U);
  STARLING_CHECK_OP(weights.weight.size(), ==, channels);
  const auto n = static_cast<double>(rows);
  for (std::size_t c = 0; c < channels; ++c) {
    const ChannelFound found =
        found_in({n, static_cast<double>(pivot_[c]), sums_[c], sums_[channels + c]},
                 {static_cast<double>(weights.weight[c]), static_cast<double>(weights.bias[c])},
                 kNormEpsilon);
    state_.mean[c] = found.mean;
    state_.variance[c] = found.variance;
    state_.inverse[c] = found.inverse;
    state_.scale[c] = found.scale;
    state_.shift[c] = found.shift;
  }
}

template <class T>
void Norm<T>::apply(const Apply& args, Rows rows) const {
  const std::size_t channels = pivot_.size();
  const std::size_t first = rows.begin * channels;
  const Norm* beside = args.residual_norm;
  kernels_.apply({args.x + first, args.residual == nullptr ? nullptr : args.residual + first,
                  args.y + first, state_.scale.data(), state_.shift.data(),
                  beside == nullptr ? nullptr : beside->state_.scale.data(),
                  beside == nullptr ? nullptr : beside->state_.shift.data()},
                 {rows.end - rows.begin, channels});
}

template <class T>
NormGate<T> Norm<T>::gate_of(const Backward& args) const {
  if (args.y != nullptr || !args.relu) return {nullptr, nullptr, nullptr};
  return {nullptr, state_.scale.data(), state_.shift.data()};
}

template <class T>
void Norm<T>::sum_gradient(const Backward& args, Rows rows) {
  STARLING_DCHECK(args.more == nullptr || args.y != nullptr);
  const std::size_t channels = pivot_.size();
  const std::size_t first = rows.begin * channels;
  if (rows.begin == 0) std::ranges::fill(sums_, 0.0);
  NormGate<T> gate = gate_of(args);
  if (args.y != nullptr) gate.y = args.y + first;
  kernels_.gradient_sums(
      {args.x + first, args.g + first, args.more == nullptr ? nullptr : args.more + first,
       state_.mean.data(), gate},
      {rows.end - rows.begin, channels}, sums_.data());
}

template <class T>
void Norm<T>::end_gradient_sums(std::size_t rows, const NormWeights& weights) {
  const std::size_t channels = pivot_.size();
  const auto n = static_cast<double>(rows);
  for (std::size_t c = 0; c < channels; ++c) {
    const ChannelGradient found =
        gradient_of({n, sums_[c], sums_[channels + c]}, static_cast<double>(weights.weight[c]),
                    static_cast<double>(state_.mean[c]), static_cast<double>(state_.inverse[c]));
    weights.bias_gradient[c] = found.bias;
    weights.weight_gradient[c] = found.weight;
    a_[c] = found.a;
    b_[c] = found.b;
    c_[c] = found.c;
  }
}

template <class T>
void Norm<T>::gradient(const Backward& args, Rows rows) const {
  const std::size_t channels = pivot_.size();
  const std::size_t first = rows.begin * channels;
  kernels_.gradient({args.x + first, args.g + first, args.dx + first, a_.data(), b_.data(),
                     c_.data(), gate_of(args)},
                    {rows.end - rows.begin, channels});
}

template class Norm<float>;
template class Norm<Bf16>;

}  // namespace starling::training
