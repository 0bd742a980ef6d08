// Two certificates of one run: which of them counts where somebody may still choose.
#include "tests/gossip/consensus/signed_certificate.h"
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

// What node 5 would say.
Finish asking(Swarm& swarm) {
  Finish finish;
  finish.round = {swarm.options().run, Epoch{1}};
  finish.fingerprint = swarm.options().fingerprint;
  sign(finish, *swarm.node(5).signer, finish.fingerprint);
  return finish;
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
      swarm.inject(0, 5, asking(swarm));
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

  TEST_CASE("who took a certificate that is fetched in the end is none of those who outnumber it") {
    Swarm swarm({.nodes = 8, .seed = 5});
    swarm.connect(2, 4);
    // Nodes 6 and 7 adopt what nodes 0 and 1 certify, and serve it.
    for (const std::size_t k : {6U, 7U}) {
      swarm.standing(k, Role::follower);
      swarm.connect(0, k);
    }
    end_apart(swarm);
    for (const std::size_t k : {6U, 7U}) REQUIRE(swarm.node(k).finished);
    swarm.on_deliver = [](std::size_t, std::size_t, const ConsensusMessage& message) {
      return !std::holds_alternative<Chunk>(message);
    };
    swarm.command(5);
    for (const std::size_t holder : {0U, 2U}) {
      swarm.connect(5, holder);
      swarm.run(1s);
    }
    // Node 0 answers a Finish with its certificate once in a session: from now on it is silent.
    swarm.inject(0, 5, asking(swarm));
    swarm.run(1s);
    for (const std::size_t k : {2U, 3U, 4U}) {
      swarm.kill(k);
      swarm.presence(5, k, Presence::gone);
    }
    swarm.on_deliver = nullptr;

    swarm.run(15min);

    REQUIRE(swarm.node(5).finished);
    CHECK(hash_at(swarm, 5) == hash_at(swarm, 0));
  }

  TEST_CASE("the model of a kept certificate may be shown by others, and with fewer signers") {
    for (const bool holder_stays : {true, false}) {
      CAPTURE(holder_stays);
      Swarm swarm({.nodes = 6, .seed = 5});
      // Nodes 0 and 1 end apart, and node 5 adopts their model. Nodes 2, 3 and 4 train on.
      swarm.standing(5, Role::follower);
      swarm.connect(0, 1);
      swarm.connect(0, 5);
      swarm.run(1s);
      swarm.command(0);
      swarm.run(1min);
      REQUIRE(swarm.node(5).finished);
      swarm.presence(2, 5, Presence::present);
      swarm.connect(2, 0);
      swarm.run(1s);
      REQUIRE(swarm.node(2).consensus->idle());

      if (!holder_stays) swarm.disconnect(2, 0);
      swarm.on_deliver = [](std::size_t from, std::size_t, const ConsensusMessage& message) {
        return from != 5 || std::holds_alternative<Chunk>(message);
      };
      swarm.connect(2, 5);
      swarm.run(1s);
      auto fewer = *swarm.node(5).consensus->certificate_message();
      fewer.certificate.participants = {swarm.node(5).id};
      fewer.certificate.signatures.clear();
      sign_by_participants(fewer.certificate);
      swarm.inject(2, 5, fewer);
      REQUIRE(swarm.node(2).consensus->idle());
      swarm.presence(2, 3,
                     Presence::gone);  // one that trains less: two are left, as many as signed
      swarm.run(15min);

      REQUIRE(swarm.node(2).finished);
      CHECK(hash_at(swarm, 2) == hash_at(swarm, 0));
      CHECK(swarm.node(2).finished->certificate.participants.size() == 2);
    }
  }

  TEST_CASE("who takes a certificate that it kept asks all who said that they hold the model") {
    Swarm swarm({.nodes = 6, .seed = 5});
    swarm.connect(0, 1);
    swarm.run(1s);
    swarm.command(0);
    swarm.run(1min);
    for (const std::size_t holder : {0U, 1U}) {
      swarm.connect(2, holder);
      swarm.run(1s);
    }
    REQUIRE(swarm.node(2).consensus->idle());
    // Node 1 showed it last, and answers nobody.
    swarm.on_deliver = [](std::size_t from, std::size_t, const ConsensusMessage& message) {
      return from != 1 || !std::holds_alternative<Chunk>(message);
    };
    for (const std::size_t k : {3U, 4U, 5U}) swarm.presence(2, k, Presence::gone);
    swarm.run(1min);

    REQUIRE(swarm.node(2).finished);
    CHECK(hash_at(swarm, 2) == hash_at(swarm, 0));
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
