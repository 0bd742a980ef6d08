#include "training/cpu/slice.h"

#include "tests/training/torch_support.h"
#include "training/arena.h"
#include "training/cpu/intra_op.h"
#include "training/cpu/slices.h"
#include "training/cpu/tensor_memory.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

constexpr double kSmoothing = 0.1;

struct Images {
  at::Tensor pixels;
  at::Tensor labels;
};

Images images_for(const Model& model, std::int64_t count) {
  use_intra_op_threads(1);
  torch::manual_seed(1);
  const ModelSpec& spec = model.plan.spec;
  const std::int64_t side = spec.image_size;
  // The layout of a Batch: N,H,W,C in memory.
  return {at::randn({count, side, side, spec.channels}).permute({0, 3, 1, 2}),
          at::randint(spec.classes, {count}, at::kLong)};
}

// A model whose every parameter matters: the genesis has biases of zero and scales of one.
Trainer::Start shaken(const Model& model) {
  Trainer::Start start = start_of(model, 5);
  Rng rng(9);
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    if (!place.is_small()) continue;
    for (std::size_t i = 0; i < place.count; ++i) {
      start.replica.parameters[place.offset + i] += static_cast<float>(rng.unit() * 0.4 - 0.2);
    }
  }
  return start;
}

struct Computed {
  double loss;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> variances;
};

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

// LibTorch's own way, in the precision of the slices or, to compare both with, in doubles.
Computed with_autograd(const Model& model, const Images& images, at::ScalarType type) {
  Arena arena(model, {.precision = type == at::kBFloat16 ? Precision::bf16 : Precision::fp32},
              shaken(model).replica, {});
  Weights weights;
  const auto add = [type](std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
    for (const at::Tensor& tensor : from) {
      to.push_back(type == at::kDouble ? tensor.to(at::kDouble) : tensor.clone());
    }
  };
  add(weights.parameters, arena.weights().parameters);
  add(weights.means, arena.weights().means);
  add(weights.variances, arena.weights().variances);
  at::Tensor& bias = weights.parameters[wiring_of(model).fc_bias];
  bias = bias.to(at::kFloat);  // the last layer is fp32 whatever the rest is
  for (at::Tensor& parameter : weights.parameters) parameter.requires_grad_(true);
  const at::Tensor logits = Network(model).forward(weights, images.pixels, Mode::training);
  const at::Tensor loss =
      at::cross_entropy_loss(logits, images.labels, {}, at::Reduction::Mean, -100, kSmoothing);
  loss.backward();
  Computed computed{loss.item<double>(), {}, weights.means, weights.variances};
  for (const at::Tensor& parameter : weights.parameters) {
    computed.gradients.push_back(parameter.grad());
  }
  return computed;
}

Computed with_slices(const Model& model, const Images& images, Precision precision, int threads) {
  ResolvedDevice device;
  device.precision = precision;
  Arena arena(model, device, shaken(model).replica, {});
  Slices slices(model, arena, threads);
  const std::atomic<bool> drop = false;
  const auto outcome = slices.run({images.pixels, images.labels}, kSmoothing, drop);
  REQUIRE(outcome.has_value());
  CHECK(outcome->finite);
  Computed computed{outcome->loss, copies_of(arena.gradients(0)), copies_of(arena.weights().means),
                    copies_of(arena.weights().variances)};
  const auto images_count = static_cast<std::size_t>(images.labels.size(0));
  for (std::size_t set = 1; set < slice_count(images_count, threads); ++set) {
    const std::vector<at::Tensor>& more = arena.gradients(set);
    for (std::size_t i = 0; i < more.size(); ++i) computed.gradients[i].add_(more[i]);
  }
  return computed;
}

// The mean over all tensors of their relative errors.
double error_of(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& exact) {
  double sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) sum += difference(got[i], exact[i]);
  return sum / static_cast<double>(got.size());
}

void check_like(const Model& model, const Computed& got, const Computed& expected,
                double tolerance) {
  CHECK(got.loss == doctest::Approx(expected.loss).epsilon(tolerance));
  const auto places = model.layout.tensors();
  for (std::size_t i = 0; i < places.size(); ++i) {
    CAPTURE(places[i].name);
    CHECK(difference(got.gradients[i], expected.gradients[i]) < tolerance);
  }
  for (std::size_t i = 0; i < model.norms.size(); ++i) {
    CAPTURE(model.norms[i].name);
    CHECK(difference(got.means[i], expected.means[i]) < tolerance);
    CHECK(difference(got.variances[i], expected.variances[i]) < tolerance);
  }
}

Model model_of(const ModelSpec& spec) {
  auto model = make_model(spec);
  REQUIRE(model.has_value());
  return *std::move(model);
}

}  // namespace

