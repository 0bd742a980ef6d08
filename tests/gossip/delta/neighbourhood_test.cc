#include "gossip/delta/replica.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace starling::gossip {

using testing::make_layout;
using testing::node;
using testing::same_bits;

namespace {

const EdgeEnds kFirst = EdgeEnds::of(node(1), node(2));
const EdgeEnds kSecond = EdgeEnds::of(node(1), node(3));

// Node 1, whose neighbours send what the test says. The genesis is zero.
class Node : public MasterPort {
 public:
  explicit Node(Aggregator aggregator = Aggregator::mean)
      : x(layout.size()),
        mean(layout.bn_channels()),
        variance(layout.bn_channels(), 1.0F),
        replica(layout, *this, [](std::span<float>) {}, {.aggregator = aggregator}) {}

  void with_master(const std::function<void(MasterView)>& job) override {
    job({x, mean, variance});
  }
  void run(const CodecJob& job) {
    const auto outcome = replica.run(job);
    if (!outcome.result) FAIL(to_string(outcome.result.error()));
  }
  // The neighbour has the same replica and says so: r goes to x, and x stays.
  void exchange(const EdgeEnds& edge, std::uint64_t times) {
    for (std::uint64_t i = 0; i < times; ++i) {
      const auto outcome = replica.run(OfferJob{edge, Level::l5, Statistics::without, 0});
      REQUIRE(outcome.result.has_value());
      const auto& offer = std::get<OfferDone>(*outcome.result);
      run(ApplyJob{
          {.edge = edge, .own_side = Side::lower, .weight = {}, .max_norm = 0, .chain = {}},
          offer.payload,
          offer.payload,
          std::nullopt});
    }
  }
  // All real values; padding stays zero.
  void set(float value) {
    for (std::size_t at = 0; at < layout.size(); ++at)
      x[at] = layout.is_real(at / kBlock, at % kBlock) ? value : 0.0F;
  }
  std::size_t average(std::vector<float>& out) {
    const auto references = replica.neighbourhood_mean(out);
    REQUIRE(references.has_value());
    return *references;
  }

  Layout layout = make_layout({{{"w", {70, 50}}, {"b", {100}}}, 2});
  std::vector<float> x;
  std::vector<float> mean;
  std::vector<float> variance;
  Replica replica;
};

}  // namespace

TEST_SUITE("gossip/delta/neighbourhood") {
  TEST_CASE("the neighbourhood mean is the mean of the references, whatever the replica is") {
    Node one;
    one.run(GenesisJob{kFirst});
    one.run(GenesisJob{kSecond});
    one.set(1);
    one.exchange(kFirst, kSettledExchanges);
    one.set(3);
    one.exchange(kSecond, kSettledExchanges);
    one.set(100);

    std::vector<float> out = one.x;
    CHECK(one.average(out) == 2);

    for (std::size_t at = 0; at < out.size(); ++at) {
      const bool real = one.layout.is_real(at / kBlock, at % kBlock);
      // What 4 bits a value leave unsent is 2^-4 of it each time.
      CHECK(out[at] == doctest::Approx(real ? 2.0 : 0.0).epsilon(1e-5));
      if (!real) CHECK(out[at] == 0.0F);
    }
    CHECK(one.x[0] == 100.0F);
  }

  TEST_CASE("without an edge the neighbourhood mean is the replica") {
    Node one;
    one.set(5);

    std::vector<float> out = one.x;
    CHECK(one.average(out) == 0);
    CHECK(same_bits(out, one.x));
  }

  TEST_CASE("a reference that has not settled yet is left out") {
    Node one;
    one.run(GenesisJob{kFirst});
    one.run(GenesisJob{kSecond});
    one.set(1);
    one.exchange(kFirst, kSettledExchanges);
    one.exchange(kSecond, kSettledExchanges - 1);

    std::vector<float> out = one.x;
    CHECK(one.average(out) == 1);
    one.exchange(kSecond, 1);
    CHECK(one.average(out) == 2);
    one.run(GenesisJob{kFirst});  // reset
    CHECK(one.average(out) == 1);
    CHECK(out[0] == doctest::Approx(1).epsilon(1e-5));
    one.run(DropJob{kSecond});
    CHECK(one.average(out) == 0);
  }

  TEST_CASE("who guards against neighbours evaluates no mean that they can pull") {
    for (const Aggregator aggregator : {Aggregator::mean, Aggregator::unguarded, Aggregator::clip,
                                        Aggregator::median, Aggregator::trimmed}) {
      CAPTURE(name_of(aggregator));
      Node one(aggregator);
      one.run(GenesisJob{kFirst});
      one.set(1);
      one.exchange(kFirst, kSettledExchanges);

      std::vector<float> out = one.x;
      CHECK(one.average(out) == (trusts(aggregator) ? 1 : 0));
      if (!trusts(aggregator)) CHECK(same_bits(out, one.x));
    }
  }

  TEST_CASE("a snapshot that is refused leaves no reference to average") {
    Node one;
    one.run(GenesisJob{kFirst});
    one.set(1);
    one.exchange(kFirst, kSettledExchanges);
    const auto outcome = one.replica.run(SnapshotJob{kSecond});
    REQUIRE(outcome.result.has_value());
    const auto snapshot = std::get<ReferenceSet>(*outcome.result);

    CHECK_FALSE(one.replica.run(InstallJob{kFirst, snapshot.bytes, {}}).result.has_value());

    std::vector<float> out = one.x;
    CHECK(one.average(out) == 0);
    CHECK(same_bits(out, one.x));
  }
}

}  // namespace starling::gossip
