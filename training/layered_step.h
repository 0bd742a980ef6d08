// LayeredStep: forward and backward of a model, layer by layer, without autograd.
//
// Includes torch: for this folder's .cc files only.
#pragma once

#include "node/base/check.h"
#include "training/conv.h"
#include "training/models/network.h"

#include <torch/torch.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace starling::training {

// The images of one forward and backward pass.
struct StepJob {
  at::Tensor images;       // n x C x H x W, channels_last strides, fp32
  at::Tensor labels;       // n, int64
  std::int64_t batch = 0;  // images of the whole batch: gradients are those of its mean loss
  double label_smoothing = 0;
  // Looked at between blocks; once it is true, the rest is left out. Null: never.
  const std::atomic<bool>* drop = nullptr;
};

template <class T>
T* values_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

inline std::size_t rows_of(const at::Tensor& x) {
  STARLING_DCHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast));
  return static_cast<std::size_t>(x.numel() / x.size(1));
}

// A convolution, the normalisation behind it, and what the backward pass needs of the forward pass.
template <class T, class Norm>
struct Layer {
  template <class MakeNorm>
  Layer(const UnitWiring& wires, const Weights& weights, const std::vector<at::Tensor>& gradients,
        MakeNorm& make_norm)
      : conv{weights.parameters[wires.conv], gradients[wires.conv], wires.stride, wires.padding},
        norm(make_norm(wires)),
        number(wires.norm) {}

  // Up to the statistics: z is what is to be normalised.
  void convolve(const at::Tensor& input) {
    x = input;
    z = conv_forward(conv, x);
    norm.measure(values_of<T>(z), rows_of(z));
  }
  void activate() {
    y = at::empty_like(z);
    norm.apply({.x = values_of<T>(z), .y = values_of<T>(y)}, rows_of(z));
  }
  void activate(const at::Tensor& residual, const Norm* residual_norm) {
    y = at::empty_like(z);
    norm.apply({.x = values_of<T>(z),
                .residual = values_of<T>(residual),
                .residual_norm = residual_norm,
                .y = values_of<T>(y)},
               rows_of(z));
  }
  // From the gradient behind the activation to that of the input; lets go of the activations.
  at::Tensor backward(typename Norm::Backward args, InputGradient input) {
    args.x = values_of<T>(z);
    args.dx = values_of<T>(z);  // nobody reads z any more
    norm.backward(args, rows_of(z));
    at::Tensor dx = conv_backward(conv, x, z, input);
    release();
    return dx;
  }
  void release() {
    x.reset();
    y.reset();
    z.reset();
  }

