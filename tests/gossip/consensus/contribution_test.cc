#include "gossip/consensus/contribution.h"

#include "gossip/consensus/arithmetic.h"
#include "gossip/consensus/packing.h"
#include "node/base/random.h"
#include "node/base/tree_hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace starling::gossip::consensus {
namespace {

// Two blocks and a part of a third.
constexpr std::size_t kValues = 2 * kBlockValues + 1003;
const ModelShape kShape{.parameters = kValues, .channels = 0, .counters = 0, .chunk_blocks = 4};

struct Node {
  std::vector<float> y = std::vector<float>(kValues);
  std::vector<float> x = std::vector<float>(kValues);

  JobOutcome run(const ConsensusJob& job) {
    return run_job(job, ChunkPlan(kShape),
                   {.parameters = y,
                    .mean = {},
                    .variance = {},
                    .counters = {},
                    .result_parameters = x,
                    .result_mean = {},
                    .result_variance = {},
                    .result_counters = {},
                    .tensors = {}});
  }
};

// Values of one size a block, a few far larger or smaller; denormals at the lower end.
std::vector<float> some_values(Rng& rng) {
  std::vector<float> values(kValues);
  for (std::size_t first = 0; first < kValues; first += kBlockValues) {
    const int size = static_cast<int>(rng.below(270)) - 148;
    for (std::size_t k = first; k < std::min(first + kBlockValues, kValues); ++k) {
      const int power = size - static_cast<int>(rng.below(8) == 0 ? rng.below(40) : 0);
      values[k] = static_cast<float>(std::ldexp(2 * rng.unit() - 1, power));
    }
  }
  return values;
}

Bytes exponents_of(const std::vector<Node>& nodes) {
  Bytes exponents;
  for (std::size_t first = 0; first < kValues; first += kBlockValues) {
    std::uint8_t most = 0;
    for (const Node& node : nodes)
      most = std::max(most, block_exponent(std::span(node.y).subspan(
                                first, std::min(kBlockValues, kValues - first))));
    exponents.push_back(std::byte{most});
  }
  return exponents;
}

// The formula of arithmetic.h, value by value.
std::vector<float> mean_of(const std::vector<Node>& nodes, const Bytes& exponents,
                           std::uint32_t weight_of_first) {
  std::vector<float> mean;
  const auto total = static_cast<std::int64_t>(nodes.size() - 1 + weight_of_first);
  for (std::size_t v = 0; v < kValues; ++v) {
    const int power = 24 - (std::to_integer<int>(exponents[v / kBlockValues]) - 126);
    std::int64_t sum = 0;
    for (const Node& node : nodes)
      sum += (&node == &nodes.front() ? weight_of_first : 1) *
             std::llrint(std::ldexp(static_cast<double>(node.y[v]), power));
    const std::int64_t z = (2 * std::abs(sum) + total) / (2 * total);
    mean.push_back(static_cast<float>(std::ldexp(static_cast<double>(sum < 0 ? -z : z), -power)));
  }
  return mean;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float p, float q) {
    return std::bit_cast<std::uint32_t>(p + 0.0F) == std::bit_cast<std::uint32_t>(q + 0.0F);
  });
}

}  // namespace

