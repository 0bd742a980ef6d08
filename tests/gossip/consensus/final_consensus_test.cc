#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <limits>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

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

  TEST_CASE("a newcomer follows whatever its progress") {
    Swarm swarm({.nodes = 4, .seed = 4});
    swarm.connect_all();
    swarm.standing(3, Role::follower);
    swarm.run(1s);

    swarm.command(1);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 2});
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

  TEST_CASE("late nodes that show each other the certificate ask who has the model, once a chunk") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 6, .seed = seed});
      for (std::size_t a = 0; a < 3; ++a)
        for (std::size_t b = a + 1; b < 3; ++b) swarm.connect(a, b);
      swarm.run(1s);
      std::size_t requests = 0;
      swarm.on_deliver = [&](std::size_t, std::size_t, const ConsensusMessage& message) {
        requests += std::holds_alternative<ChunkRequest>(message) ? 1 : 0;
        return true;
      };
      swarm.command(0);
      while (!swarm.node(0).finished) swarm.run(10ms);
      swarm.run(300ms);  // it says so once it has stored what it holds
      for (std::size_t late = 3; late < 6; ++late) {
        swarm.connect(late, 0);
        for (std::size_t other = late + 1; other < 6; ++other) swarm.connect(late, other);
        swarm.command(late);
      }
      const Duration began = swarm.elapsed();
      while (swarm.elapsed() < began + 2s) swarm.run(10ms);

      for (std::size_t k = 3; k < 6; ++k) CHECK(swarm.node(k).finished);
      // Seven chunks each: four of parameters, mean, variance, counters.
      CHECK(requests <= 3 * 7 + 3 * ChunkFetch::kOutstanding);
    }
  }

  TEST_CASE("who passed the certificate on before it had the model is asked again once it has") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect(0, 1);
      swarm.connect(0, 2);
      swarm.run(1s);
      swarm.command(0);
      while (!swarm.node(0).finished) swarm.run(10ms);
      // Each of the late hears of it from the one before, which is still fetching then.
      swarm.connect(4, 3);
      swarm.connect(3, 0);
      swarm.command(3);
      const Duration began = swarm.elapsed();
      while (swarm.elapsed() < began + 2s) swarm.run(10ms);

      CHECK(swarm.node(3).finished);
      CHECK(swarm.node(4).finished);
    }
  }

  TEST_CASE("a holder that does not answer delays nobody who has a session with another one") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 4, .seed = seed});
      for (std::size_t a = 0; a < 3; ++a)
        for (std::size_t b = a + 1; b < 3; ++b) swarm.connect(a, b);
      swarm.run(1s);
      // The sessions of node 3 with 0 and 2 are up, and nothing comes through.
      swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage&) {
        return (from != 3 && to != 3) || from == 1 || to == 1;
      };
      swarm.command(0);
      while (!swarm.node(0).finished) swarm.run(10ms);
      for (std::size_t k = 0; k < 3; ++k) swarm.connect(3, k);
      swarm.command(3);
      const Duration began = swarm.elapsed();
      while (swarm.elapsed() < began + 2s) swarm.run(10ms);

      CHECK(swarm.node(3).finished);
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
    REQUIRE(swarm.node(2).not_taken.size() == 1);
    REQUIRE(swarm.node(3).not_taken.size() == 1);
    CHECK(swarm.node(2).not_taken.front().certificate.participants.size() == 1);
    CHECK(swarm.node(3).not_taken.front().certificate.participants.size() == 3);
  }

  TEST_CASE("a member that was cut off and ended alone does not end the run of the others") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 4, .seed = seed});
      swarm.connect(0, 1);
      swarm.connect(1, 2);
      swarm.command(3);
      swarm.run(1min);
      REQUIRE(swarm.node(3).finished);

      swarm.connect(2, 3);
      swarm.run(10min);

      for (std::size_t k = 0; k < 3; ++k) CHECK_FALSE(swarm.node(k).finished);
      REQUIRE(swarm.node(2).not_taken.size() == 1);
      CHECK(swarm.node(2).not_taken.front().others == 3);
      const TimePoint ordered = swarm.now();
      swarm.command(0);
      swarm.run(15min);
      check_result(swarm, {0, 1, 2}, {0, 1, 2});
      CHECK(swarm.node(0).finished_at < ordered + 4s);  // nobody waits for a word of its
    }
  }

  TEST_CASE("nobody waits for the word of members that have no model of the run to give") {
    Swarm swarm({.nodes = 4, .seed = 11});
    swarm.connect_all();
    for (std::size_t k = 0; k < 3; ++k) swarm.presence(k, 3, Presence::present);
    swarm.on_deliver = [](std::size_t from, std::size_t to, const ConsensusMessage&) {
      return from != 3 && to != 3;
    };
    swarm.run(1s);

    const TimePoint ordered = swarm.now();
    swarm.command(0);
    swarm.run(5min);

    check_result(swarm, {0, 1, 2}, {0, 1, 2});
    CHECK(swarm.node(0).finished_at < ordered + 4s);
  }

  TEST_CASE("a member that was forgotten long before is waited for like any other") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 3, .seed = seed, .longest_delay = 1s});
      swarm.presence(0, 2, Presence::gone);
      swarm.presence(0, 2, Presence::forgotten);
      swarm.connect(0, 1);
      swarm.connect(1, 2);  // it is back, and only its neighbour knows so far
      swarm.run(5s);

      swarm.command(0);
      swarm.run(10min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      CHECK(epoch_of(swarm, 0) == 1);
    }
  }

  TEST_CASE("who gets its model while the others agree hears of it and ends nothing by itself") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 4, .seed = seed, .longest_delay = 2s});
      swarm.connect_all();
      // Without a model it takes no message of the consensus.
      bool has_model = false;
      for (std::size_t k = 0; k < 3; ++k) swarm.presence(k, 3, Presence::present);
      swarm.on_deliver = [&](std::size_t, std::size_t to, const ConsensusMessage&) {
        return to != 3 || has_model;
      };
      swarm.run(5s);
      for (std::size_t k = 0; k < 3; ++k) swarm.progress(k, 100, 100);
      swarm.at(14s, [&] {
        CHECK(swarm.node(0).consensus->state().phase == Phase::reducing);
        has_model = true;
        swarm.progress(3, 100, 100);
        for (std::size_t k = 0; k < 3; ++k) swarm.presence(k, 3, Presence::trains);
      });
      swarm.run(15min);

      check_result(swarm, all_of(swarm), {0, 1, 2});
    }
  }

  TEST_CASE("who is left alone takes the model of those who ended without it") {
    // The others die, are forgotten, or take that model themselves.
    for (const int way : {0, 1, 2}) {
      CAPTURE(way);
      Swarm swarm({.nodes = 4, .seed = 31});
      swarm.command(3);
      swarm.run(1min);
      swarm.connect(2, 3);
      swarm.run(1min);
      REQUIRE_FALSE(swarm.node(2).finished);

      for (std::size_t other = 0; other < 2; ++other) {
        if (way == 0) swarm.presence(2, other, Presence::gone);
        if (way == 1) swarm.presence(2, other, Presence::forgotten);
        if (way == 2) {
          for (const std::size_t third : {1 - other, std::size_t{2}})
            swarm.presence(other, third, Presence::gone);
          swarm.connect(other, 3);
        }
      }
      swarm.run(1min);

      REQUIRE(swarm.node(2).finished);
      CHECK(swarm.node(2).finished->role == Role::follower);
      CHECK(swarm.node(2).finished->certificate.hash == swarm.node(3).finished->certificate.hash);
    }
  }

  TEST_CASE(
      "who signed a certificate and lost it in a crash takes it again, however few they were") {
    Swarm swarm({.nodes = 5, .seed = 32});
    swarm.connect(3, 4);
    swarm.command(3);
    swarm.run(1min);
    REQUIRE(swarm.node(4).finished);

    swarm.restart(4);
    swarm.connect(3, 4);
    swarm.run(1min);

    REQUIRE(swarm.node(4).finished);
    CHECK(swarm.node(4).finished->certificate.hash == swarm.node(3).finished->certificate.hash);
  }

  TEST_CASE("ids that nobody knows for members outvote nobody") {
    Swarm swarm({.nodes = 4, .seed = 33});
    swarm.connect(0, 1);
    swarm.connect(2, 3);
    for (const std::size_t signer : {2UL, 3UL})
      for (const std::size_t other : {0UL, 1UL}) swarm.presence(other, signer, Presence::forgotten);
    swarm.command(2);
    swarm.run(1min);
    REQUIRE(swarm.node(3).finished);

    swarm.connect(1, 2);
    swarm.run(1min);

    CHECK_FALSE(swarm.node(1).finished);
  }

  TEST_CASE("weights count in the mean, exactly") {
    Swarm swarm({.nodes = 6, .seed = 17, .weighted = true});
    swarm.connect_randomly(3);
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), all_of(swarm));
  }

  TEST_CASE("where all are newcomers, as in a short run, all take part") {
    for (std::size_t nodes : {1U, 4U}) {
      CAPTURE(nodes);
      Swarm swarm({.nodes = nodes, .seed = 18});
      swarm.connect_all();
      for (std::size_t k = 0; k < nodes; ++k) swarm.standing(k, Role::follower);
      swarm.run(1s);

      swarm.command(0);
      swarm.run(15min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("where only newcomers are left, hearing of that again and again changes nothing") {
    for (std::size_t nodes : {1U, 3U}) {
      CAPTURE(nodes);
      Swarm swarm({.nodes = nodes, .seed = 20});
      swarm.connect_all();
      // As Gossip does, which tells it whenever it looks at its progress.
      for (Duration when{0}; when < 1min; when += 200ms)
        swarm.at(when, [&] {
          for (std::size_t k = 0; k < nodes; ++k) swarm.standing(k, Role::follower);
        });
      swarm.run(1s);

      swarm.command(0);
      swarm.run(1min);

      check_result(swarm, all_of(swarm), all_of(swarm));
    }
  }

  TEST_CASE("a node that trains on goes its own way once a certified model is gone for good") {
    for (const bool ordered : {false, true}) {
      CAPTURE(ordered);
      Swarm swarm({.nodes = 2, .seed = 21});
      swarm.command(0);
      swarm.run(1min);
      // Node 1 sees the certificate; its only holder dies before it sends any of the model.
      swarm.on_deliver = [](std::size_t, std::size_t, const ConsensusMessage& message) {
        return !std::holds_alternative<Chunk>(message);
      };
      swarm.connect(0, 1);
      swarm.run(1s);
      swarm.kill(0);
      REQUIRE(swarm.node(1).consensus->state().phase == Phase::fetching);
      if (ordered) swarm.command(1);
      swarm.run(5min);

      CHECK_FALSE(swarm.node(1).failed);
      CHECK(swarm.node(1).finished.has_value() == ordered);
      swarm.command(1);
      swarm.run(1min);

      check_result(swarm, {1}, {1});
    }
  }

  TEST_CASE("nobody leaves before the certified model is on the disk of everybody who lives") {
    for (const bool is_gone : {false, true}) {
      CAPTURE(is_gone);
      Swarm swarm({.nodes = 3, .seed = 11});
      swarm.connect_all();
      swarm.node(2).disk_hangs = true;
      swarm.run(1s);
      swarm.command(0);
      while (!swarm.node(2).finished) swarm.run(10ms);
      swarm.run(20s);
      for (std::size_t k = 0; k < 3; ++k) CHECK_FALSE(swarm.node(k).may_exit);

      if (is_gone) {
        swarm.kill(2);
        for (std::size_t k = 0; k < 2; ++k) swarm.presence(k, 2, Presence::gone);
      } else {
        swarm.store(2);
      }
      // Somebody who did not say that it has the model may come back: for it they linger.
      swarm.run(is_gone ? 40s : 1s);
      for (std::size_t k = 0; k < 2; ++k) CHECK(swarm.node(k).may_exit);
      CHECK(swarm.node(2).may_exit != is_gone);
    }
  }

  TEST_CASE("a node that starts with a stored certificate serves it to a joiner") {
    Swarm swarm({.nodes = 3, .seed = 19});
    swarm.connect(0, 1);
    swarm.run(1s);
    swarm.command(0);
    swarm.run(5min);
    check_result(swarm, {0, 1}, {0, 1});
    const auto held = swarm.node(0).consensus->certificate_message();
    REQUIRE(held.has_value());
    const auto x = swarm.node(0).x;
    const auto mean = swarm.node(0).result_mean;
    const auto variance = swarm.node(0).result_variance;
    const auto counters = swarm.node(0).result_counters;

    swarm.restart(0);
    swarm.node(0).x = x;
    swarm.node(0).result_mean = mean;
    swarm.node(0).result_variance = variance;
    swarm.node(0).result_counters = counters;
    auto forged = *held;
    forged.certificate.samples += 1;
    CHECK_FALSE(swarm.node(0).consensus->restore(forged).has_value());
    REQUIRE(swarm.node(0).consensus->restore(*held).has_value());
    swarm.connect(0, 2);
    swarm.run(5min);

    REQUIRE(swarm.node(2).finished);
    CHECK(swarm.node(2).finished->certificate == held->certificate);
    CHECK(swarm.node(2).finished->role == Role::follower);
    CHECK(swarm.node(2).x == x);
  }
}

}  // namespace starling::gossip::consensus::testing
