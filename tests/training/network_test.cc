#include "training/models/network.h"

#include "torch_support.h"
#include "training/working_copy.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <set>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/models/network") {
  TEST_CASE("resnet50 gives one finite logit a class at 64 pixels, in fp32 and in bf16") {
    auto model = make_model({"resnet50", 1'000, 3, 64});
    REQUIRE(model.has_value());
    const Replica genesis = make_genesis(*model, 1).replica;
    const Network network(*model);
    torch::manual_seed(1);
    const at::Tensor images = at::randn({4, 3, 64, 64}).contiguous(at::MemoryFormat::ChannelsLast);
    const torch::NoGradGuard no_grad;

    at::Tensor logits[2];
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(name_of(precision));
      WorkingCopy working(*model, {.precision = precision});
      working.load(genesis);
      const at::Tensor trained = network.forward(working.weights(), images, Mode::training);
      CHECK(trained.sizes() == at::IntArrayRef{4, 1'000});
      CHECK((trained.scalar_type() == at::kFloat));
      CHECK(at::isfinite(trained).all().item<bool>());
      working.load(genesis);  // forget the batch's statistics
      logits[precision == Precision::bf16 ? 1 : 0] =
          network.forward(working.weights(), images, Mode::evaluation);
    }
    // With fixed statistics 53 layers round weights and activations to 2^-9 each, signs at random:
    // sqrt(106) * 2^-9 = 2 %, and twice that for what the layers amplify. (With the statistics of
    // 16 values, as in training here, a fresh network amplifies far more: torchvision too differs
    // by 0.33.)
    CHECK(difference(logits[1], logits[0]) < 0.04);
  }

  TEST_CASE("the network computes what torch's own modules compute with the same weights") {
    const Model model = tiny_model();
    WorkingCopy working(model, {});
    working.load(make_genesis(model, 3).replica);
    const Network network(model);
    const auto parameter = [&](const std::string& name) {
      const auto tensors = model.layout.tensors();
      const auto found = std::ranges::find(tensors, name, &gossip::TensorPlace::name);
      REQUIRE(found != tensors.end());
      return working.weights()
          .parameters[static_cast<std::size_t>(found - tensors.begin())]
          .contiguous();
    };
    const auto unit = [&](const std::string& conv, const std::string& norm, const at::Tensor& x,
                          std::int64_t stride) {
      const at::Tensor weight = parameter(conv + ".weight");
      const at::Tensor y = at::conv2d(x, weight, {}, stride, weight.size(2) / 2);
      return at::native_batch_norm(y, parameter(norm + ".weight"), parameter(norm + ".bias"), {},
                                   {}, true, 0.1, 1e-5);
    };
    const torch::NoGradGuard no_grad;
    torch::manual_seed(2);
    const at::Tensor images = at::randn({8, 1, 12, 12});

    at::Tensor x = std::get<0>(unit("conv1", "bn1", images, 1)).relu();
    for (const std::int64_t stage : {1, 2, 3}) {
      const std::string p = "layer" + std::to_string(stage) + ".0.";
      const std::int64_t stride = stage == 1 ? 1 : 2;
      at::Tensor y = std::get<0>(unit(p + "conv1", p + "bn1", x, stride)).relu();
      y = std::get<0>(unit(p + "conv2", p + "bn2", y, 1));
      const at::Tensor shortcut =
          stage == 1 ? x : std::get<0>(unit(p + "downsample.0", p + "downsample.1", x, 2));
      x = (y + shortcut).relu();
    }
    const at::Tensor expected =
        at::linear(x.mean({2, 3}), parameter("fc.weight"), parameter("fc.bias"));
    const at::Tensor got = network.forward(working.weights(), images, Mode::training);

    // The same operations in another memory order: fp32 sums of up to 1,152 terms, 9 layers.
    CHECK(difference(got, expected) < 1e-4);
  }

  TEST_CASE("evaluating changes no statistic, training does") {
    const Model model = tiny_model();
    WorkingCopy working(model, {});
    const Replica genesis = make_genesis(model, 3).replica;
    working.load(genesis);
    const Network network(model);
    const torch::NoGradGuard no_grad;
    const at::Tensor images = at::randn({8, 1, 12, 12});
    std::vector<float> mean(genesis.bn_mean.size());
    std::vector<float> variance(genesis.bn_mean.size());

    (void)network.forward(working.weights(), images, Mode::evaluation);
    working.read_statistics(mean, variance);
    CHECK(mean == genesis.bn_mean);
    CHECK(variance == genesis.bn_variance);

    (void)network.forward(working.weights(), images, Mode::training);
    working.read_statistics(mean, variance);
    CHECK(mean != genesis.bn_mean);
    CHECK(variance != genesis.bn_variance);
  }

  TEST_CASE("weights are views with channels_last strides over O,H,W,I memory") {
    const Model model = tiny_model();
    WorkingCopy working(model, {});
    const Replica genesis = make_genesis(model, 4).replica;
    working.load(genesis);
    const auto tensors = model.layout.tensors();

    std::set<const void*> seen;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& view = working.weights().parameters[i];
      CAPTURE(tensors[i].name);
      CHECK(view.sizes() == at::IntArrayRef(tensors[i].dims));
      CHECK(seen.insert(view.data_ptr()).second);
      if (view.dim() != 4) continue;
      CHECK(view.is_contiguous(at::MemoryFormat::ChannelsLast));
      const std::int64_t o = view.size(0) - 1;
      const std::int64_t in = view.size(1) - 1;
      const std::int64_t h = view.size(2) - 1;
      const auto canonical =
          static_cast<std::size_t>(((o * view.size(2) + h) * view.size(3) + 0) * view.size(1) + in);
      CHECK(view.index({o, in, h, 0}).item<float>() ==
            genesis.parameters[tensors[i].offset + canonical]);
    }
  }
}
