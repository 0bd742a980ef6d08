#include "training/genesis.h"

#include "tests/training/small_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <span>
#include <string>

using namespace starling;
using namespace starling::training;
using testing::small_model;

namespace {

std::span<const float> values_of(const Model& model, const Replica& replica,
                                 const std::string& name) {
  const gossip::TensorPlace* place = model.layout.find(name);
  REQUIRE(place != nullptr);
  return std::span(replica.parameters).subspan(place->offset, place->count);
}

double deviation(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace

TEST_SUITE("training/genesis") {
  TEST_CASE("the genesis of a seed is the same on every machine, for ever") {
    // From genesis_reference.py, which was written apart from the C++. It is part of the settings
    // fingerprint: another value here means another swarm.
    CHECK(to_hex(make_genesis(small_model(), 1).hash.view()) ==
          "194f0ed2f69300e1ab3e2f3e767a55da8f955a74e6c69ec78920a0480273e96b");
  }

  TEST_CASE("another seed gives another genesis") {
    const Model model = small_model();

    CHECK(make_genesis(model, 1).hash == make_genesis(model, 1).hash);
    CHECK(make_genesis(model, 1).hash != make_genesis(model, 2).hash);
  }

  TEST_CASE("convolutions have Kaiming's spread over the fan-out") {
    const Model model = small_model();
    const Genesis genesis = make_genesis(model, 7);

    // 147,456 draws: the sample deviation is within 1 / sqrt(2 n) = 0.2 % of the true one (1
    // sigma).
    const auto conv = values_of(model, genesis.replica, "layer3.0.conv2.weight");
    CHECK(deviation(conv) == doctest::Approx(std::sqrt(2.0 / (128 * 9))).epsilon(0.01));
    // 1,280 draws: 2 %, 1 sigma.
    const auto fc = values_of(model, genesis.replica, "fc.weight");
    CHECK(deviation(fc) == doctest::Approx(std::sqrt(1.0 / (3 * 128))).epsilon(0.08));
  }

  TEST_CASE("normalisations start as the identity and biases at zero") {
    const Model model = small_model();
    const Replica replica = make_genesis(model, 7).replica;

    for (const float x : values_of(model, replica, "layer1.0.bn2.weight")) CHECK(x == 1.0F);
    for (const float x : values_of(model, replica, "layer1.0.bn2.bias")) CHECK(x == 0.0F);
    for (const float x : values_of(model, replica, "fc.bias")) CHECK(x == 0.0F);
    for (const float x : replica.bn_mean) CHECK(x == 0.0F);
    for (const float x : replica.bn_variance) CHECK(x == 1.0F);
  }

  TEST_CASE("a bottleneck block starts as its shortcut: its last normalisation has weight zero") {
    const auto model = make_model({"resnet50", 10, 3, 224});
    REQUIRE(model.has_value());
    const Replica replica = make_genesis(*model, 7).replica;

    for (const float x : values_of(*model, replica, "layer1.0.bn3.weight")) CHECK(x == 0.0F);
    for (const float x : values_of(*model, replica, "layer4.2.bn3.weight")) CHECK(x == 0.0F);
    for (const float x : values_of(*model, replica, "layer4.2.bn2.weight")) CHECK(x == 1.0F);
    for (const float x : values_of(*model, replica, "layer1.0.downsample.1.weight"))
      CHECK(x == 1.0F);
    for (const float x : values_of(*model, replica, "bn1.weight")) CHECK(x == 1.0F);
  }

  TEST_CASE("padding stays zero") {
    const Model model = small_model();
    const Replica replica = make_genesis(model, 7).replica;

    for (std::size_t i = 0; i < replica.parameters.size(); ++i) {
      if (model.layout.is_real(i / 4'096, i % 4'096)) continue;
      REQUIRE(replica.parameters[i] == 0.0F);
    }
  }

  TEST_CASE("a tensor's values depend on its name and the seed, not on what else the model has") {
    const Model small = small_model();
    auto wider = make_model({"small", 100, 1, 28});
    REQUIRE(wider.has_value());
    const Replica a = make_genesis(small, 3).replica;
    const Replica b = make_genesis(*wider, 3).replica;

    const auto in_small = values_of(small, a, "layer2.0.conv1.weight");
    const auto in_wider = values_of(*wider, b, "layer2.0.conv1.weight");
    CHECK(std::ranges::equal(in_small, in_wider));
  }
}
