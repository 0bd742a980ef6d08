#include "node/state_transfer_bytes.h"

#include "node/base/hash.h"
#include "tests/training/small_model.h"
#include "training/genesis.h"
#include "training/model_file.h"

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
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

bool is_real_at(const gossip::Layout& layout, std::size_t at) {
  return layout.is_real(at / gossip::kBlock, at % gossip::kBlock);
}

// Indices of values or of padding beside which the other kind lies, or a block ends.
std::vector<std::size_t> borders(const gossip::Layout& layout, bool real) {
  std::vector<std::size_t> found;
  for (std::size_t at = 0; at < layout.size(); ++at) {
    if (is_real_at(layout, at) != real) continue;
    const std::size_t index = at % gossip::kBlock;
    if (index == 0 || index == gossip::kBlock - 1 || is_real_at(layout, at - 1) != real ||
        is_real_at(layout, at + 1) != real)
      found.push_back(at);
  }
  return found;
}

// What a replica reader works with: this thread is the io thread.
struct Reading {
  NullLog log;
  asio::io_context io;
  asio::thread_pool pool{1};
  transport::TaskGroup tasks{io.get_executor(), log};
  training::Model model = small_model();
  // The replica as a test wants it: its count says which one was read.
  static Result<training::Replica> counted(std::int64_t batches) {
    training::Replica replica;
    replica.batches_tracked = batches;
    return replica;
  }
};

bootstrap::SharedSnapshot snapshot_of_step(std::uint64_t step) {
  bootstrap::Snapshot snapshot;
  snapshot.manifest.step = step;
  return std::make_shared<const bootstrap::Snapshot>(std::move(snapshot));
}

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

  TEST_CASE("every value of a model arrives, and none in its padding") {
    const training::Model model = small_model();
    training::Replica replica = training::make_genesis(model, 5).replica;
    for (std::size_t at = 0; at < replica.parameters.size(); ++at)
      if (is_real_at(model.layout, at)) replica.parameters[at] = static_cast<float>(at + 1);
    const auto taken = replica_of(snapshot_of(replica), model);
    REQUIRE(taken);
    CHECK(*taken == replica);
    const auto padding = borders(model.layout, false);
    REQUIRE(padding.size() > 2);
    for (const std::size_t at : padding) {
      CAPTURE(at);
      const float before = std::exchange(replica.parameters[at], 1e-30F);
      const auto refused = replica_of(snapshot_of(replica), model);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == Errc::bad_message);
      CHECK(refused.error().detail == "a snapshot with values in the padding");
      replica.parameters[at] = before;
    }
  }

  TEST_CASE("a snapshot with a value that is not finite is refused wherever that lies") {
    const training::Model model = small_model();
    training::Replica replica = training::make_genesis(model, 5).replica;
    const auto refused_with = [&](float& place, float value) {
      const float before = std::exchange(place, value);
      const auto taken = replica_of(snapshot_of(replica), model);
      place = before;
      return !taken && taken.error().code == Errc::bad_message &&
             taken.error().detail == "a snapshot with values that are not finite";
    };
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float value : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      CAPTURE(value);
      for (const std::size_t at : borders(model.layout, true)) {
        CAPTURE(at);
        CHECK(refused_with(replica.parameters[at], value));
      }
      CHECK(refused_with(replica.bn_mean.back(), value));
      CHECK(refused_with(replica.bn_variance.front(), value));
    }
    constexpr float kLargest = std::numeric_limits<float>::max();
    CHECK_FALSE(refused_with(replica.parameters.front(), kLargest));
    CHECK_FALSE(refused_with(replica.parameters.front(), -kLargest));
  }

  TEST_CASE("a snapshot is read on the pool, and the io thread is free meanwhile") {
    assert_io_thread();
    Reading here;
    const auto io_thread_id = std::this_thread::get_id();
    std::binary_semaphore io_ran{0};
    std::thread::id read_on = io_thread_id;
    std::thread::id let_go_on = io_thread_id;
    bool io_was_free = false;
    ReplicaReader reader(
        here.pool, here.tasks, [&](const bootstrap::Snapshot& snapshot, const training::Model&) {
          read_on = std::this_thread::get_id();
          io_was_free = io_ran.try_acquire_for(60s);
          return Reading::counted(static_cast<std::int64_t>(snapshot.manifest.step));
        });
    std::optional<std::int64_t> told;
    // Owners: this test, and the reader from then on. Says where the last one lets go.
    auto snapshot = std::shared_ptr<const bootstrap::Snapshot>(
        new bootstrap::Snapshot(*snapshot_of_step(7)), [&](const bootstrap::Snapshot* last) {
          let_go_on = std::this_thread::get_id();
          std::default_delete<const bootstrap::Snapshot>()(last);
        });
    reader.read(std::move(snapshot), here.model, [&](const Result<training::Replica>& replica) {
      CHECK(std::this_thread::get_id() == io_thread_id);
      if (replica) told = replica->batches_tracked;
    });
    CHECK_FALSE(told);
    asio::post(here.io, [&] { io_ran.release(); });
    here.io.run();

    CHECK(told == 7);
    CHECK(io_was_free);
    CHECK(read_on != io_thread_id);
    CHECK(let_go_on != io_thread_id);
  }

  TEST_CASE("of two snapshots that are read at once only the later one is told of") {
    assert_io_thread();
    Reading here;
    ReplicaReader reader(
        here.pool, here.tasks, [](const bootstrap::Snapshot& snapshot, const training::Model&) {
          return Reading::counted(static_cast<std::int64_t>(snapshot.manifest.step));
        });
    std::vector<std::int64_t> told;
    const auto tell = [&](const Result<training::Replica>& replica) {
      REQUIRE(replica);
      told.push_back(replica->batches_tracked);
    };
    reader.read(snapshot_of_step(1), here.model, tell);
    reader.read(snapshot_of_step(2), here.model, tell);
    here.io.run();
    CHECK(told == std::vector<std::int64_t>{2});

    // A third is told of although the first two are long done.
    here.io.restart();
    reader.read(snapshot_of_step(3), here.model, tell);
    here.io.run();
    CHECK(told == std::vector<std::int64_t>{2, 3});
  }

  TEST_CASE(
      "a replica that nobody waits for any more is told to nobody, even if it is read by then") {
    assert_io_thread();
    Reading here;
    bool was_read = false;
    std::optional<ReplicaReader> reader;
    // Other settings are adopted while the pool reads: the io thread cancels in the middle of it.
    std::binary_semaphore cancelled{0};
    reader.emplace(here.pool, here.tasks, [&](const bootstrap::Snapshot&, const training::Model&) {
      asio::post(here.io, [&] {
        assert_io_thread();
        reader->cancel();
        cancelled.release();
      });
      was_read = cancelled.try_acquire_for(60s);
      return Reading::counted(1);
    });
    bool told = false;
    reader->read(snapshot_of_step(1), here.model,
                 [&](const Result<training::Replica>&) { told = true; });
    here.io.run();
    CHECK(was_read);
    CHECK_FALSE(told);
  }

  TEST_CASE("a snapshot for whose replica there is no memory is an error and ends nothing") {
    assert_io_thread();
    Reading here;
    ReplicaReader reader(
        here.pool, here.tasks,
        [](const bootstrap::Snapshot&, const training::Model&) -> Result<training::Replica> {
          throw std::bad_alloc();
        });
    std::optional<Errc> told;
    reader.read(snapshot_of_step(1), here.model, [&](const Result<training::Replica>& replica) {
      if (!replica) told = replica.error().code;
    });
    here.io.run();
    CHECK(told == Errc::no_memory);
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
