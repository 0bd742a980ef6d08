#include "node/state_transfer_bytes.h"

#include "node/base/hash.h"
#include "tests/training/small_model.h"
#include "training/genesis.h"
#include "training/model_file.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;
using training::testing::small_model;

namespace {

// A replica's bytes as a peer sends them, whatever this node would send.
bootstrap::Snapshot snapshot_of(const training::Replica& replica) {
  const std::vector<ByteView> parts{std::as_bytes(std::span(replica.parameters)),
                                    std::as_bytes(std::span(replica.bn_mean)),
                                    std::as_bytes(std::span(replica.bn_variance)),
                                    std::as_bytes(std::span(&replica.batches_tracked, 1))};
  auto snapshot = bootstrap::cut_snapshot(parts, {});
  REQUIRE(snapshot);
  return *std::move(snapshot);
}

NodeId id_of(std::uint64_t number) { return *NodeId::from(Hasher().add(number).finish().view()); }

}  // namespace

TEST_SUITE("node/state_transfer_bytes") {
  TEST_CASE("a count of batches that no run reaches is refused, and never sent") {
    constexpr std::int64_t kMost = training::kMaxBatchesTracked;
    const training::Model model = small_model();
    training::Replica replica = training::make_genesis(model, 5).replica;
    for (const std::int64_t batches : {std::int64_t{77}, kMost}) {
      CAPTURE(batches);
      replica.batches_tracked = batches;
      const auto taken = replica_of(snapshot_of(replica), model);
      REQUIRE(taken);
      CHECK(*taken == replica);
    }
    for (const std::int64_t batches : {kMost + 1, std::numeric_limits<std::int64_t>::max()}) {
      CAPTURE(batches);
      replica.batches_tracked = batches;
      const auto taken = replica_of(snapshot_of(replica), model);
      REQUIRE_FALSE(taken);
      CHECK(taken.error().code == Errc::bad_message);
      const auto sent = cut_replica(replica, {});
      REQUIRE(sent);
      const auto arrived = replica_of(**sent, model);
      REQUIRE(arrived);
      CHECK(arrived->batches_tracked == kMost);
    }
  }

  TEST_CASE("what a checkpoint keeps of the swarm comes back from its text") {
    const SavedProgress saved{.counters = {{id_of(1), 0}, {id_of(2), ~std::uint64_t{0}}},
                              .age = 5'300.25,
                              .run_age = 77s,
                              .sponsors_age = 2h};
    const auto back = parse_progress(format_progress(saved));
    CHECK(back.counters == saved.counters);
    CHECK(back.age == saved.age);
    CHECK(back.run_age == saved.run_age);
    CHECK(back.sponsors_age == saved.sponsors_age);
  }

  TEST_CASE("lines that make no sense are left out and cost nothing else") {
    const std::string good = to_hex(id_of(3).view()) + " 12\n";
    const auto back = parse_progress("age nan\nrun_age_ms -5\n\nage\nhello world\n" + good +
                                     to_hex(id_of(4).view()) + " twelve\nabcd 9\n");
    CHECK(back.age == 0);
    CHECK(back.run_age == 0s);
    REQUIRE(back.counters.size() == 1);
    CHECK(back.counters[0].id == id_of(3));
    CHECK(back.counters[0].samples == 12);
  }

  TEST_CASE("a run older than anybody's is cut, not wrapped") {
    CHECK(parse_progress("run_age_ms 18446744073709551615\n").run_age > 1h);
  }
}
