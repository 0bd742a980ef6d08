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

inline ImageSizes sizes_of(const at::Tensor& x) {
  const auto size = [&](int dimension) { return static_cast<std::size_t>(x.size(dimension)); };
  return {size(0), size(2), size(3)};
}

// An activation, or what is left to do until it is one: who reads rows of it has them written
// first.
struct Activation {
  at::Tensor values;
  RowTask write;  // empty once they are there

  void complete() {
    run_for_all(write, values);
    write = {};
  }
};

// A Norm that does the max pool behind the stem, too, so that the activation before it is never in
// memory: pool() and pool_gradient(), instead of apply() and what the backward pass has for it.
template <class Norm>
concept Pooling = requires { typename Norm::Pool; };

// A convolution, the normalisation behind it, and what the backward pass needs of the forward pass.
// The normalisation is done where its rows are in the cache, along with this convolution and the
// next one, or the next one backwards.
template <class T, class Norm>
struct Layer {
  template <class MakeNorm>
  Layer(const UnitWiring& wires, const Weights& weights, const std::vector<at::Tensor>& gradients,
        MakeNorm& make_norm)
      : conv{weights.parameters[wires.conv], gradients[wires.conv], wires.stride, wires.padding},
        norm(make_norm(wires)),
        number(wires.norm) {}

  // Up to the statistics: z is what is to be normalised.
  void convolve(Activation& input) {
    x = input.values;
    RowTasks tasks;
    tasks.before = std::exchange(input.write, {});
    tasks.after.run = [this](void* rows_of_z, Rows rows) {
      norm.measure(static_cast<const T*>(rows_of_z), rows);
    };
    z = conv_forward(conv, x, tasks);
    norm.end_measure(rows_of(z));
  }
  Activation activate() { return activate(typename Norm::Apply{}, {}); }
  Activation activate(const at::Tensor& residual, const Norm* residual_norm) {
    return activate({.residual = values_of<T>(residual), .residual_norm = residual_norm},
                    {memory_of(residual)});
  }
  // Along with a max pool: windows of 3 x 3, stride 2, padding 1.
  Activation activate_pooled() {
    Activation pooled;
    if constexpr (Pooling<Norm>) {
      const auto half = [](std::int64_t size) { return (size + 1) / 2; };
      const std::int64_t sizes[] = {z.size(0), z.size(1), half(z.size(2)), half(z.size(3))};
      pooled.values = at::empty(sizes, z.options(), at::MemoryFormat::ChannelsLast);
      places = at::empty(sizes, z.options().dtype(at::kByte), at::MemoryFormat::ChannelsLast);
      norm.pool(pool_of(pooled.values), sizes_of(z));
    } else {
      activate().complete();
      std::tie(pooled.values, places) = at::max_pool2d_with_indices(y, {3, 3}, {2, 2}, {1, 1});
    }
    return pooled;
  }

  // Adds up rows of g, the gradient behind the activation; with a residual `more` is added to it
  // first, if it is defined, and g becomes the gradient of the sum, and so that of the residual.
  struct Behind {
    bool relu = true;
    bool residual = false;
    at::Tensor more = {};
  };
  RowTask summing(const Behind& behind) {
    RowTask task{{}, {memory_of(z)}};
    if (behind.residual) task.reads.push_back(memory_of(y));
    if (behind.more.defined()) task.reads.push_back(memory_of(behind.more));
    task.run = [this, behind](void* g, Rows rows) {
      norm.sum_gradient(backward_of(behind, static_cast<T*>(g)), rows);
    };
    return task;
  }
  // From the gradient behind the activation, all of which has been summed, to that of the input, of
  // which `after` is given rows; lets go of the activations.
  at::Tensor backward(const Behind& behind, const at::Tensor& g, InputGradient input,
                      RowTask after) {
    RowTasks tasks{end_of_norm(behind, g), std::move(after)};
    at::Tensor dx = conv_backward(conv, x, z, input, tasks);
    release();
    return dx;
  }
  // The same, adding the input's gradient to `onto`: where adds_input_gradient().
  void backward_onto(const Behind& behind, const at::Tensor& g, const at::Tensor& onto) {
    run_for_all(end_of_norm(behind, g), z);
    conv_backward_onto(conv, x, z, onto);
    release();
  }
  // From the gradient of what activate_pooled() returned to that of the weights.
  void backward_pooled(const at::Tensor& pooled) {
    if constexpr (Pooling<Norm>) {
      STARLING_DCHECK(pooled.is_contiguous(at::MemoryFormat::ChannelsLast));
      norm.pool_gradient(pool_of(pooled), sizes_of(z));
      (void)conv_backward(conv, x, z, InputGradient::unwanted);
      release();
    } else {
      const at::Tensor g = at::max_pool2d_with_indices_backward(
          pooled, y, {3, 3}, {2, 2}, {1, 1}, {1, 1}, /*ceil_mode=*/false, places);
      run_for_all(summing({}), g);
      (void)backward({}, g, InputGradient::unwanted, {});
    }
  }
  void release() {
    x.reset();
    y.reset();
    z.reset();
    places.reset();
    if constexpr (requires { norm.release(); }) norm.release();
  }

