#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

// Until node k may exit, in small steps: what the others hold at that moment counts. At most 200 s.
void run_until_exit(Swarm& swarm, std::size_t k) {
  for (int step = 0; step < 20'000 && !swarm.node(k).may_exit; ++step) swarm.run(10ms);
}

}  // namespace

TEST_SUITE("gossip/consensus/faults") {
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

  TEST_CASE("a member that was held for dead and came back takes part like any other") {
    Swarm swarm({.nodes = 4, .seed = 3});
    swarm.connect_ring();
    swarm.run(1s);
    // Node 0 has no session with node 2: what it knows of it comes from membership.
    swarm.presence(0, 2, Presence::gone);
    swarm.presence(0, 2, Presence::trains);

    swarm.command(0);
    swarm.run(10min);

    check_result(swarm, all_of(swarm), all_of(swarm));
    CHECK(epoch_of(swarm, 0) == 1);
  }

  TEST_CASE("a member that wrongly holds another one for dead costs one epoch at most") {
    for (const bool before : {true, false}) {
      CAPTURE(before);
      Swarm swarm({.nodes = 6, .seed = 7});
      swarm.connect_ring();
      swarm.run(1s);
      // Node 0 has no session with 3, and does not hear of its refutation.
      if (before) swarm.presence(0, 3, Presence::gone);

      swarm.command(0);
      while (!before && swarm.node(0).consensus->state().phase < Phase::freezing) swarm.run(1ms);
      if (!before) swarm.presence(0, 3, Presence::gone);
      swarm.run(10min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      CHECK(epoch_of(swarm, 0) == (before ? 1 : 2));
    }
  }

  TEST_CASE("nobody exits while a follower that nobody knew of still fetches") {
    Swarm swarm({.nodes = 4, .seed = 5});
    swarm.connect_all();
    swarm.run(1s);
    // Node 3 was still joining when the others agreed: it hears of nothing before the certificate.
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      if (from != 3 && to != 3) return true;
      return swarm.node(0).consensus->certificate().has_value() &&
             !std::holds_alternative<Finish>(message);
    };

    swarm.command(0);
    run_until_exit(swarm, 0);

    REQUIRE(swarm.node(0).may_exit);
    CHECK(swarm.node(3).finished);
  }

  TEST_CASE("nobody exits while somebody fetches whose session came up after the end") {
    Swarm swarm({.nodes = 2, .seed = 5});
    swarm.presence(0, 1, Presence::gone);
    swarm.node(0).disk_hangs = true;
    swarm.command(0);
    swarm.run(10s);
    REQUIRE(swarm.node(0).finished);

    // It is shown the certificate, and asks for the model at the moment when all is written.
    bool asked = false;
    swarm.on_deliver = [&](std::size_t, std::size_t, const ConsensusMessage& message) {
      asked = asked || std::holds_alternative<ChunkRequest>(message);
      return true;
    };
    swarm.connect(0, 1);
    while (!asked) swarm.run(1ms);
    swarm.store(0);
    run_until_exit(swarm, 0);

    REQUIRE(swarm.node(0).may_exit);
    CHECK(swarm.node(1).finished);
  }

  TEST_CASE("a follower does not exit while somebody fetches to whom it showed the certificate") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 4, .seed = seed});
      // Node 3 has a session with the follower alone.
      swarm.connect(0, 1);
      swarm.connect(0, 2);
      swarm.connect(2, 3);
      swarm.standing(2, Role::follower);
      swarm.standing(3, Role::follower);
      swarm.run(1s);

      swarm.command(0);
      run_until_exit(swarm, 2);

      REQUIRE(swarm.node(2).may_exit);
      CHECK(swarm.node(3).finished);
    }
  }

  TEST_CASE("a certificate whose model left with its holders holds up nobody who comes later") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 4, .seed = seed});
      swarm.command(0);
      swarm.run(1min);
      REQUIRE(swarm.node(0).may_exit);
      // Two of the others, who know of nobody else, see the certificate and no chunk of the model.
      for (const auto& [k, other] : {std::pair(1, 2), {1, 3}, {2, 1}, {2, 3}})
        swarm.presence(static_cast<std::size_t>(k), static_cast<std::size_t>(other),
                       Presence::forgotten);
      swarm.on_deliver = [&](std::size_t from, std::size_t, const ConsensusMessage& message) {
        return from != 0 || !std::holds_alternative<Chunk>(message);
      };
      swarm.connect(1, 2);
      swarm.connect(0, 1);
      swarm.run(1s);
      swarm.kill(0);
      swarm.run(90s);

      swarm.connect(3, 1);
      swarm.command(3);
      swarm.run(30s);

      // They train, and nothing of theirs is in the certificate: their work counts with the
      // third's.
      check_result(swarm, {1, 2, 3}, {1, 2, 3});
    }
  }

  TEST_CASE("a certificate that a joining node could not take is shown again when it asks") {
    Swarm swarm({.nodes = 3, .seed = 5});
    swarm.connect_all();
    swarm.run(1s);
    bool joining = true;
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      if (!joining || to != 2) return true;
      if (std::holds_alternative<CertificateMessage>(message)) swarm.refuse(from, 2, message);
      return false;
    };
    swarm.command(0);
    while (!swarm.node(0).finished || !swarm.node(1).finished) swarm.run(10ms);
    swarm.run(100ms);

    joining = false;
    swarm.command(2);
    const Duration began = swarm.elapsed();
    while (swarm.elapsed() < began + 2s) swarm.run(10ms);

    CHECK(swarm.node(2).finished);
  }

  TEST_CASE("a certificate that somebody had no room for is shown until there is room") {
    Swarm swarm({.nodes = 3, .seed = 7, .newcomer = 2});
    swarm.connect_all();
    swarm.run(1s);
    bool away = true;
    bool full = true;
    std::size_t refused = 0;
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      if (to != 2) return true;
      const bool certificate = std::holds_alternative<CertificateMessage>(message);
      if (full && certificate) {
        swarm.refuse(from, 2, message);
        ++refused;
      }
      return !away && !(full && certificate);
    };
    swarm.command(0);
    while (!swarm.node(0).finished || !swarm.node(1).finished) swarm.run(10ms);

    away = false;
    swarm.command(2);
    const Duration began = swarm.elapsed();
    while (swarm.elapsed() < began + 12s) swarm.run(10ms);
    CHECK(refused <= 10);
    full = false;
    while (swarm.elapsed() < began + 20s) swarm.run(10ms);

    CHECK(swarm.node(2).finished);
  }

  TEST_CASE("a member that can read no certificate keeps the others no longer than the linger") {
    Swarm swarm({.nodes = 4, .seed = 6});
    swarm.connect_all();
    swarm.run(1s);
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage&) {
      return from != 3 && to != 3;
    };

    swarm.command(0);
    run_until_exit(swarm, 0);

    REQUIRE(swarm.node(0).may_exit);
    CHECK(swarm.elapsed() <= 1min);
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

  TEST_CASE("a node that restarts in the middle follows under its old identity") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect_all();
      swarm.run(1s);
      swarm.at(1s + std::chrono::milliseconds(200 + 60 * seed),
               [&] { swarm.restart_and_connect(2); });

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

  TEST_CASE(
      "when every participant restarted and nobody else is there, all take part in the next") {
    Swarm swarm({.nodes = 3});
    swarm.connect_all();
    swarm.on_deliver = [](std::size_t, std::size_t, const ConsensusMessage& message) {
      return !std::holds_alternative<HashSignature>(message);
    };
    swarm.run(1s);
    swarm.command(0);
    for (const std::size_t k : {0U, 1U, 2U})
      swarm.at(4s + std::chrono::milliseconds(600 * k),
               [&swarm, k] { swarm.restart_and_connect(k); });
    swarm.at(20s, [&] {
      swarm.on_deliver = nullptr;
      for (std::size_t k = 0; k < 3; ++k)
        CHECK(swarm.node(k).consensus->state().phase == Phase::following);
    });
    // By then each has given up waiting for the others.
    swarm.at(5min, [&] {
      for (std::size_t k = 0; k < 3; ++k)
        CHECK(swarm.node(k).consensus->state().phase == Phase::idle);
      swarm.command(1);
    });

    swarm.run(20min);

    CHECK(swarm.idle());
    for (std::size_t k = 0; k < 3; ++k) {
      CAPTURE(k);
      REQUIRE(swarm.node(k).finished);
      CHECK(swarm.node(k).finished->certificate.participants.size() == 3);
      CHECK(swarm.node(k).x == swarm.node(0).x);
    }
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
    // Where somebody follows, the others tell it that they are at work: that is no progress.
    for (const bool followed : {false, true}) {
      CAPTURE(followed);
      Swarm swarm({.nodes = 5, .seed = 16});
      swarm.connect_all();
      swarm.run(1s);
      if (followed)
        swarm.standing(4, Role::follower);
      else
        swarm.kill(4);
      // Its sessions stay up, but from the first sum on it is never heard again.
      bool silent = false;
      swarm.on_deliver = [&](std::size_t from, std::size_t, const ConsensusMessage& message) {
        if (from == 3 && message.index() == 3) silent = true;
        return !(silent && from == 3);
      };

      swarm.run(100ms);
      swarm.command(0);
      swarm.run(20min);

      REQUIRE(silent);
      for (std::size_t k = 0; k < 3; ++k) {
        REQUIRE(swarm.node(k).finished);
        CHECK(epoch_of(swarm, k) == 2);
        CHECK(swarm.node(k).finished->certificate.participants.size() == 3);
        CHECK(swarm.node(k).finished_at < TimePoint{} + 90s);
        CHECK(swarm.node(k).may_exit);
      }
      CHECK(swarm.idle());
    }
  }
}

}  // namespace starling::gossip::consensus::testing