  Conv conv;
  Norm norm;
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

template <class T, class Norm>
struct ResidualBlock {
  template <class MakeNorm>
  ResidualBlock(const BlockWiring& wires, const Weights& weights,
                const std::vector<at::Tensor>& gradients, MakeNorm& make_norm) {
    for (const UnitWiring& unit : wires.units)
      layers.emplace_back(unit, weights, gradients, make_norm);
    if (wires.shortcut == Shortcut::projection) {
      projection =
          std::make_unique<Layer<T, Norm>>(wires.projection, weights, gradients, make_norm);
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor* x = &input;
    for (Layer<T, Norm>& layer : layers) {
      layer.convolve(*x);
      if (&layer == &layers.back()) break;
      layer.activate();
      x = &layer.y;
    }
    Layer<T, Norm>& last = layers.back();
    if (projection) {
      projection->convolve(input);
      last.activate(projection->z, &projection->norm);
    } else {
      last.activate(input, nullptr);
    }
    return last.y;
  }

  TwoGradients backward(const TwoGradients& behind) {
    Layer<T, Norm>& last = layers.back();
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

  void release() {
    for (Layer<T, Norm>& layer : layers) layer.release();
    if (projection) projection->release();
  }

  std::vector<Layer<T, Norm>> layers;
  std::unique_ptr<Layer<T, Norm>> projection;
};

// Computes the loss of its images and the gradients of all parameters: the same layers as Network
// with autograd, in fewer passes over memory. Normalisation, residual and relu are one, gradients
// are written where they belong instead of added to zeros, and the two gradients that meet at the
// end of a block are summed where they are read. Works on any device, and in a CUDA graph: nothing
// waits for a value.
//
// T is the type of weights and activations. A Norm normalises with measure(x, rows), apply(Apply,
// rows) and backward(Backward, rows), which mean what they mean in training/cpu/norm.h.
//
// Reads the weights, which others may share, and writes gradients of its own; running statistics
// are not its business. One thread at a time.
// Cost:    two activations for each convolution until the backward pass has used them.
template <class T, class Norm>
class LayeredStep {
 public:
  // `gradients` are views in the order of Layout::tensors(), of the weights' types and strides; all
  // must outlive the step. make_norm(const UnitWiring&) makes a layer's Norm.
  template <class MakeNorm>
  LayeredStep(const Model& model, const Weights& weights, const std::vector<at::Tensor>& gradients,
              MakeNorm make_norm)
      : wiring_(wiring_of(model)),
        stem_(wiring_.stem, weights, gradients, make_norm),
        fc_weight_(weights.parameters[wiring_.fc_weight]),
        fc_bias_(weights.parameters[wiring_.fc_bias]),
        fc_weight_gradient_(gradients[wiring_.fc_weight]),
        fc_bias_gradient_(gradients[wiring_.fc_bias]),
        norms_(model.norms.size()) {
    blocks_.reserve(wiring_.blocks.size());
    norms_[stem_.number] = &stem_.norm;
    for (const BlockWiring& wires : wiring_.blocks) {
      ResidualBlock<T, Norm>& block = blocks_.emplace_back(wires, weights, gradients, make_norm);
      for (const Layer<T, Norm>& layer : block.layers) norms_[layer.number] = &layer.norm;
      if (block.projection) norms_[block.projection->number] = &block.projection->norm;
    }
  }
  LayeredStep(const LayeredStep&) = delete;
  LayeredStep& operator=(const LayeredStep&) = delete;

  // The share of the batch's mean loss that these images have (its sum over `batch`): one double,
  // on the images' device; undefined where the job was dropped. Every gradient is overwritten.
  // Throws what LibTorch throws.
  [[nodiscard]] at::Tensor forward_backward(const StepJob& job) {
    const torch::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView no_dispatch;
    stem_.convolve(job.images.to(fc_weight_.scalar_type()));
    stem_.activate();
    at::Tensor x = stem_.y;
    at::Tensor places;  // where each maximum came from
    if (wiring_.stem_kind == Stem::imagenet) {
      std::tie(x, places) = at::max_pool2d_with_indices(x, {3, 3}, {2, 2}, {1, 1});
    }
    for (ResidualBlock<T, Norm>& block : blocks_) {
      if (is_dropped(job)) return release();
      x = block.forward(x);
    }

    auto [loss, gradient] = head(job, x);
    x.reset();
    TwoGradients g{gradient, at::Tensor()};
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      if (is_dropped(job)) return release();
      g = blocks_[i].backward(g);
    }
    at::Tensor last = g.first.add_(g.second);
    if (places.defined()) {
      last = at::max_pool2d_with_indices_backward(last, stem_.y, {3, 3}, {2, 2}, {1, 1}, {1, 1},
                                                  /*ceil_mode=*/false, places);
    }
    (void)stem_.backward({.g = values_of<T>(last)}, InputGradient::unwanted);
    return loss;
  }

  // In the order of Model::norms.
  [[nodiscard]] const Norm& norm(std::size_t number) const { return *norms_[number]; }

 private:
  static bool is_dropped(const StepJob& job) { return job.drop != nullptr && *job.drop; }
  // Lets go of all activations; undefined, as the loss of a job that was dropped.
  at::Tensor release() {
    stem_.release();
    for (ResidualBlock<T, Norm>& block : blocks_) block.release();
    return {};
  }

  // Mean over the image, linear layer, loss: its value, and the gradient of x.
  std::pair<at::Tensor, at::Tensor> head(const StepJob& job, const at::Tensor& x) {
    const at::Tensor features = at::mean(x, {2, 3}, /*keepdim=*/false, at::kFloat);
    const at::Tensor weight = fc_weight_.to(at::kFloat);
    const at::Tensor scores = at::log_softmax(at::addmm(fc_bias_, features, weight.t()), 1);
    const auto batch = static_cast<double>(job.batch);
    const double spread = job.label_smoothing / static_cast<double>(scores.size(1));
    const at::Tensor labels = job.labels.unsqueeze(1);
    // Cross-entropy with a target of 1 - label_smoothing on the label and `spread` on all.
    const at::Tensor on_labels = scores.gather(1, labels).sum().to(at::kDouble);
    const at::Tensor on_all = scores.sum().to(at::kDouble);
    const at::Tensor loss =
        (on_labels * (1 - job.label_smoothing) + on_all * spread).neg().div(batch);
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
  Layer<T, Norm> stem_;
  std::vector<ResidualBlock<T, Norm>> blocks_;
  at::Tensor fc_weight_;
  at::Tensor fc_bias_;
  at::Tensor fc_weight_gradient_;
  at::Tensor fc_bias_gradient_;
  std::vector<const Norm*> norms_;
};

}  // namespace starling::training
