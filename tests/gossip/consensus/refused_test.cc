// Bulk messages that came to nothing: their receiver had no room, or their session was renewed.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

// What tells one message of the reduction from another: kind, epoch, chunk, direction or origin.
using Which = std::tuple<std::size_t, std::uint64_t, std::uint32_t, NodeId, bool>;

template <class Message>
std::optional<Which> which_of_kind(const Message& m, std::size_t kind) {
  if constexpr (requires {
                  m.round;
                  m.values;
                }) {
    Which which{kind, m.round.epoch.value, m.chunk, {}, false};
    if constexpr (requires { m.origin; }) std::get<3>(which) = m.origin;
    if constexpr (requires { m.direction; }) std::get<4>(which) = m.direction == Direction::down;
    return which;
  }
  return std::nullopt;
}

std::optional<Which> which(const ConsensusMessage& message) {
  return std::visit([&](const auto& m) { return which_of_kind(m, message.index()); }, message);
}

struct Kind {
  std::size_t index;
  Rule rule;
};
constexpr std::size_t kResult = 5;
constexpr std::array kKinds{Kind{2, Rule::mean},       Kind{3, Rule::mean},
                            Kind{kResult, Rule::mean}, Kind{2, Rule::median},
                            Kind{4, Rule::median},     Kind{kResult, Rule::median}};

// A ring and a chord: trees of more than one level.
void begin(Swarm& swarm) {
  swarm.connect_ring();
  swarm.connect(0, 3);
  swarm.run(1s);
}

using Path = std::tuple<std::size_t, std::size_t, Which>;

// A node that has had no room for what it was sent, since the first of it came.
struct Full {
  std::map<Path, int> times;  // that a message was refused
  std::optional<TimePoint> since;

  // Refuses what node 1 is sent for as long as `time`.
  void begin(Swarm& swarm, Duration time) {
    swarm.on_deliver = [this, &swarm, time](std::size_t from, std::size_t to,
                                            const ConsensusMessage& message) {
      const auto bulk = which(message);
      if (to != 1 || !bulk) return true;
      if (!since) since = swarm.now();
      if (swarm.now() - *since >= time) return true;
      ++times[{from, to, *bulk}];
      swarm.refuse(from, to, message);
      return false;
    };
  }
};

}  // namespace

