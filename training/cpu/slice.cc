#include "training/cpu/slice.h"

#include "node/base/check.h"
#include "training/cpu/conv.h"
#include "training/working_copy.h"

#include <span>
#include <tuple>
#include <utility>

namespace starling::training {
namespace {

template <class T>
T* values_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

std::size_t rows_of(const at::Tensor& x) {
  STARLING_DCHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast));
  return static_cast<std::size_t>(x.numel() / x.size(1));
}

// A convolution, the normalisation behind it, and what the backward pass needs of the forward pass.
template <class T>
struct Layer {
  Layer(const UnitWiring& wires, const Weights& weights, const std::vector<at::Tensor>& gradients)
      : conv{weights.parameters[wires.conv], gradients[wires.conv], wires.stride, wires.padding},
        norm(static_cast<std::size_t>(conv.weight.size(0)), norm_isa()),
        learned{floats_of(weights.parameters[wires.norm_weight]),
                floats_of(weights.parameters[wires.norm_bias]),
                floats_of(gradients[wires.norm_weight]), floats_of(gradients[wires.norm_bias])},
        number(wires.norm) {}

  // Up to the statistics: z is what is to be normalised.
  void convolve(const at::Tensor& input) {
    x = input;
    z = conv_forward(conv, x);
    norm.measure(values_of<T>(z), rows_of(z), learned);
  }
  void activate() {
    y = at::empty_like(z);
    norm.apply({.x = values_of<T>(z), .y = values_of<T>(y)}, rows_of(z));
  }
  void activate(const at::Tensor& residual, const Norm<T>* residual_norm) {
    y = at::empty_like(z);
    norm.apply({.x = values_of<T>(z),
                .residual = values_of<T>(residual),
                .residual_norm = residual_norm,
                .y = values_of<T>(y)},
               rows_of(z));
  }
  // From the gradient behind the activation to that of the input; lets go of the activations.
  at::Tensor backward(typename Norm<T>::Backward args, InputGradient input) {
    args.x = values_of<T>(z);
    args.dx = values_of<T>(z);  // nobody reads z any more
    norm.backward(args, rows_of(z), learned);
    at::Tensor dx = conv_backward(conv, x, z, input);
    x.reset();
    y.reset();
    z.reset();
    return dx;
  }

  Conv conv;
  Norm<T> norm;
  NormWeights learned;
  std::size_t number;
  at::Tensor x;
  at::Tensor z;
  at::Tensor y;
};

// The gradient of an activation that two layers read: the sum of both, not yet summed.
struct TwoGradients {
  at::Tensor first;
  at::Tensor second;  // may be undefined
};

template <class T>
struct ResidualBlock {
  ResidualBlock(const BlockWiring& wires, const Weights& weights,
                const std::vector<at::Tensor>& gradients) {
    for (const UnitWiring& unit : wires.units) layers.emplace_back(unit, weights, gradients);
    if (wires.shortcut == Shortcut::projection) {
      projection = std::make_unique<Layer<T>>(wires.projection, weights, gradients);
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor* x = &input;
    for (Layer<T>& layer : layers) {
      layer.convolve(*x);
      if (&layer == &layers.back()) break;
      layer.activate();
      x = &layer.y;
    }
    Layer<T>& last = layers.back();
    if (projection) {
      projection->convolve(input);
      last.activate(projection->z, &projection->norm);
    } else {
      last.activate(input, nullptr);
    }
    return last.y;
  }

  TwoGradients backward(const TwoGradients& behind) {
    Layer<T>& last = layers.back();
    const at::Tensor y = last.y;
    at::Tensor g =
        last.backward({.g = values_of<T>(behind.first),
                       .more = behind.second.defined() ? values_of<T>(behind.second) : nullptr,
                       .y = values_of<T>(y)},
                      InputGradient::wanted);
    for (std::size_t i = layers.size() - 1; i-- > 0;) {
      g = layers[i].backward({.g = values_of<T>(g)}, InputGradient::wanted);
    }
    // behind.first is the gradient of the sum by now, and so that of the shortcut.
    if (!projection) return {g, behind.first};
    return {g, projection->backward({.g = values_of<T>(behind.first), .relu = false},
                                    InputGradient::wanted)};
  }

  std::vector<Layer<T>> layers;
  std::unique_ptr<Layer<T>> projection;
};

template <class T>
class SliceOf final : public Slice {
 public:
  SliceOf(const Model& model, const Weights& weights, const std::vector<at::Tensor>& gradients)
      : wiring_(wiring_of(model)),
        stem_(wiring_.stem, weights, gradients),
        fc_weight_(weights.parameters[wiring_.fc_weight]),
        fc_bias_(weights.parameters[wiring_.fc_bias]),
        fc_weight_gradient_(gradients[wiring_.fc_weight]),
        fc_bias_gradient_(gradients[wiring_.fc_bias]),
        states_(model.norms.size()) {
    blocks_.reserve(wiring_.blocks.size());
    states_[stem_.number] = &stem_.norm.state();
    for (const BlockWiring& wires : wiring_.blocks) {
      ResidualBlock<T>& block = blocks_.emplace_back(wires, weights, gradients);
      for (const Layer<T>& layer : block.layers) states_[layer.number] = &layer.norm.state();
      if (block.projection) states_[block.projection->number] = &block.projection->norm.state();
    }
  }

