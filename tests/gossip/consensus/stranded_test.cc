// Nodes that are left with a run that nobody brings to its end any more.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

// As Gossip does, which tells it once a second: the budget is spent.
void spend_budget(Swarm& swarm, Duration until) {
  for (Duration when = swarm.elapsed(); when < until; when += 1s)
    swarm.at(when, [&swarm] {
      for (std::size_t k = 0; k < swarm.size(); ++k) swarm.progress(k, 100, 100);
    });
}

void kill_at_work(Swarm& swarm, const std::vector<std::size_t>& nodes) {
  while (swarm.node(nodes.front()).consensus->state().phase != Phase::reducing) swarm.run(1ms);
  for (const auto k : nodes) swarm.kill(k);
}

}  // namespace

TEST_SUITE("gossip/consensus/stranded") {
  TEST_CASE("a finish that is ordered while all follow a run that is dead is carried out") {
    Swarm swarm({.nodes = 4});
    for (const std::size_t k : {0U, 1U}) swarm.connect(k, 2);
    swarm.connect(0, 1);
    // The run gets as far as it does without a certificate, while its participants restart in turn:
    // each follows what those before it began, and in the end there are only followers.
    swarm.on_deliver = [](std::size_t, std::size_t, const ConsensusMessage& message) {
      return !std::holds_alternative<HashSignature>(message);
    };
    swarm.run(1s);
    swarm.command(0);
    for (const std::size_t k : {0U, 1U, 2U})
      swarm.at(std::chrono::seconds(4 + 4 * static_cast<int>(k)),
               [&swarm, k] { swarm.restart_and_connect(k); });
    swarm.at(20s, [&] {
      swarm.on_deliver = nullptr;
      CHECK(swarm.node(3).consensus->state().phase == Phase::following);
      swarm.command(3);
    });

    swarm.run(15min);

    CHECK(swarm.idle());
    for (std::size_t k = 0; k < 4; ++k) {
      CAPTURE(k);
      REQUIRE(swarm.node(k).finished);
      CHECK(swarm.node(k).x == swarm.node(0).x);
      CHECK(swarm.node(k).finished->certificate.participants.size() == 4);
    }
  }

  TEST_CASE("those who are left when every participant dies end together, not one for all") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect_all();
      swarm.run(1s);
      for (const std::size_t k : {0U, 1U, 2U}) swarm.standing(k, Role::follower);
      swarm.command(3);
      kill_at_work(swarm, {3, 4});
      for (const std::size_t k : {0U, 1U, 2U}) swarm.standing(k, Role::participant);
      // By itself the third of them would wait for the end of the dead run longer.
      swarm.at(std::chrono::seconds(30 + 15 * seed), [&] {
        swarm.restart(2);
        swarm.connect(2, 0);
      });
      spend_budget(swarm, 15min);

      swarm.run(15min);

      check_result(swarm, {0, 1, 2}, {0, 1, 2});
    }
  }

  TEST_CASE("a follower waits as long as the participants are at work, however slow they are") {
    for (const bool direct : {true, false}) {
      CAPTURE(direct);
      Swarm swarm({.nodes = 4, .seed = 8, .longest_job = 50s});
      for (const std::size_t k : {1U, 2U}) swarm.connect(k, 0);
      swarm.connect(1, 2);
      swarm.connect(2, 3);
      if (direct) swarm.connect(1, 3);
      swarm.run(1s);
      swarm.standing(3, Role::follower);
      if (!direct) swarm.standing(2, Role::follower);
      swarm.command(0);
      swarm.run(10s);
      for (const std::size_t k : {2U, 3U}) swarm.standing(k, Role::participant);
      spend_budget(swarm, 60min);

      while (!swarm.node(0).finished && swarm.elapsed() < 60min) swarm.run(1s);
      swarm.run(1s);

      CHECK(swarm.node(0).finished_at > TimePoint{} + 4min);
      for (std::size_t k = 0; k < 4; ++k) {
        CAPTURE(k);
        const auto& certificate = swarm.node(k).consensus->certificate();
        REQUIRE(certificate);
        CHECK(certificate->participants.size() == (direct ? 3 : 2));
        CHECK(certificate->epoch == Epoch{1});
      }
    }
  }

  TEST_CASE("a node that was cut off while the others ended goes on, and ends when it is told to") {
    for (const bool ordered : {false, true}) {
      CAPTURE(ordered);
      Swarm swarm({.nodes = 3, .seed = 31});
      swarm.connect_all();
      swarm.run(1s);
      // It hears that the others want to end, and is not heard; then they are gone.
      swarm.on_deliver = [](std::size_t from, std::size_t to, const ConsensusMessage& message) {
        return from != 0 && (to != 0 || std::holds_alternative<Finish>(message));
      };
      swarm.command(1);
      swarm.run(200ms);
      swarm.kill(1);
      swarm.kill(2);
      // It trains: what its steps add is told all the time.
      for (int second = 2; second < 400; ++second)
        swarm.at(std::chrono::seconds(second), [&] { swarm.progress(0, 50, 100); });
      if (ordered) swarm.at(20s, [&] { swarm.command(0); });

      swarm.run(399s);

      CHECK(swarm.node(0).finished.has_value() == ordered);
      CHECK(swarm.node(0).consensus->idle() != ordered);
      swarm.command(0);
      swarm.run(1min);
      check_result(swarm, {0}, {0});
    }
  }
}

}  // namespace starling::gossip::consensus::testing
