// Two certificates of one run: which of them counts where somebody may still choose.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

// Nodes 0 and 1 end apart from nodes 2 and 3.
void end_apart(Swarm& swarm) {
  swarm.connect(0, 1);
  swarm.connect(2, 3);
  swarm.run(1s);
  swarm.command(0);
  swarm.command(2);
  swarm.run(1min);
  for (const std::size_t k : {0U, 1U, 2U, 3U}) REQUIRE(swarm.node(k).finished);
}

const Hash& hash_at(Swarm& swarm, std::size_t node) {
  return swarm.node(node).finished->certificate.hash;
}

enum class Late : std::uint8_t { trains, agrees };

// Node 4 is shown the certificate of one side first, node 5 that of the other.
void show_both(Swarm& swarm, Late late_nodes) {
  for (const auto& [holder, other] : {std::pair(0U, 2U), {2U, 0U}}) {
    const std::size_t late = holder == 0 ? 4 : 5;
    if (late_nodes == Late::agrees) swarm.command(late);
    swarm.connect(late, holder);
    swarm.run(1s);
    swarm.connect(late, other);
    swarm.run(1s);
  }
}

}  // namespace

TEST_SUITE("gossip/consensus/two_ends") {
  TEST_CASE("who is shown two certificates of as many takes the same one in either order") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 6, .seed = seed});
      end_apart(swarm);
      swarm.on_deliver = [](std::size_t, std::size_t, const ConsensusMessage& message) {
        return !std::holds_alternative<Chunk>(message);
      };
      show_both(swarm, Late::agrees);
      swarm.on_deliver = nullptr;

      swarm.run(5min);

      const Hash first = std::min(hash_at(swarm, 0), hash_at(swarm, 2));
      for (const std::size_t k : {4U, 5U}) {
        REQUIRE(swarm.node(k).finished);
        CHECK(hash_at(swarm, k) == first);
      }
    }
  }

  TEST_CASE("who fetches one of two certificates in vain takes the other one") {
    for (const bool larger_first : {true, false}) {
      CAPTURE(larger_first);
      Swarm swarm({.nodes = 6, .seed = 5});
      swarm.connect(2, 4);
      end_apart(swarm);
      swarm.on_deliver = [](std::size_t, std::size_t, const ConsensusMessage& message) {
        return !std::holds_alternative<Chunk>(message);
      };
      swarm.command(5);
      std::vector<std::size_t> holders{0, 2};
      if (larger_first) std::ranges::reverse(holders);
      for (const std::size_t holder : holders) {
        swarm.connect(5, holder);
        swarm.run(1s);
      }
      // Node 0 answers a Finish with its certificate once in a session: from now on it is silent.
      Finish asking;
      asking.round = {swarm.options().run, Epoch{1}};
      asking.fingerprint = swarm.options().fingerprint;
      sign(asking, *swarm.node(5).signer, asking.fingerprint);
      swarm.inject(0, 5, asking);
      swarm.run(1s);
      const auto& taken = swarm.node(5).consensus->certificate();
      REQUIRE(taken);
      CHECK(taken->participants.size() == 3);
      // Those of the larger one are gone with its model; node 0 has that of the other.
      for (const std::size_t k : {2U, 3U, 4U}) {
        swarm.kill(k);
        swarm.presence(5, k, Presence::gone);
      }
      swarm.on_deliver = nullptr;

      swarm.run(15min);

      REQUIRE(swarm.node(5).finished);
      CHECK(hash_at(swarm, 5) == hash_at(swarm, 0));
    }
  }

  TEST_CASE("of two certificates that wait until the others are fewer the same one is taken") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 6, .seed = seed});
      end_apart(swarm);
      show_both(swarm, Late::trains);
      for (const std::size_t k : {4U, 5U}) REQUIRE(swarm.node(k).consensus->idle());

      for (const std::size_t late : {4U, 5U})
        for (std::size_t k = 0; k < 6; ++k)
          if (k != late) swarm.presence(late, k, Presence::present);
      swarm.run(5min);

      const Hash first = std::min(hash_at(swarm, 0), hash_at(swarm, 2));
      for (const std::size_t k : {4U, 5U}) {
        REQUIRE(swarm.node(k).finished);
        CHECK(hash_at(swarm, k) == first);
      }
    }
  }
}

}  // namespace starling::gossip::consensus::testing
