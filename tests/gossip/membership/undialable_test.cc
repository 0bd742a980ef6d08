// Members whose records name an address at which nobody reaches them.
#include "tests/gossip/membership/stage.h"
#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

TEST_SUITE("gossip/undialable") {
  TEST_CASE("two members that nobody can dial are walked past, and seldom accused") {
    std::size_t worst = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 700 + seed});
      for (std::size_t node = 0; node < 40; ++node) {
        (void)swarm.start(node == 7 || node == 23 ? TestSwarm::Reach::claims
                                                  : TestSwarm::Reach::dialable);
        if (node > 0) swarm.dial(node, 0);
      }
      swarm.run(5min);
      worst = std::max(worst, swarm.accusations());
      CHECK(swarm.accusations() < 20);
      CHECK(std::ranges::count(swarm.at(7).neighbours(), swarm.id(23)) == 0);
      CHECK(std::ranges::count(swarm.at(23).neighbours(), swarm.id(7)) == 0);
      for (const std::size_t node : {7U, 23U})
        for (const auto& id : swarm.at(node).neighbours()) CHECK(swarm.at(node).has_session(id));
      CHECK(swarm.settled());
    }
    MESSAGE("accusations in five minutes, at most: ", worst);
  }
}
