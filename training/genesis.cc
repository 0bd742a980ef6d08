#include "training/genesis.h"

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/random.h"
#include "node/base/tree_hash.h"

#include <cmath>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace starling::training {
namespace {

constexpr int kHalfWords = 12;  // their sum has a standard deviation of 65,536 (to 1e-9)
constexpr int kHalfWordsPerDraw = 4;
constexpr std::int32_t kSumMean = 6 * 65'535;
constexpr float kSumDeviation = 65'536.0F;

Rng stream_of(std::uint64_t seed, std::string_view name) {
  return Rng(first_u64(Hasher().add("starling genesis 1").add(seed).add(name).finish()));
}

// (sum of 12 u16 - its mean): at most 19 bits, so exact as a float.
std::int32_t deviate(Rng& rng) {
  std::int32_t sum = -kSumMean;
  for (int draw = 0; draw < kHalfWords / kHalfWordsPerDraw; ++draw) {
    std::uint64_t word = rng();
    for (int i = 0; i < kHalfWordsPerDraw; ++i, word >>= 16) {
      sum += static_cast<std::int32_t>(word & 0xffffU);
    }
  }
  return sum;
}

// The fp32 standard deviation of a weight of rank 2 or 4. Division and square root are exact by
// IEEE 754, so every machine computes the same one.
float deviation_of(const gossip::TensorPlace& place) {
  if (place.dims.size() == 4) {
    return std::sqrt(2.0F / static_cast<float>(place.dims[0] * place.dims[2] * place.dims[3]));
  }
  STARLING_CHECK_OP(place.dims.size(), ==, std::size_t{2});
  return std::sqrt(1.0F / static_cast<float>(3 * place.dims[1]));
}

// The weights that start at 0: those of the last normalisation of every bottleneck block, so that
// each such block starts as its shortcut.
std::set<std::string> closed_weights(const ModelPlan& plan) {
  constexpr std::size_t kBottleneckUnits = 3;
  std::set<std::string> names;
  for (const BlockPlan& block : plan.blocks)
    if (block.units.size() == kBottleneckUnits) names.insert(block.units.back().norm + ".weight");
  return names;
}

}  // namespace

void draw_genesis(const Model& model, std::uint64_t seed, std::span<float> out) {
  STARLING_CHECK_OP(out.size(), ==, model.layout.size());
  const std::set<std::string> closed = closed_weights(model.plan);
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    const auto values = out.subspan(place.offset, place.count);
    if (place.is_small()) {
      // Every weight of rank 1 is a normalisation's.
      const bool open = place.name.ends_with(".weight") && !closed.contains(place.name);
      const float value = open ? 1.0F : 0.0F;
      for (float& x : values) x = value;
      continue;
    }
    // A power of two: the division is exact.
    const float scale = deviation_of(place) / kSumDeviation;
    Rng rng = stream_of(seed, place.name);
    for (float& x : values) x = static_cast<float>(deviate(rng)) * scale;
  }
}

Replica genesis_replica(const Model& model, std::uint64_t seed) {
  Replica replica;
  replica.parameters.assign(model.layout.size(), 0.0F);
  replica.bn_mean.assign(model.layout.bn_channels(), 0.0F);
  replica.bn_variance.assign(model.layout.bn_channels(), 1.0F);
  draw_genesis(model, seed, replica.parameters);
  return replica;
}

Genesis make_genesis(const Model& model, std::uint64_t seed) {
  Genesis genesis{.replica = genesis_replica(model, seed), .hash = {}};
  genesis.hash = tree_hash_of(std::as_bytes(std::span(genesis.replica.parameters)));
  return genesis;
}

}  // namespace starling::training
