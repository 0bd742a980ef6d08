// Nodes that are left with a run that nobody brings to its end any more.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <vector>

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

// No line between the two sides, and each holds the other for dead.
void part(Swarm& swarm, const std::vector<std::size_t>& here,
          const std::vector<std::size_t>& there) {
  for (const auto a : here)
    for (const auto b : there) {
      swarm.disconnect(a, b);
      swarm.presence(a, b, Presence::gone);
      swarm.presence(b, a, Presence::gone);
    }
}

Finish finish_of(Swarm& swarm, std::size_t node, Epoch epoch) {
  Finish finish;
  finish.round = {swarm.options().run, epoch};
  finish.signer = swarm.node(node).id;
  finish.fingerprint = swarm.options().fingerprint;
  sign(finish, *swarm.node(node).signer, finish.fingerprint);
  return finish;
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

  TEST_CASE("those who are left end together whoever of them gives the dead run up first") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect_all();
      swarm.can_dial = [](std::size_t, std::size_t) { return false; };
      swarm.run(1s);
      for (const std::size_t k : {2U, 3U}) swarm.standing(k, Role::follower);
      swarm.command(0);
      while (swarm.node(4).consensus->state().phase != Phase::reducing) swarm.run(1ms);
      // Node 4 has frozen, and the others go on without it.
      for (const std::size_t k : {0U, 1U}) swarm.disconnect(k, 4);
      while (swarm.node(0).consensus->state().epoch != Epoch{2}) swarm.run(1ms);
      kill_at_work(swarm, {0, 1});
      swarm.run(1s);
      CHECK(swarm.node(4).consensus->state().phase == Phase::following);
      for (const std::size_t k : {2U, 3U}) swarm.standing(k, Role::participant);
      spend_budget(swarm, 15min);

      swarm.run(15min);

      check_result(swarm, {2, 3, 4}, {2, 3, 4});
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

  TEST_CASE("a follower waits for hours where participants are at work for hours") {
    Swarm swarm({.nodes = 3,
                 .seed = 8,
                 .shape = {.parameters = 250 * std::uint64_t{kBlockValues},
                           .channels = 5,
                           .counters = 2,
                           .chunk_blocks = 1},
                 .longest_job = 20s});
    swarm.connect(0, 1);
    swarm.connect(1, 2);
    swarm.run(1s);
    swarm.standing(2, Role::follower);
    swarm.command(0);
    swarm.run(10s);
    swarm.standing(2, Role::participant);
    spend_budget(swarm, 8h);

    while (!swarm.node(0).finished && swarm.elapsed() < 8h) {
      CHECK(swarm.node(2).consensus->state().phase == Phase::following);
      swarm.run(1min);
    }

    CHECK(swarm.node(0).finished_at > TimePoint{} + 2h);
    for (std::size_t k = 0; k < 3; ++k) {
      CAPTURE(k);
      const auto& certificate = swarm.node(k).consensus->certificate();
      REQUIRE(certificate);
      CHECK(certificate->participants.size() == 2);
      CHECK(certificate->epoch == Epoch{1});
    }
  }

  TEST_CASE("a node that was cut off while the others ended goes on, and ends when it is told to") {
    struct Order {
      std::size_t by = 1;
      std::optional<Duration> again = {};  // by the node that was cut off
      Phase at = Phase::idle;
    };
    // By another node, and by the one that was cut off: then, later, or before all.
    for (const Order order : {Order{}, Order{.again = 3s, .at = Phase::collecting},
                              Order{.again = 20s, .at = Phase::following}, Order{.by = 0}}) {
      const bool ordered = order.again || order.by == 0;
      CAPTURE(order.by);
      CAPTURE(name_of(order.at));
      Swarm swarm({.nodes = 3, .seed = 31});
      swarm.connect_all();
      swarm.run(1s);
      // It hears that the others want to end, and is not heard; then they are gone.
      swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
        return (from != 0 || order.by == 0) && (to != 0 || std::holds_alternative<Finish>(message));
      };
      swarm.command(order.by);
      swarm.run(200ms);
      swarm.kill(1);
      swarm.kill(2);
      // It trains: what its steps add is told all the time.
      for (int second = 2; second < 400; ++second)
        swarm.at(std::chrono::seconds(second), [&] { swarm.progress(0, 50, 100); });
      if (order.again)
        swarm.at(*order.again, [&] {
          CHECK(swarm.node(0).consensus->state().phase == order.at);
          swarm.command(0);
        });

      swarm.run(399s);

      CHECK(swarm.node(0).finished.has_value() == ordered);
      CHECK(swarm.node(0).consensus->idle() != ordered);
      swarm.command(0);
      swarm.run(1min);
      check_result(swarm, {0}, {0});
    }
  }

  TEST_CASE("who is left of nodes that all were followers comes to an end of its own") {
    for (const std::size_t nodes : {2U, 3U}) {
      CAPTURE(nodes);
      Swarm swarm({.nodes = nodes, .seed = 4});
      swarm.connect_all();
      swarm.can_dial = [](std::size_t, std::size_t) { return false; };
      swarm.run(1s);
      const auto all = all_of(swarm);
      for (const std::size_t k : all) swarm.standing(k, Role::follower);
      // Of two parts of as many that of the lowest id counts; this one is not in it.
      const std::size_t left =
          *std::ranges::max_element(all, {}, [&](std::size_t k) { return swarm.node(k).id; });
      std::size_t converted = 0;
      swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
        const auto* finish = std::get_if<Finish>(&message);
        if (to == left && finish != nullptr && finish->signer == swarm.node(from).id &&
            finish->role == Role::participant)
          ++converted;
        return true;
      };
      spend_budget(swarm, 15min);
      while (converted + 1 < nodes && swarm.elapsed() < 1min) swarm.run(1ms);
      REQUIRE(swarm.node(left).consensus->state().phase == Phase::collecting);

      // They have said that they take part, and die before anybody has closed the set.
      for (const std::size_t k : all)
        if (k != left) {
          swarm.kill(k);
          swarm.presence(left, k, Presence::gone);
        }
      swarm.run(15min);

      check_result(swarm, {left}, {left});
      CHECK(swarm.node(left).finished_at < TimePoint{} + 4min);
    }
  }

  TEST_CASE("who was left out gives up in the end, however often a session comes up meanwhile") {
    Swarm swarm({.nodes = 4, .seed = 4});
    swarm.connect_all();
    swarm.can_dial = [](std::size_t, std::size_t) { return false; };
    // Node 3 has no model, and its sessions come and go.
    for (const std::size_t k : {0U, 1U, 2U}) {
      swarm.presence(k, 3, Presence::present);
      swarm.standing(k, Role::follower);
    }
    swarm.run(1s);
    const std::vector<std::size_t> all{0, 1, 2};
    const std::size_t left =
        *std::ranges::max_element(all, {}, [&](std::size_t k) { return swarm.node(k).id; });
    std::size_t converted = 0;
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      const auto* finish = std::get_if<Finish>(&message);
      if (to == left && finish != nullptr && finish->signer == swarm.node(from).id &&
          finish->role == Role::participant)
        ++converted;
      return from != 3 && to != 3;
    };
    spend_budget(swarm, 15min);
    while (converted < 2 && swarm.elapsed() < 1min) swarm.run(1ms);
    REQUIRE(swarm.node(left).consensus->state().phase == Phase::collecting);
    for (const auto k : all)
      if (k != left) {
        swarm.kill(k);
        swarm.presence(left, k, Presence::gone);
      }
    for (auto when = 1min; when < 15min; when += 1min) {
      swarm.at(when, [&] { swarm.disconnect(left, 3); });
      swarm.at(when + 10s, [&] { swarm.connect(left, 3); });
    }

    swarm.run(15min);

    check_result(swarm, {left}, {left});
    CHECK(swarm.node(left).finished_at < TimePoint{} + 5min);
  }

  TEST_CASE("who has signed and hears no more waits for those who may hold the certificate") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed});
      // Node 4 follows, and has no session with those who will hold the certificate.
      for (std::size_t a = 0; a < 5; ++a)
        for (std::size_t b = std::max<std::size_t>(a + 1, 2); b < (a < 2 ? 4U : 5U); ++b)
          swarm.connect(a, b);
      swarm.connect(0, 1);
      swarm.standing(4, Role::follower);
      swarm.run(1s);
      // Nodes 2 and 3 sign, and do not hear that node 0 has signed before the lines are cut.
      swarm.on_deliver = [&](std::size_t, std::size_t to, const ConsensusMessage& message) {
        const auto* signature = std::get_if<HashSignature>(&message);
        return to < 2 || signature == nullptr || signature->signer != swarm.node(0).id;
      };
      swarm.command(0);
      while (!swarm.node(0).finished || !swarm.node(1).finished) swarm.run(1ms);
      part(swarm, {0, 1}, {2, 3, 4});
      // Who is in another set gives the epoch up, and knows nothing of this one.
      const auto other = finish_of(swarm, 4, Epoch{2});
      swarm.at(swarm.elapsed() + 5s, [&, other] { swarm.inject(2, 4, other); });
      swarm.run(25s);
      CHECK(!swarm.node(2).finished);
      CHECK(!swarm.node(0).may_exit);

      swarm.on_deliver = nullptr;
      swarm.connect(1, 2);
      swarm.run(10min);

      check_result(swarm, {0, 1, 2, 3}, {0, 1, 2, 3});
      CHECK(epoch_of(swarm, 2) == 1);
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("who has signed waits for the dead no longer than a holder of the certificate would") {
    for (const bool dead : {true, false}) {
      CAPTURE(dead);
      Swarm swarm({.nodes = 4, .seed = 9});
      dead ? swarm.connect_all() : swarm.connect_ring();
      swarm.run(1s);
      bool mute = false;
      swarm.on_deliver = [&](std::size_t from, std::size_t, const ConsensusMessage& message) {
        return from != 0 || (!mute && !std::holds_alternative<HashSignature>(message));
      };
      swarm.command(1);
      while (swarm.node(0).consensus->state().phase != Phase::certifying) swarm.run(1ms);
      swarm.run(1s);
      // Its neighbours' sessions end; or only node 2, which has none with it, is told by
      // membership.
      mute = true;
      dead ? swarm.kill(0) : swarm.presence(2, 0, Presence::gone);
      const TimePoint died = swarm.now();

      swarm.run(10min);

      check_result(swarm, {1, 2, 3}, {1, 2, 3});
      CHECK(epoch_of(swarm, 1) == 2);
      CHECK(swarm.node(1).finished_at > died + 25s);
      CHECK(swarm.node(1).finished_at < died + swarm.options().linger + 15s);
      CHECK(swarm.idle());
    }
  }
  TEST_CASE("who has signed waits for the dead no longer because others talk") {
    constexpr std::size_t kTalkers = 6;
    Swarm swarm({.nodes = 3 + kTalkers, .seed = 9});
    for (std::size_t k = 3; k < swarm.size(); ++k) swarm.standing(k, Role::follower);
    for (std::size_t a = 0; a < 3; ++a)
      for (std::size_t b = a + 1; b < 3; ++b) swarm.connect(a, b);
    swarm.run(1s);
    swarm.on_deliver = [&](std::size_t from, std::size_t, const ConsensusMessage& message) {
      return from != 0 || !std::holds_alternative<HashSignature>(message);
    };
    swarm.command(1);
    while (swarm.node(0).consensus->state().phase != Phase::certifying) swarm.run(1ms);
    swarm.run(1s);
    swarm.kill(0);
    const TimePoint died = swarm.now();
    // Genuine signatures, of nodes that have no part in the sum.
    for (std::size_t k = 3; k < swarm.size(); ++k)
      swarm.at(swarm.elapsed() + 20s * (k - 2), [&swarm, k] {
        HashSignature signature;
        signature.round = {swarm.options().run, Epoch{1}};
        signature.signer = swarm.node(k).id;
        sign(signature, *swarm.node(k).signer, swarm.options().fingerprint);
        for (const std::size_t to : {1U, 2U}) swarm.inject(to, 3 - to, signature);
      });

    swarm.run(10min);

    check_result(swarm, {1, 2}, {1, 2});
    CHECK(swarm.node(1).finished_at < died + swarm.options().linger + 15s);
  }

  TEST_CASE("who has signed keeps the finish of who is further, and goes on with it") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      const bool two_epochs = seed % 2 == 0;
      Swarm swarm({.nodes = 5, .seed = seed});
      // Two parts without a line between them end apart, and neither comes to its end.
      swarm.connect(0, 1);
      swarm.connect(2, 3);
      if (two_epochs)
        for (const std::size_t k : {2U, 3U}) swarm.connect(k, 4);
      swarm.run(1s);
      swarm.on_deliver = [](std::size_t from, std::size_t to, const ConsensusMessage& message) {
        if (std::holds_alternative<HashSignature>(message)) return from != 1;
        return from < 2 || to < 2 || std::holds_alternative<Finish>(message) ||
               std::holds_alternative<Participants>(message);
      };
      swarm.command(0);
      swarm.command(2);
      while (swarm.node(0).consensus->state().phase != Phase::certifying) swarm.run(1ms);
      const Duration signed_at = swarm.elapsed();
      swarm.kill(1);
      // The others die one by one, and the two that are left find each other: node 3 is one or two
      // epochs further, for some seconds, when node 0 gives its first one up.
      swarm.at(signed_at + 10s, [&] { swarm.kill(4); });
      swarm.at(signed_at + 24s, [&] {
        swarm.kill(2);
        swarm.connect(0, 3);
      });

      swarm.run(28s);
      CHECK(swarm.node(3).consensus->state().epoch == Epoch{two_epochs ? 3U : 2U});
      CHECK(swarm.node(0).consensus->state().epoch == Epoch{1});
      swarm.run(10min);

      check_result(swarm, {0, 3}, {0, 3});
      CHECK(epoch_of(swarm, 0) == (two_epochs ? 3 : 2));
      CHECK(swarm.node(0).finished_at < TimePoint{} + signed_at + swarm.options().linger + 5s);
    }
  }
}

}  // namespace starling::gossip::consensus::testing
