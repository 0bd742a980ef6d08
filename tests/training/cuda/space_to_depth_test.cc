// The stem on blocks of pixels against the stem itself, on a CPU.
#include "training/cuda/space_to_depth.h"

#include "node/base/random.h"
#include "training/cuda/input_passes.h"
#include "training/data/augment.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

using namespace starling;
using namespace starling::training;
using cuda::SpaceToDepth;

namespace {

constexpr std::int64_t kOut = 24;

at::Tensor as_stored(const at::Tensor& values) {
  return values.contiguous(at::MemoryFormat::ChannelsLast);
}

// A stem and what takes its place, with another tensor before it.
struct Stems {
  explicit Stems(std::int64_t channels)
      : weight(as_stored(at::randn({kOut, channels, 7, 7}))),
        gradient(at::full_like(weight, 7)),
        weights{at::zeros({1}), weight},
        gradients{at::zeros({1}), gradient},
        blocks(wires, weights, gradients) {}

  UnitWiring wires{.conv = 1, .stride = 2, .padding = 3};
  at::Tensor weight;
  at::Tensor gradient;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
  SpaceToDepth blocks;
};

at::Tensor convolved(const at::Tensor& images, const at::Tensor& weight, std::int64_t stride,
                     std::int64_t padding) {
  return at::conv2d(images, weight, {}, {stride, stride}, {padding, padding});
}

// The largest difference beside the largest value.
double apart(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

}  // namespace

TEST_SUITE("training/cuda/space_to_depth") {
  TEST_CASE("a convolution of blocks and its gradient are those of the 7x7 one") {
    torch::manual_seed(1);
    for (const std::int64_t channels : {1, 2, 3}) {
      for (const std::int64_t side : {2, 6, 10, 32, 64}) {
        CAPTURE(channels);
        CAPTURE(side);
        Stems stem(channels);
        const at::Tensor images = as_stored(at::randn({3, channels, side, side}));
        const at::Tensor blocks = SpaceToDepth::make_images(3, side, at::kFloat);
        SpaceToDepth::write_images(images, blocks);

        // A step later the weights are others.
        stem.blocks.write_weight();
        stem.weight.mul_(0.5).add_(0.25);
        stem.blocks.write_weight();
        const at::Tensor z =
            convolved(blocks, stem.weights[1], stem.wires.stride, stem.wires.padding);
        const at::Tensor g = at::randn_like(z);
        const auto gradient_of = [&g](const at::Tensor& x, const at::Tensor& weight,
                                      std::int64_t stride, std::int64_t padding) {
          return std::get<1>(at::convolution_backward(
              g, x, weight, std::nullopt, {stride, stride}, {padding, padding}, {1, 1},
              /*transposed=*/false, {0, 0}, /*groups=*/1, {false, true, false}));
        };
        stem.gradients[1].copy_(gradient_of(blocks, stem.weights[1], 1, 0));
        stem.blocks.read_gradient();

        // Sums of 147 products, and for the gradient of 3 x side^2 / 4, in another order.
        CHECK(z.sizes() == at::IntArrayRef({3, kOut, side / 2, side / 2}));
        CHECK(apart(z, convolved(images, stem.weight, 2, 3)) < 147 * 0x1p-24);
        CHECK(apart(stem.gradient, gradient_of(images, stem.weight, 2, 3)) < 3'072 * 0x1p-24);
        CHECK(stem.gradient.is_contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
  }

  TEST_CASE("what a convolution computes with has the layout that the layers expect, in bf16 too") {
    UnitWiring wires{.conv = 0, .stride = 2, .padding = 3};
    const at::Tensor weight = as_stored(at::randn({kOut, 3, 7, 7}).to(at::kBFloat16));
    const at::Tensor gradient = at::zeros_like(weight);
    std::vector<at::Tensor> weights{weight};
    std::vector<at::Tensor> gradients{gradient};
    SpaceToDepth stem(wires, weights, gradients);

    stem.write_weight();
    gradients[0].copy_(weights[0]);
    stem.read_gradient();

    CHECK(weights[0].sizes() == at::IntArrayRef({kOut, 16, 4, 4}));
    CHECK(weights[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(weights[0].dtype() == at::kBFloat16);
    CHECK(gradients[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(wires.stride == 1);
    CHECK(wires.padding == 0);
    // There and back, and nothing beside it.
    CHECK(at::equal(gradient, weight));
    CHECK(weights[0].count_nonzero().item<std::int64_t>() ==
          weight.count_nonzero().item<std::int64_t>());
  }

  TEST_CASE("bytes become the blocks that their floats become") {
    constexpr std::uint32_t kSide = 10;
    const InputForm form{kSide, 3, default_normalisation(3)};
    Image image{.pixels = std::vector<std::uint8_t>(std::size_t{12} * 17 * 3),
                .size = {.height = 12, .width = 17},
                .channels = 3};
    Rng rng(3);
    for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(rng.below(256));
    const View view{.box = {.top = 1, .left = 2, .height = 9, .width = 13}, .flip = true};
    Resampler resampler;
    PixelBatch batch(1, resampler.plan_part(image, view, kSide), ordinary_memory());
    const std::size_t first = batch.first_part();
    batch.places()[0] = resampler.write_part(
        image, view, first, std::span(batch.data() + first, batch.capacity() - first));
    at::Tensor floats = at::empty({1, kSide, kSide, 3}, at::kFloat);
    resampler.render(image, view, form,
                     std::span(floats.data_ptr<float>(), std::size_t{kSide} * kSide * 3));

    const at::Tensor from_bytes = SpaceToDepth::make_images(1, kSide, at::kFloat);
    cuda::input_on_cpu(cuda::input_args(batch.data(), pixel_form(form),
                                        from_bytes.data_ptr<float>(), 0, cuda::ImageLayout::blocks),
                       1);
    const at::Tensor from_floats = SpaceToDepth::make_images(1, kSide, at::kFloat);
    SpaceToDepth::write_images(floats.permute({0, 3, 1, 2}), from_floats);

    CHECK(at::equal(from_bytes, from_floats));
    CHECK(from_bytes.is_contiguous(at::MemoryFormat::ChannelsLast));
  }

  TEST_CASE("only a stem of 7x7 on images of an even side has blocks") {
    const auto fits = [](const ModelSpec& spec, std::int64_t side) {
      const auto plan = make_plan(spec);
      REQUIRE(plan.has_value());
      return SpaceToDepth::fits(*plan, side);
    };
    CHECK(fits({"resnet50", 1'000, 3, 224}, 224));
    CHECK(fits({"resnet50", 1'000, 3, 224}, 192));
    CHECK(fits({"resnet18", 10, 1, 64}, 64));
    CHECK_FALSE(fits({"resnet50", 1'000, 3, 224}, 193));
    CHECK_FALSE(fits({"small", 10, 1, 28}, 28));
  }
}
