// Members whose records name an address at which nobody reaches them.
#include "tests/gossip/membership/stage.h"
#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <set>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

// Five minutes of so many members, of which these have an address at which nobody reaches them.
void run(TestSwarm& swarm, std::size_t members, const std::set<std::size_t>& out_of_reach,
         TestSwarm::Reach reach) {
  for (std::size_t node = 0; node < members; ++node) {
    (void)swarm.start(out_of_reach.contains(node) ? reach : TestSwarm::Reach::dialable);
    if (node > 0) swarm.dial(node, 0);
  }
  swarm.run(5min);
}

}  // namespace

TEST_SUITE("gossip/undialable") {
  TEST_CASE("two members that nobody can dial are walked past, and seldom accused") {
    std::size_t worst = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 700 + seed});
      run(swarm, 40, {7, 23}, TestSwarm::Reach::claims);
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

  TEST_CASE("a member whose address refuses everybody is neither accused for ever nor dialled so") {
    std::size_t accused = 0;
    std::size_t dialled = 0;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 900 + seed});
      run(swarm, 40, {7, 23}, TestSwarm::Reach::refused);
      accused = std::max(accused, swarm.accusations());
      dialled = std::max(dialled, swarm.vain_dials());
      CHECK(swarm.accusations() < 20);
      CHECK(swarm.vain_dials() < 200);
      for (const std::size_t node : {7U, 23U}) {
        CHECK(swarm.count(MemberState::dead, {node}) == 0);
        for (const auto& id : swarm.at(node).neighbours()) CHECK(swarm.at(node).has_session(id));
      }
      CHECK(swarm.settled());
    }
    MESSAGE("in five minutes, at most: ", accused, " accusations, ", dialled, " dials");
  }

  TEST_CASE(
      "a swarm of which every second member refuses all dials neither accuses nor dials much") {
    std::size_t accused = 0;
    std::size_t dialled = 0;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 950 + seed});
      run(swarm, 12, {1, 3, 5, 7, 9, 11}, TestSwarm::Reach::refused);
      accused = std::max(accused, swarm.accusations());
      dialled = std::max(dialled, swarm.vain_dials());
      CHECK(swarm.accusations() < 20);
      CHECK(swarm.vain_dials() < 600);
      CHECK(swarm.count(MemberState::dead, {1, 3, 5, 7, 9, 11}) == 0);
      CHECK(swarm.settled());
    }
    MESSAGE("in five minutes, at most: ", accused, " accusations, ", dialled, " dials");
  }
}