  double forward_backward(const Job& job) override {
    const torch::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView no_dispatch;
    stem_.convolve(job.images.to(fc_weight_.scalar_type()));
    stem_.activate();
    at::Tensor x = stem_.y;
    at::Tensor places;  // where each maximum came from
    if (wiring_.stem_kind == Stem::imagenet) {
      std::tie(x, places) = at::max_pool2d_with_indices(x, {3, 3}, {2, 2}, {1, 1});
    }
    for (ResidualBlock<T>& block : blocks_) x = block.forward(x);

    auto [loss, gradient] = head(job, x);
    x.reset();
    TwoGradients g{gradient, at::Tensor()};
    for (std::size_t i = blocks_.size(); i-- > 0;) g = blocks_[i].backward(g);
    at::Tensor last = g.first.add_(g.second);
    if (places.defined()) {
      last = at::max_pool2d_with_indices_backward(last, stem_.y, {3, 3}, {2, 2}, {1, 1}, {1, 1},
                                                  /*ceil_mode=*/false, places);
    }
    (void)stem_.backward({.g = values_of<T>(last)}, InputGradient::unwanted);
    return loss;
  }

  const NormState& statistics(std::size_t norm) const override { return *states_[norm]; }

 private:
  // Mean over the image, linear layer, loss: its value, and the gradient of x.
  std::pair<double, at::Tensor> head(const Job& job, const at::Tensor& x) {
    const at::Tensor features = at::mean(x, {2, 3}, /*keepdim=*/false, at::kFloat);
    const at::Tensor weight = fc_weight_.to(at::kFloat);
    const at::Tensor scores = at::log_softmax(at::addmm(fc_bias_, features, weight.t()), 1);
    const auto batch = static_cast<double>(job.batch);
    const double spread = job.label_smoothing / static_cast<double>(scores.size(1));
    const at::Tensor labels = job.labels.unsqueeze(1);
    // Cross-entropy with a target of 1 - label_smoothing on the label and `spread` on all.
    const double loss =
        -((1 - job.label_smoothing) * scores.gather(1, labels).sum().item<double>() +
          spread * scores.sum().item<double>()) /
        batch;
    at::Tensor g = scores.exp().sub_(spread);
    g.scatter_add_(1, labels, at::full_like(labels, -(1 - job.label_smoothing), at::kFloat));
    g.div_(batch);
    fc_weight_gradient_.copy_(at::mm(g.t(), features));
    at::sum_out(fc_bias_gradient_, g, {0});
    const at::Tensor dx = at::mm(g, weight).div_(static_cast<double>(x.size(2) * x.size(3)));
    at::Tensor spread_out = at::empty_like(x);
    spread_out.copy_(dx.unsqueeze(2).unsqueeze(3).expand(x.sizes()));
    return {loss, spread_out};
  }

  Wiring wiring_;
  Layer<T> stem_;
  std::vector<ResidualBlock<T>> blocks_;
  at::Tensor fc_weight_;
  at::Tensor fc_bias_;
  at::Tensor fc_weight_gradient_;
  at::Tensor fc_bias_gradient_;
  std::vector<const NormState*> states_;
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
