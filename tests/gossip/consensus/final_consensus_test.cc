#include "tests/gossip/consensus/swarm.h"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <numeric>

namespace starling::gossip::consensus::testing {
namespace {

using namespace std::chrono_literals;

std::vector<std::size_t> all_of(Swarm& swarm) {
  std::vector<std::size_t> all(swarm.size());
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Every node in `nodes` finished with exactly the result of `participants`, and a certificate that
// names them and verifies.
void check_result(Swarm& swarm, const std::vector<std::size_t>& nodes,
                  const std::vector<std::size_t>& participants, Rule rule = Rule::mean) {
  const auto reference = reference_of(swarm, participants, rule);
  std::vector<NodeId> ids;
  for (const auto p : participants) ids.push_back(swarm.node(p).id);
  std::sort(ids.begin(), ids.end());
  for (const auto k : nodes) {
    CAPTURE(k);
    auto& node = swarm.node(k);
    CAPTURE(name_of(node.consensus->state().phase));
    CAPTURE(node.consensus->state().reason);
    REQUIRE(node.finished.has_value());
    CHECK(same_bits(node.x, reference.x));
    CHECK(same_bits(node.result_mean, reference.mean));
    CHECK(same_bits(node.result_variance, reference.variance));
    CHECK(same_bits(node.result_counters, reference.counters));
    const auto& certificate = node.finished->certificate;
    CHECK(certificate.participants == ids);
    CHECK(certificate.hash == swarm.node(nodes.front()).finished->certificate.hash);
    CHECK(verify(certificate, swarm.options().fingerprint, swarm.verifier()).has_value());
    const bool took_part = std::ranges::find(participants, k) != participants.end();
    CHECK((node.finished->role == Role::participant) == took_part);
    CHECK(node.may_exit);
  }
}

std::uint64_t epoch_of(Swarm& swarm, std::size_t node) {
  return swarm.node(node).finished->certificate.epoch.value;
}

}  // namespace

TEST_SUITE("gossip/consensus/final_consensus") {
  TEST_CASE("a lone node ends with a certificate of one") {
    Swarm swarm({.nodes = 1});

    swarm.command(0);
    swarm.run(10min);

    check_result(swarm, {0}, {0});
    CHECK(epoch_of(swarm, 0) == 1);
    CHECK(swarm.idle());
  }

  TEST_CASE("all replicas end bit-identical to the exact mean, on any graph and in any order") {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 2 + seed % 15,
                   .seed = seed,
                   .window = 1 + static_cast<std::uint32_t>(seed % 4)});
      swarm.connect_randomly(seed % 7);
      swarm.run(1s);

      swarm.command(seed % swarm.size());
      swarm.run(10min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      CHECK(epoch_of(swarm, 0) == 1);
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("a death in any phase costs exactly one epoch and the survivors end identical") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect_all();
      swarm.run(1s);
      bool dead = false;
      std::size_t seen = 0;
      // The moment of death: after a number of messages of this kind.
      const std::size_t kind = 2 + seed % 4;  // Exponents, Sum, Contribution (never), ResultChunk
      swarm.on_deliver = [&](std::size_t, std::size_t, const ConsensusMessage& message) {
        const auto phase =
            swarm.node(4).alive ? swarm.node(4).consensus->state().phase : Phase::done;
        if (!dead && phase >= Phase::confirming && phase <= Phase::checking &&
            message.index() == kind && ++seen > seed % 11) {
          dead = true;
          swarm.kill(4);
        }
        return true;
      };

      swarm.command(0);
      swarm.run(10min);

      if (dead) {
        check_result(swarm, {0, 1, 2, 3}, {0, 1, 2, 3});
        CHECK(epoch_of(swarm, 0) == 2);
      } else {
        check_result(swarm, all_of(swarm), all_of(swarm));
      }
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("a death while the set is collected, confirmed or certified leaves nobody hanging") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 6, .seed = seed});
      swarm.connect_all();
      swarm.run(1s);
      const auto when = 1s + std::chrono::milliseconds(5 + 29 * seed);
      swarm.at(when, [&] { swarm.kill(5); });