  Conv conv;
  Norm norm;
  std::size_t number;
  at::Tensor x;
  at::Tensor z;
  at::Tensor y;
  at::Tensor places;  // where each maximum of a pool came from

 private:
  Activation activate(typename Norm::Apply args, std::vector<RowMemory> reads) {
    y = at::empty_like(z);
    args.x = values_of<T>(z);
    args.y = values_of<T>(y);
    reads.push_back(memory_of(z));
    return {y,
            {[this, args](void* /*y*/, Rows rows) { norm.apply(args, rows); }, std::move(reads)}};
  }
  // Makes rows of the gradient before the normalisation.
  RowTask end_of_norm(const Behind& behind, const at::Tensor& g) {
    norm.end_gradient_sums(rows_of(z));
    const typename Norm::Backward args = backward_of(behind, values_of<T>(g));
    return {[this, args](void* /*z*/, Rows rows) { norm.gradient(args, rows); },
            {memory_of(z), memory_of(g)}};
  }
  typename Norm::Backward backward_of(const Behind& behind, T* g) const {
    return {.x = values_of<T>(z),
            .g = g,
            .more = behind.more.defined() ? values_of<T>(behind.more) : nullptr,
            .y = behind.residual ? values_of<T>(y) : nullptr,
            .dx = values_of<T>(z),  // nobody reads z any more
            .relu = behind.relu};
  }
  auto pool_of(const at::Tensor& pooled) const {
    return typename Norm::Pool{.x = values_of<T>(z),
                               .pooled = values_of<T>(pooled),
                               .places = values_of<std::uint8_t>(places)};
  }
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

  Activation forward(Activation input) {
    const at::Tensor shortcut = input.values;
    for (Layer<T, Norm>& layer : layers) {
      layer.convolve(input);
      if (&layer != &layers.back()) input = layer.activate();
    }
    Layer<T, Norm>& last = layers.back();
    if (!projection) return last.activate(shortcut, nullptr);
    Activation whole{shortcut, {}};
    projection->convolve(whole);
    return last.activate(projection->z, &projection->norm);
  }

  // Adds up the gradient behind the block: rows of its first half, `more` being its second.
  RowTask summing(const at::Tensor& more) {
    return layers.back().summing({.residual = true, .more = more});
  }
  // From the gradient behind the block, all of which has been summed, to that of its input, which
  // the block below, if there is one, adds up.
  TwoGradients backward(const TwoGradients& behind, ResidualBlock* below) {
    TwoGradients g = behind;
    typename Layer<T, Norm>::Behind what{.residual = true, .more = behind.second};
    for (std::size_t i = layers.size() - 1; i > 0; --i) {
      g.first = layers[i].backward(what, g.first, InputGradient::wanted, layers[i - 1].summing({}));
      what = {};
    }
    // behind.first is the gradient of the sum by now, and so that of the shortcut.
    g.second = projection ? projected(behind.first) : behind.first;
    if (adds_input_gradient(layers[0].conv, layers[0].x)) {
      layers[0].backward_onto(what, g.first, g.second);
      if (below != nullptr) run_for_all(below->summing({}), g.second);
      return {g.second, {}};
    }
    g.first = layers[0].backward(what, g.first, InputGradient::wanted,
                                 below == nullptr ? RowTask{} : below->summing(g.second));
    return g;
  }