TEST_SUITE("training/cpu/slice") {
  TEST_CASE("a slice is as close to the exact gradients as autograd is") {
    // Every kind of stem, block and shortcut. A fresh network that normalises with the statistics
    // of a few images amplifies roundings (relus near zero flip), so LibTorch in the same precision
    // is the measure, and doubles are the truth.
    for (const ModelSpec& spec :
         {ModelSpec{"small", 4, 1, 12}, ModelSpec{"small", 10, 3, 16},
          ModelSpec{"resnet18", 7, 3, 64}, ModelSpec{"resnet50", 7, 3, 64}}) {
      CAPTURE(spec.name);
      CAPTURE(spec.image_size);
      const Model model = model_of(spec);
      const Images images = images_for(model, 16);
      const Computed exact = with_autograd(model, images, at::kDouble);

      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        CAPTURE(name_of(precision));
        const bool bf16 = precision == Precision::bf16;
        const Computed torchs = with_autograd(model, images, bf16 ? at::kBFloat16 : at::kFloat);
        const Computed ours = with_slices(model, images, precision, 1);
        // Roundings are chance, but of many values: twice LibTorch's error is not chance.
        // (1e-5: a few ulp of fp32, where there is nothing to compare.)
        CHECK(error_of(ours.gradients, exact.gradients) <
              2 * error_of(torchs.gradients, exact.gradients) + 1e-5);
        CHECK(error_of(ours.means, exact.means) < 2 * error_of(torchs.means, exact.means) + 1e-5);
        CHECK(error_of(ours.variances, exact.variances) <
              2 * error_of(torchs.variances, exact.variances) + 1e-5);
        CHECK(ours.loss == doctest::Approx(exact.loss).epsilon(bf16 ? 0.02 : 1e-4));
      }
    }
  }

  TEST_CASE("on a shallow net every single gradient is that of autograd") {
    for (const ModelSpec& spec : {ModelSpec{"small", 4, 1, 12}, ModelSpec{"small", 10, 3, 16}}) {
      const Model model = model_of(spec);
      const Images images = images_for(model, 16);
      // fp32 sums of up to 4,096 terms in another order, through nine layers.
      check_like(model, with_slices(model, images, Precision::fp32, 1),
                 with_autograd(model, images, at::kFloat), 1e-4);
    }
  }

  TEST_CASE("the slices of a batch give the mean of what each gives alone") {
    const Model model = tiny_model();
    const Images images = images_for(model, 24);
    const auto part = [&](std::int64_t begin) {
      const Images one{images.pixels.narrow(0, begin, 8), images.labels.narrow(0, begin, 8)};
      return with_slices(model, one, Precision::fp32, 1);
    };
    Computed expected = part(0);
    for (const std::int64_t begin : {8, 16}) {
      const Computed more = part(begin);
      expected.loss += more.loss;
      const auto add = [](std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i].add_(from[i]);
      };
      add(expected.gradients, more.gradients);
      add(expected.means, more.means);
      add(expected.variances, more.variances);
    }
    expected.loss /= 3;
    for (auto* all : {&expected.gradients, &expected.means, &expected.variances}) {
      for (at::Tensor& tensor : *all) tensor.div_(3);
    }

    // The same sums but for the last division.
    check_like(model, with_slices(model, images, Precision::fp32, 3), expected, 1e-5);
  }

  TEST_CASE("a step that fails among its layers lets go of its activations, in every slice") {
    use_cached_tensor_memory();
    const Model model = model_of({"small", 4, 1, 48});
    for (const int threads : {1, 2}) {
      CAPTURE(threads);
      Images images = images_for(model, 64);
      const std::atomic<bool> drop = false;
      Arena arena(model, {}, shaken(model).replica, {});
      Slices slices(model, arena, threads);
      REQUIRE(slices.run({images.pixels, images.labels}, kSmoothing, drop).has_value());
      trim_tensor_memory();
      const std::size_t held = tensor_memory_bytes();

      // LibTorch throws at a label that is none, behind the last block: all activations are there.
      images.labels.fill_(99);
      CHECK_THROWS((void)slices.run({images.pixels, images.labels}, kSmoothing, drop));

      trim_tensor_memory();
      CHECK(tensor_memory_bytes() == held);
    }
  }

  TEST_CASE("a batch is cut into no more slices than threads, and into none below eight images") {
    CHECK(slice_count(64, 1) == 1);
    CHECK(slice_count(64, 4) == 4);
    CHECK(slice_count(64, 16) == 8);
    CHECK(slice_count(17, 4) == 2);
    CHECK(slice_count(3, 4) == 1);
  }
}