      swarm.command(0);
      swarm.run(15min);

      CHECK(swarm.idle());
      for (std::size_t k = 0; k < 5; ++k) {
        CAPTURE(k);
        REQUIRE(swarm.node(k).finished);
        CHECK(swarm.node(k).finished->certificate.hash == swarm.node(0).finished->certificate.hash);
        CHECK(swarm.node(k).x == swarm.node(0).x);
        CHECK(epoch_of(swarm, k) <= 2);
        CHECK(swarm.node(k).may_exit);
        CHECK(swarm.node(k).misbehaved.empty());
      }
    }
  }

  TEST_CASE("two deaths of nine in the middle leave the survivors identical") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 9, .seed = seed});
      swarm.connect_all();
      swarm.run(1s);
      Rng rng(seed);
      for (std::size_t k : {7U, 8U})
        swarm.at(1s + std::chrono::milliseconds(rng.below(1500)), [&swarm, k] { swarm.kill(k); });

      swarm.progress(0, 1000, 1000);
      for (std::size_t k = 1; k < 9; ++k) swarm.progress(k, 990, 1000);
      swarm.run(15min);

      for (std::size_t k = 0; k < 7; ++k) {
        REQUIRE(swarm.node(k).finished);
        CHECK(swarm.node(k).x == swarm.node(0).x);
        CHECK(swarm.node(k).finished->certificate == swarm.node(0).finished->certificate);
        CHECK(epoch_of(swarm, k) <= 3);
        CHECK(swarm.node(k).finished_at < TimePoint{} + 60s);
      }
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("sessions that break and come back in the middle lose nothing") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 6, .seed = seed, .longest_job = 20ms});
      swarm.connect_ring();
      swarm.connect(0, 3);
      swarm.run(1s);
      Rng rng(seed);
      for (std::size_t k = 0; k < 8; ++k) {
        const auto a = rng.below(6);
        const auto when = 1s + std::chrono::milliseconds(300 + rng.below(1200));
        swarm.at(when, [&swarm, a] { swarm.disconnect(a, (a + 1) % 6); });
        swarm.at(when + 100ms, [&swarm, a] { swarm.connect(a, (a + 1) % 6); });
      }

      swarm.command(0);
      swarm.run(15min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      // A break while statements are collected may show two nodes different graphs.
      CHECK(epoch_of(swarm, 0) <= 3);
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("a node below 98 percent of the budget follows and adopts the certified model") {
    Swarm swarm({.nodes = 5, .seed = 3});
    swarm.connect_ring();
    swarm.run(1s);
    swarm.progress(2, 970, 1000);
    for (std::size_t k : {1U, 3U, 4U}) swarm.progress(k, 985, 1000);

    swarm.progress(0, 1000, 1000);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 3, 4});
    CHECK(epoch_of(swarm, 0) == 1);
    CHECK(swarm.node(2).finished->certificate.samples == 1000);
    CHECK(swarm.idle());
  }

  TEST_CASE("a newcomer follows whatever its progress") {
    Swarm swarm({.nodes = 4, .seed = 4});
    swarm.connect_all();
    swarm.standing(3, Role::follower);
    swarm.run(1s);

    swarm.command(1);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 2});
  }

  TEST_CASE("a follower that catches up before the set is closed takes part") {
    Swarm swarm({.nodes = 4, .seed = 5});
    swarm.connect_all();
    swarm.run(1s);
    for (std::size_t k : {1U, 2U}) swarm.progress(k, 990, 1000);
    swarm.progress(3, 900, 1000);
    swarm.at(1s + 150ms, [&] { swarm.progress(3, 985, 1000); });

    swarm.progress(0, 1000, 1000);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), all_of(swarm));
  }

  TEST_CASE("a node that turns up late gets the certified model and the same hash") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      for (std::size_t k = 0; k < 3; ++k) swarm.connect(k, k + 1);
      swarm.run(1s);
      swarm.at(1s + std::chrono::milliseconds(400 + 60 * seed),
               [&] { swarm.connect(4, seed % 4); });

      swarm.command(0);
      swarm.run(15min);

      check_result(swarm, all_of(swarm), {0, 1, 2, 3});
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("a node that restarts in the middle follows under its old identity") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect_all();
      swarm.run(1s);
      swarm.at(1s + std::chrono::milliseconds(200 + 60 * seed), [&] {
        swarm.restart(2);
        swarm.at(swarm.elapsed() + 500ms, [&] {
          for (std::size_t k : {0U, 1U, 3U, 4U}) swarm.connect(2, k);
        });
      });

      swarm.command(0);
      swarm.run(15min);

      CHECK(swarm.idle());
      for (std::size_t k = 0; k < 5; ++k) {
        CAPTURE(k);
        REQUIRE(swarm.node(k).finished);
        CHECK(swarm.node(k).x == swarm.node(0).x);
        CHECK(swarm.node(k).finished->certificate == swarm.node(0).finished->certificate);
        CHECK(epoch_of(swarm, k) <= 4);
      }
    }
  }

  TEST_CASE("participants that no session connects dial along a cycle first") {
    Swarm swarm({.nodes = 5, .seed = 8});
    // 0 and 1 know of 3 and 4 through the follower 2 alone.
    swarm.connect(0, 1);
    swarm.connect(1, 2);
    swarm.connect(2, 3);
    swarm.connect(3, 4);
    swarm.standing(2, Role::follower);
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 3, 4});
    CHECK(epoch_of(swarm, 0) == 1);
    std::size_t dialled = 0;
    for (std::size_t k = 0; k < 5; ++k) dialled += swarm.node(k).dialled.size();
    CHECK(dialled >= 1);
  }

  TEST_CASE("where dialling is impossible the largest part goes on and the others adopt") {
    Swarm swarm({.nodes = 6, .seed = 9});
    swarm.can_dial = [](std::size_t, std::size_t) { return false; };
    for (std::size_t k = 0; k < 5; ++k) swarm.connect(k, k + 1);
    swarm.standing(3, Role::follower);
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 2});
  }

  TEST_CASE("an island of one and the others each end with a certificate, and both say so") {
    Swarm swarm({.nodes = 4, .seed = 10});
    swarm.connect(0, 1);
    swarm.connect(1, 2);
    swarm.run(1s);

    swarm.command(3);
    swarm.command(0);
    swarm.at(20s, [&] { swarm.connect(2, 3); });
    swarm.run(15min);

    check_result(swarm, {0, 1, 2}, {0, 1, 2});
    check_result(swarm, {3}, {3});
    CHECK(swarm.node(2).conflicting.has_value());
    CHECK(swarm.node(3).conflicting.has_value());
  }

  TEST_CASE("a node that signs two different hashes is excluded by all") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect_all();
      swarm.run(1s);
      const FakeSigner liar(swarm.node(4).id);
      bool lied = false;
      swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
        const auto* honest = std::get_if<HashSignature>(&message);
        // It never sees all signatures itself: a certificate that it could make would be final.
        if (honest != nullptr && to == 4) return false;
        if (honest == nullptr || honest->signer != liar.id()) return true;
        if (from == 4 && !lied) {
          // What everybody else gets from node 4 is held back until the lie is out.
          lied = true;
          auto lie = *honest;
          lie.hash = hash_of(as_bytes("something else"));
          sign(lie, liar, swarm.options().fingerprint);
          swarm.inject(to, 4, lie);
          swarm.inject(to, 4, *honest);
        }
        return from != 4;
      };

      swarm.command(0);
      swarm.run(15min);

      REQUIRE(lied);
      check_result(swarm, {0, 1, 2, 3}, {0, 1, 2, 3});
      CHECK(epoch_of(swarm, 0) <= 3);
    }
  }

  TEST_CASE("a result that one replica cannot have led to is refused and the median stands") {
    Swarm swarm({.nodes = 5, .seed = 12});
    swarm.connect_all();
    for (std::size_t k = 0; k < 5; ++k) {
      auto& node = swarm.node(k);
      // Replicas near one another, but for node 4 that is far away.
      Rng rng(k + 1);
      for (auto& y : node.y) y = 1.0F + static_cast<float>(rng.unit()) * 0.01F;
      if (k == 4)
        for (auto& y : node.y) y += 1000.0F;
      node.tensors = {{0, 4096, 1.0F}, {4096, node.y.size() - 4096, 2.0F}};
      if (k == 4) node.tensors.clear();
    }
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), all_of(swarm), Rule::median);
    CHECK(epoch_of(swarm, 0) == 2);
    CHECK(swarm.node(0).x[0] < 1.1F);
  }

  TEST_CASE("who refuses even the median is left out and adopts what the others certify") {
    Swarm swarm({.nodes = 5, .seed = 13});
    swarm.connect_all();
    for (std::size_t k = 0; k < 5; ++k) {
      auto& node = swarm.node(k);
      for (auto& y : node.y) y = k == 4 ? 1000.0F : 1.0F;
      node.tensors = {{0, node.y.size(), k == 4 ? 1.0F : 1e6F}};
    }
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 2, 3}, Rule::median);
  }

  TEST_CASE("a node whose replica is not finite withdraws and the others go on") {
    Swarm swarm({.nodes = 4, .seed = 14});
    swarm.connect_all();
    swarm.node(2).y[5000] = std::numeric_limits<float>::quiet_NaN();
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 3});
    CHECK(epoch_of(swarm, 0) == 2);
  }

  TEST_CASE("false bytes on the way end that session and cost one epoch") {
    Swarm swarm({.nodes = 5, .seed = 15});
    swarm.connect_all();
    swarm.run(1s);
    bool spoilt = false;
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      const auto* result = std::get_if<ResultChunk>(&message);
      if (result == nullptr || from != 4 || spoilt) return true;
      spoilt = true;
      auto wrong = *result;
      auto bytes = *wrong.values;
      bytes[3] ^= std::byte{1};
      wrong.values = share(bytes);
      swarm.inject(to, 4, wrong);
      return false;
    };

    swarm.command(0);
    swarm.run(15min);

    REQUIRE(spoilt);
    check_result(swarm, all_of(swarm), all_of(swarm));
    CHECK(epoch_of(swarm, 0) == 2);
    std::size_t counted = 0;
    for (std::size_t k = 0; k < 4; ++k)
      for (const auto& m : swarm.node(k).misbehaved) counted += m.peer == swarm.node(4).id ? 1 : 0;
    CHECK(counted == 1);
  }

  TEST_CASE("a silent member is dropped after the stall limit and nobody hangs") {
    Swarm swarm({.nodes = 4, .seed = 16});
    swarm.connect_all();
    swarm.run(1s);
    // Its sessions stay up, but from the first sum on it is never heard again.
    bool silent = false;
    swarm.on_deliver = [&](std::size_t from, std::size_t, const ConsensusMessage& message) {
      if (from == 3 && message.index() == 3) silent = true;
      return !(silent && from == 3);
    };

    swarm.command(0);
    swarm.run(20min);

    REQUIRE(silent);
    for (std::size_t k = 0; k < 3; ++k) {
      REQUIRE(swarm.node(k).finished);
      CHECK(epoch_of(swarm, k) == 2);
      CHECK(swarm.node(k).finished->certificate.participants.size() == 3);
      CHECK(swarm.node(k).may_exit);
    }
    CHECK(swarm.idle());
  }
}

}  // namespace starling::gossip::consensus::testing
