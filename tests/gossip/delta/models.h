// Models and differences that the tests of gossip/delta share.
#pragma once

#include "gossip/delta/layout.h"
#include "node/base/check.h"
#include "node/base/ids.h"
#include "node/base/random.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::gossip::testing {

// The 161 parameter tensors of torchvision's resnet50, in its order, and its 26,560 BatchNorm
// channels.
struct Model {
  std::vector<TensorSpec> tensors;
  std::size_t channels = 0;
};

inline Model resnet50() {
  Model model;
  const auto norm = [&](const std::string& name, std::int64_t channels) {
    model.tensors.push_back({name + ".weight", {channels}});
    model.tensors.push_back({name + ".bias", {channels}});
    model.channels += static_cast<std::size_t>(channels);
  };
  const auto conv = [&](const std::string& name, std::vector<std::int64_t> dims) {
    model.tensors.push_back({name + ".weight", std::move(dims)});
  };
  conv("conv1", {64, 3, 7, 7});
  norm("bn1", 64);
  const std::int64_t depths[4] = {3, 4, 6, 3};
  std::int64_t inputs = 64;
  for (std::int64_t stage = 0; stage < 4; ++stage) {
    const std::int64_t planes = std::int64_t{64} << stage;
    for (std::int64_t block = 0; block < depths[stage]; ++block) {
      const std::string name =
          "layer" + std::to_string(stage + 1) + "." + std::to_string(block) + ".";
      conv(name + "conv1", {planes, inputs, 1, 1});
      norm(name + "bn1", planes);
      conv(name + "conv2", {planes, planes, 3, 3});
      norm(name + "bn2", planes);
      conv(name + "conv3", {4 * planes, planes, 1, 1});
      norm(name + "bn3", 4 * planes);
      if (block == 0) {
        conv(name + "downsample.0", {4 * planes, inputs, 1, 1});
        norm(name + "downsample.1", 4 * planes);
      }
      inputs = 4 * planes;
    }
  }
  conv("fc", {1'000, 2'048});
  model.tensors.push_back({"fc.bias", {1'000}});
  return model;
}

inline Layout make_layout(const Model& model) {
  auto layout = Layout::make(model.tensors, model.channels);
  STARLING_CHECK(layout.has_value());
  return *std::move(layout);
}

// A small model whose tensors are not multiples of 16, so that padding lies inside blocks, and
// whose parts end inside a block.
inline Layout uneven_layout() {
  return make_layout({{{"stem.weight", {20, 3, 3, 3}},
                       {"stem.bias", {20}},
                       {"a.weight", {33, 77}},
                       {"b.weight", {7, 5, 11, 11}},
                       {"b.bias", {7}},
                       {"c.weight", {130, 101}},
                       {"norm.weight", {333}},
                       {"norm.bias", {333}}},
                      353});
}

// One tensor that fills its blocks to the last value.
inline Layout plain_layout(std::size_t blocks) {
  return make_layout(
      {{{"weight", {static_cast<std::int64_t>(blocks), static_cast<std::int64_t>(kBlock)}}}, 0});
}

enum class Shape {
  gaussian,
  laplace,
  decades,   // scales that differ by decades within a block
  ties,      // few different magnitudes
  equal,     // one magnitude, both signs
  one_hot,   // one value in a block
  zeros,     // +0 and -0
  denormal,  // below the smallest normal number
  huge,      // near the largest float
  mixed      // another shape in every block
};
inline constexpr Shape kShapes[] = {
    Shape::gaussian, Shape::laplace, Shape::decades,  Shape::ties, Shape::equal,
    Shape::one_hot,  Shape::zeros,   Shape::denormal, Shape::huge, Shape::mixed};

inline float gaussian(Rng& rng) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return static_cast<float>(sum - 6);
}

inline float draw(Shape shape, Rng& rng) {
  const float sign = rng.chance(0.5) ? 1.0F : -1.0F;
  switch (shape) {
    case Shape::gaussian:
      return 1e-3F * gaussian(rng);
    case Shape::laplace:
      return sign * 1e-3F * static_cast<float>(-std::log(1 - rng.unit()));
    case Shape::decades:
      return sign * static_cast<float>(std::pow(10.0, -12 * rng.unit()));
    case Shape::ties:
      return sign * static_cast<float>(rng.below(4)) * 0.25F;
    case Shape::equal:
      return sign * 0.375F;
    case Shape::one_hot:
      return rng.below(4'096) == 0 ? sign * 3.0F : 0.0F;
    case Shape::zeros:
      return sign * 0.0F;
    case Shape::denormal:
      return sign * static_cast<float>(rng.below(3'000)) * std::numeric_limits<float>::denorm_min();
    case Shape::huge:
      return sign * static_cast<float>(rng.unit()) * 3e38F;
    case Shape::mixed:
      break;
  }
  return 0;
}

// Real values of the shape, padding zero.
inline std::vector<float> values(const Layout& layout, Shape shape, Rng& rng) {
  std::vector<float> result(layout.size());
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    const Shape one = shape == Shape::mixed ? kShapes[rng.below(9)] : shape;
    for (std::size_t i = 0; i < layout.width(block); ++i)
      if (layout.is_real(block, i)) result[block * kBlock + i] = draw(one, rng);
  }
  return result;
}

inline double energy(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

inline NodeId node(unsigned char first) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(first);
  return id;
}

inline constexpr Level kLevels[] = {Level::l0, Level::l1, Level::l2, Level::l3,
                                    Level::l4, Level::l5, Level::l6};

}  // namespace starling::gossip::testing