TEST_SUITE("gossip/consensus/contribution") {
  TEST_CASE("root, relay and receiver get the mean of the formula, through packed bytes") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      std::vector<Node> nodes(3 + seed % 7);
      for (Node& node : nodes) node.y = some_values(rng);
      const auto exponents = share(exponents_of(nodes));
      const auto weight = static_cast<std::uint32_t>(1 + rng.below(5));
      // Leaf k sends to node 1, which sends to the root, node 0.
      SumJob relay{.target = {}, .exponents = exponents, .own_weight = 1, .children = {}};
      SumJob leaf = relay;
      for (std::size_t k = 2; k < nodes.size(); ++k) {
        const auto sent = nodes[k].run(leaf);
        REQUIRE(sent.result.has_value());
        const SharedBytes packed = std::get<SumPacked>(*sent.result).values;
        CHECK(packed->size() == packed_bytes(kValues, 25));  // no wider than its own weight needs
        relay.children.push_back({NodeId{}, packed, 1, 1});
      }
      const auto relayed = nodes[1].run(relay);
      REQUIRE(relayed.result.has_value());
      SumJob root{.target = {}, .exponents = exponents, .own_weight = weight, .children = {}};
      root.children.push_back({NodeId{}, std::get<SumPacked>(*relayed.result).values,
                               nodes.size() - 1, static_cast<std::uint32_t>(nodes.size() - 1)});

      const auto divided = nodes[0].run(DivideJob{root});

      REQUIRE(divided.result.has_value());
      const auto& result = std::get<ChunkDivided>(*divided.result);
      CHECK(same_bits(nodes[0].x, mean_of(nodes, *exponents, weight)));
      CHECK(result.hash == tree_hash_of(std::as_bytes(std::span(nodes[0].x))));
      const StoreJob store{{}, NodeId{}, result.hash, result.values, ResultForm::packed};
      REQUIRE(nodes[1].run(store).result.has_value());
      CHECK(std::memcmp(nodes[1].x.data(), nodes[0].x.data(), kValues * sizeof(float)) == 0);
      // Whoever asks again gets the same bytes.
      const auto loaded = nodes[1].run(LoadJob{{}, NodeId{}, result.hash, ResultForm::packed});
      REQUIRE(loaded.result.has_value());
      CHECK(*std::get<ChunkLoaded>(*loaded.result).values == *result.values);
    }
  }

  TEST_CASE("packed results of a wrong size, with another hash or out of range are blamed") {
    Rng rng(3);
    Node node;
    node.y = some_values(rng);
    const auto exponents = share(exponents_of({node}));
    const auto divided = node.run(DivideJob{SumJob{{}, exponents, 1, {}}});
    REQUIRE(divided.result.has_value());
    const auto& [values, hash] = std::get<ChunkDivided>(*divided.result);
    const std::vector<float> before = node.x;
    const auto store = [&](Bytes bytes) {
      const auto outcome =
          node.run(StoreJob{{}, NodeId{}, hash, share(std::move(bytes)), ResultForm::packed});
      return outcome.culprit.has_value();
    };

    Bytes shorter = *values;
    shorter.pop_back();
    CHECK(store(shorter));
    for (const std::size_t at : {std::size_t{0}, std::size_t{3}, values->size() - 1}) {
      Bytes changed = *values;
      changed[at] ^= std::byte{2};
      CHECK(store(changed));
    }
    Bytes infinite = *values;
    infinite[0] = std::byte{255};
    CHECK(store(infinite));
    Bytes lowest = *values;  // -2^24, which no division gives
    lowest[3] = lowest[4] = lowest[5] = std::byte{0};
    lowest[6] = (lowest[6] & std::byte{0xfe}) | std::byte{1};
    CHECK(store(lowest));
    CHECK_FALSE(store(*values));
    CHECK(same_bits(node.x, before));
  }

  TEST_CASE("a mean is within 2^-23 of the largest value of its block from the exact one") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      std::vector<Node> nodes(1 + rng.below(8));
      for (Node& node : nodes)
        for (float& value : node.y) value = static_cast<float>(2 * rng.unit() - 1);
      const Bytes exponents = exponents_of(nodes);
      const auto mean = mean_of(nodes, exponents, 1);
      for (std::size_t v = 0; v < kValues; ++v) {
        double exact = 0;
        for (const Node& node : nodes) exact += static_cast<double>(node.y[v]);
        exact /= static_cast<double>(nodes.size());
        // Half a step of each contribution, and half a one of the division: 2^(e - 24).
        const int e = std::to_integer<int>(exponents[v / kBlockValues]) - kExponentBias;
        CHECK(std::abs(static_cast<double>(mean[v]) - exact) <= std::ldexp(1.0, e - 24));
      }
    }
  }
}

}  // namespace starling::gossip::consensus