TEST_SUITE("gossip/consensus/refused") {
  TEST_CASE("a message of the reduction that was cut or refused is sent again in the same epoch") {
    for (const auto& [kind, rule] : kKinds)
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(kind);
        CAPTURE(static_cast<int>(rule));
        CAPTURE(seed);
        Swarm swarm({.nodes = 6, .seed = seed, .rule = rule});
        begin(swarm);
        std::size_t seen = 0;
        std::size_t refused = 0;
        swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
          if (message.index() != kind || refused == 6 || ++seen % 4 != seed % 4) return true;
          ++refused;
          swarm.refuse(from, to, message);
          return false;
        };

        swarm.command(0);
        swarm.run(10min);

        CHECK(refused == 6);
        check_result(swarm, all_of(swarm), all_of(swarm), rule);
        CHECK(epoch_of(swarm, 0) == 1);
        CHECK(swarm.node(0).finished_at < TimePoint{} + 20s);
        CHECK(swarm.idle());
      }
  }

  TEST_CASE("a message that came although its sender was told that it did not does no harm") {
    for (const Rule rule : {Rule::mean, Rule::median})
      for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        CAPTURE(static_cast<int>(rule));
        CAPTURE(seed);
        // Jobs take long: much comes again before what it was for is over.
        Swarm swarm({.nodes = 6, .seed = seed, .longest_job = 2s, .rule = rule});
        begin(swarm);
        std::map<Path, int> times;
        std::size_t again = 0;
        swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
          if (const auto bulk = which(message)) {
            again += ++times[{from, to, *bulk}] > 1 ? 1 : 0;
            swarm.refuse(from, to, message);
          }
          return true;
        };

        swarm.command(0);
        swarm.run(20min);

        CHECK(again > 0);
        check_result(swarm, all_of(swarm), all_of(swarm), rule);
        CHECK(epoch_of(swarm, 0) == 1);
        for (const std::size_t k : all_of(swarm)) CHECK(swarm.node(k).misbehaved.empty());
        CHECK(swarm.idle());
      }
  }

  TEST_CASE("a peer that has no room for a while is asked once a second and costs no epoch") {
    for (const Rule rule : {Rule::mean, Rule::median}) {
      CAPTURE(static_cast<int>(rule));
      Swarm swarm({.nodes = 6, .seed = 4, .rule = rule});
      begin(swarm);
      Full full;
      full.begin(swarm, 20s);

      swarm.command(0);
      swarm.run(10min);

      check_result(swarm, all_of(swarm), all_of(swarm), rule);
      CHECK(epoch_of(swarm, 0) == 1);
      REQUIRE_FALSE(full.times.empty());
      for (const auto& [path, count] : full.times) {
        CHECK(count >= 15);
        CHECK(count <= 21);
      }
    }
  }

  TEST_CASE("a peer that never has room ends the epoch as silence does") {
    Swarm swarm({.nodes = 4, .seed = 9});
    begin(swarm);
    Full full;
    full.begin(swarm, Duration::max());

    swarm.command(0);
    while (swarm.node(0).consensus->state().epoch.value < 2 && swarm.elapsed() < 5min)
      swarm.run(100ms);
    REQUIRE(full.since);
    CHECK(swarm.now() <= *full.since + 2 * swarm.options().stall_limit);
    swarm.run(30min);

    CHECK(swarm.idle());
    for (const std::size_t k : all_of(swarm)) CHECK(swarm.node(k).failed);
    for (const auto& [path, count] : full.times) CHECK(count <= 61);
  }

  TEST_CASE("what waits to be sent again is not sent twice when the session comes back first") {
    Swarm swarm({.nodes = 2, .seed = 3});
    swarm.connect(0, 1);
    swarm.run(1s);
    std::optional<Path> lost;
    std::size_t again = 0;
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      const auto bulk = which(message);
      if (lost) again += bulk && Path{from, to, *bulk} == *lost ? 1 : 0;
      if (lost || !std::holds_alternative<Sum>(message)) return true;
      lost = {from, to, *bulk};
      swarm.refuse(from, to, message);
      swarm.at(swarm.elapsed() + 100ms, [&] { swarm.disconnect(0, 1); });
      swarm.at(swarm.elapsed() + 300ms, [&] { swarm.connect(0, 1); });
      return false;
    };

    swarm.command(0);
    swarm.run(10min);

    REQUIRE(lost);
    CHECK(again == 1);
    check_result(swarm, all_of(swarm), all_of(swarm));
    CHECK(epoch_of(swarm, 0) == 1);
  }

  TEST_CASE("what was refused in an epoch that is over is not sent in the next") {
    Swarm swarm({.nodes = 5, .seed = 2});
    swarm.connect_all();
    swarm.run(1s);
    bool left = false;
    std::size_t late = 0;
    std::map<std::size_t, TimePoint> over;  // since when a node has known that the epoch is
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      if (swarm.node(from).consensus->state().epoch.value > 1) over.try_emplace(from, swarm.now());
      const auto bulk = which(message);
      if (!bulk || std::get<1>(*bulk) > 1) return true;
      // What was on its way at that moment came a little later.
      late += over.contains(from) && swarm.now() > over.at(from) + 50ms ? 1 : 0;
      swarm.refuse(from, to, message);
      if (!std::exchange(left, true)) swarm.at(swarm.elapsed() + 500ms, [&] { swarm.kill(4); });
      return false;
    };

    swarm.command(0);
    swarm.run(10min);

    REQUIRE(left);
    CHECK(over.size() >= 4);
    check_result(swarm, {0, 1, 2, 3}, {0, 1, 2, 3});
    CHECK(epoch_of(swarm, 0) == 2);
    CHECK(late == 0);
  }

  TEST_CASE("a chunk of the certified model that came to nothing is sent again in a second") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 2, .seed = seed});
      swarm.connect(0, 1);
      swarm.standing(1, Role::follower);
      swarm.run(1s);
      std::map<std::uint32_t, int> refused;
      std::optional<TimePoint> since;
      swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
        const auto* chunk = std::get_if<Chunk>(&message);
        if (chunk == nullptr) return true;
        if (!since) since = swarm.now();
        if (swarm.now() - *since >= 20s) return true;
        ++refused[chunk->chunk];
        swarm.refuse(from, to, message);
        return false;
      };

      swarm.command(0);
      swarm.run(10min);

      check_result(swarm, {0, 1}, {0});
      REQUIRE(since);
      CHECK(swarm.node(1).finished_at < *since + 24s);
      // Asked for again in the meantime or not, each went out no more than once a second.
      for (const auto& [chunk, times] : refused) CHECK(times <= 22);
      CHECK(swarm.idle());
    }
  }
}

}  // namespace starling::gossip::consensus::testing
