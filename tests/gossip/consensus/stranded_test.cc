// Nodes that are left with a run that nobody brings to its end any more.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

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
      swarm.at(std::chrono::seconds(4 + 4 * static_cast<int>(k)), [&swarm, k] {
        swarm.restart(k);
        swarm.at(swarm.elapsed() + 500ms, [&swarm, k] {
          for (std::size_t other = 0; other < 4; ++other)
            if (other != k) swarm.connect(k, other);
        });
      });
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