  void release() {
    for (Layer<T, Norm>& layer : layers) layer.release();
    if (projection) projection->release();
  }

  std::vector<Layer<T, Norm>> layers;
  std::unique_ptr<Layer<T, Norm>> projection;

 private:
  at::Tensor projected(const at::Tensor& g) {
    const typename Layer<T, Norm>::Behind what{.relu = false};
    run_for_all(projection->summing(what), g);
    return projection->backward(what, g, InputGradient::wanted, {});
  }
};

// Computes the loss of its images and the gradients of all parameters: the same layers as Network
// with autograd, in fewer passes over memory. Normalisation, residual and relu are one, gradients
// are written where they belong instead of added to zeros, and the two gradients that meet at the
// end of a block are summed where they are read. Works on any device, and in a CUDA graph: nothing
// waits for a value.
//
// T is the type of weights and activations. A Norm has the functions of training/cpu/norm.h, with
// what is learned in it; on a GPU rows come all at once.
//
// Reads the weights, which others may share, and writes gradients of its own; running statistics
// are not its business. One thread at a time.
// Cost:    two activations for each convolution until the backward pass has used them.
template <class T, class Norm>
class LayeredStep {
 public:
  // `gradients` are views in the order of Layout::tensors(), of the weights' types and strides; the
  // wiring is that of their model, or one whose layers compute the same otherwise. The memory of
  // all must outlive the step. make_norm(const UnitWiring&) makes a layer's Norm.
  template <class MakeNorm>
  LayeredStep(Wiring wiring, const Weights& weights, const std::vector<at::Tensor>& gradients,
              MakeNorm make_norm)
      : wiring_(std::move(wiring)),
        stem_(wiring_.stem, weights, gradients, make_norm),
        fc_weight_(weights.parameters[wiring_.fc_weight]),
        fc_bias_(weights.parameters[wiring_.fc_bias]),
        fc_weight_gradient_(gradients[wiring_.fc_weight]),
        fc_bias_gradient_(gradients[wiring_.fc_bias]) {
    const auto number_norm = [this](const Layer<T, Norm>& layer) {
      if (norms_.size() <= layer.number) norms_.resize(layer.number + 1);
      norms_[layer.number] = &layer.norm;
    };
    blocks_.reserve(wiring_.blocks.size());
    number_norm(stem_);
    for (const BlockWiring& wires : wiring_.blocks) {
      ResidualBlock<T, Norm>& block = blocks_.emplace_back(wires, weights, gradients, make_norm);
      for (const Layer<T, Norm>& layer : block.layers) number_norm(layer);
      if (block.projection) number_norm(*block.projection);
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
    const Releasing releasing{*this};
    Activation images{job.images.to(fc_weight_.scalar_type()), {}};
    stem_.convolve(images);
    const bool pooled = wiring_.stem_kind == Stem::imagenet;
    Activation x = pooled ? stem_.activate_pooled() : stem_.activate();
    for (ResidualBlock<T, Norm>& block : blocks_) {
      if (is_dropped(job)) return {};
      x = block.forward(std::move(x));
    }

    x.complete();
    auto [loss, gradient] = head(job, x.values);
    x = {};
    TwoGradients g{gradient, at::Tensor()};
    run_for_all(blocks_.back().summing({}), g.first);
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      if (is_dropped(job)) return {};
      g = blocks_[i].backward(g, i == 0 ? nullptr : &blocks_[i - 1]);
    }
    const at::Tensor last = g.second.defined() ? g.first.add_(g.second) : g.first;
    if (pooled) {
      stem_.backward_pooled(last);
    } else {
      run_for_all(stem_.summing({}), last);
      (void)stem_.backward({}, last, InputGradient::unwanted, {});
    }
    return loss;
  }

  // In the order of Model::norms.
  [[nodiscard]] const Norm& norm(std::size_t number) const { return *norms_[number]; }

 private:
  static bool is_dropped(const StepJob& job) { return job.drop != nullptr && *job.drop; }
  // Lets go of all activations at the end of a pass, also of one that was dropped or that threw: a
  // smaller batch, or the checkpoint before the end, needs their memory.
  struct Releasing {
    LayeredStep& step;
    ~Releasing() {
      step.stem_.release();
      for (ResidualBlock<T, Norm>& block : step.blocks_) block.release();
    }
  };

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
