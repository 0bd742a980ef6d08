#include "training/cpu/slice.h"

#include "training/layered_step.h"
#include "training/working_copy.h"

namespace starling::training {
namespace {

// A Norm with its learned values.
template <class T>
class LearnedNorm {
 public:
  LearnedNorm(std::size_t channels, const NormWeights& learned)
      : norm_(channels, norm_isa()), learned_(learned) {}

  struct Apply {
    const T* x = nullptr;
    const T* residual = nullptr;
    const LearnedNorm* residual_norm = nullptr;
    T* y = nullptr;
  };
  using Backward = typename Norm<T>::Backward;

  void measure(const T* x, Rows rows) { norm_.measure(x, rows); }
  void end_measure(std::size_t rows) { norm_.end_measure(rows, learned_); }
  void apply(const Apply& args, Rows rows) const {
    const LearnedNorm* beside = args.residual_norm;
    norm_.apply({args.x, args.residual, beside == nullptr ? nullptr : &beside->norm_, args.y},
                rows);
  }
  void sum_gradient(const Backward& args, Rows rows) { norm_.sum_gradient(args, rows); }
  void end_gradient_sums(std::size_t rows) { norm_.end_gradient_sums(rows, learned_); }
  void gradient(const Backward& args, Rows rows) const { norm_.gradient(args, rows); }
  [[nodiscard]] const NormState& state() const { return norm_.state(); }

 private:
  Norm<T> norm_;
  NormWeights learned_;
};

template <class T>
class SliceOf final : public Slice {
 public:
  SliceOf(const Model& model, const Weights& weights, const std::vector<at::Tensor>& gradients)
      : step_(wiring_of(model), weights, gradients, [&](const UnitWiring& wires) {
          const auto& learned = weights.parameters;
          return LearnedNorm<T>(
              static_cast<std::size_t>(learned[wires.conv].size(0)),
              {floats_of(learned[wires.norm_weight]), floats_of(learned[wires.norm_bias]),
               floats_of(gradients[wires.norm_weight]), floats_of(gradients[wires.norm_bias])});
        }) {}

  std::optional<double> forward_backward(const StepJob& job) override {
    const at::Tensor loss = step_.forward_backward(job);
    if (!loss.defined()) return std::nullopt;
    return loss.template item<double>();
  }
  const NormState& statistics(std::size_t norm) const override { return step_.norm(norm).state(); }

 private:
  LayeredStep<T, LearnedNorm<T>> step_;
};

}  // namespace

std::unique_ptr<Slice> Slice::make(const Model& model, const Weights& weights,
                                   const std::vector<at::Tensor>& gradients) {
  const Wiring wiring = wiring_of(model);
  if (weights.parameters[wiring.stem.conv].scalar_type() == at::kBFloat16) {
    return std::make_unique<SliceOf<Bf16>>(model, weights, gradients);
  }
  return std::make_unique<SliceOf<float>>(model, weights, gradients);
}

}  // namespace starling::training
