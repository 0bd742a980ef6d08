// The end of a run, and what comes after it.
#include "gossip/gossip.h"
#include "tests/gossip/virtual_swarm.h"
#include "transport/finish_order.h"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

TEST_SUITE("gossip/gossip_ending") {
  TEST_CASE("a node that leaves hands over and is told as left") {
    VirtualSwarm swarm({.seed = 31, .budget_samples = 16'000});
    swarm.connect_all();
    swarm.run_for(3s);

    swarm.leave(3);

    CHECK(swarm.run_until(8s, [&] { return swarm.node(3).left; }));
    swarm.run_for(1s);
    CHECK(swarm.node(0).gossip->membership().state_of(swarm.node(3).id()) == MemberState::left);
    swarm.kill(3);
    REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0, 1, 2}); }));
    CHECK(results(swarm, {0, 1, 2}).size() == 1);
  }

  TEST_CASE("who goes after the end hands nothing over and is told as left at once") {
    VirtualSwarm swarm({.seed = 32});
    swarm.connect_all();
    REQUIRE(swarm.run_until(
        200s, [&] { return all_finished(swarm, {0, 1, 2, 3}) && swarm.node(3).may_exit; }));
    std::size_t payloads = 0;
    swarm.on_send = [&](std::size_t from, const Outgoing& outgoing) {
      payloads += from == 3 && outgoing.message.attachment != nullptr ? 1 : 0;
    };

    swarm.leave(3);

    REQUIRE(swarm.run_until(0ms, [&] { return swarm.node(3).left; }));
    swarm.run_for(500ms);
    swarm.kill(3);
    swarm.run_for(30s);
    CHECK(payloads == 0);
    for (const std::size_t other : {0U, 1U, 2U})
      CHECK(swarm.node(other).gossip->membership().state_of(swarm.node(3).id()) ==
            MemberState::left);
  }

  TEST_CASE("who is told to leave while all agree has its part in the end, and goes then") {
    for (std::uint64_t seed = 33; seed <= 36; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed, .budget_samples = 0});
      swarm.connect_all();
      swarm.run_for(3s);
      swarm.finish(0);
      REQUIRE(swarm.run_until(30s, [&] { return !swarm.node(3).training; }));
      CHECK_FALSE(swarm.node(3).finished);

      swarm.leave(3);
      const auto told = swarm.now();

      REQUIRE(swarm.run_until(30s, [&] { return swarm.node(3).left; }));
      CHECK(seconds(swarm.now() - told) < 6);
      swarm.kill(3);
      REQUIRE(swarm.run_until(60s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));
      CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
      CHECK(swarm.node(0).finished->certificate.participants.size() == 4);
      CHECK(swarm.node(0).finished->certificate.epoch.value == 1);
      CHECK(swarm.run_until(60s, [&] { return swarm.node(0).may_exit; }));
    }
  }

  TEST_CASE("where only the admin ends the run, its order for this swarm and these settings does") {
    const auto admin = transport::Identity::from_seed(std::array<std::byte, 32>{std::byte{200}});
    VirtualSwarm swarm({.seed = 37, .budget_samples = 0, .admin = NodeId{}});
    swarm.connect_all();
    swarm.run_for(3s);
    const Hash settings = swarm.node(0).gossip->model().fingerprint;
    const auto order = transport::order_finish(SwarmId{}, settings, admin).signature;

    // Its nodes do not know the admin yet: nobody's order counts.
    swarm.finish(0);
    swarm.finish(0, order);
    swarm.run_for(5s);
    CHECK(swarm.node(0).gossip->final_consensus()->idle());
    for (const std::size_t k : {0U, 1U, 2U, 3U}) swarm.node(k).gossip->set_admin(admin.id());
    swarm.finish(0, transport::order_finish(SwarmId{}, Hash{}, admin).signature);
    swarm.run_for(5s);
    CHECK(swarm.node(0).gossip->final_consensus()->idle());
    swarm.finish(0, order);

    REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));
    CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
  }

  TEST_CASE("who is told to leave while all agree waits for the end no longer than it may") {
    VirtualSwarm swarm({.seed = 37, .budget_samples = 0});
    swarm.connect_all();
    swarm.run_for(3s);
    swarm.finish(0);
    REQUIRE(swarm.run_until(30s, [&] { return !swarm.node(3).training; }));
    for (const std::size_t other : {0U, 1U, 2U}) swarm.freeze(other);

    swarm.leave(3);
    const auto told = swarm.now();

    REQUIRE(swarm.run_until(30s, [&] { return swarm.node(3).left; }));
    CHECK(seconds(swarm.now() - told) > 5.9);
    CHECK(seconds(swarm.now() - told) < 6.1);
    CHECK(swarm.node(3).failed.has_value());
  }

  TEST_CASE("who takes the end that others made trains no further") {
    VirtualSwarm swarm({.seed = 65, .budget_samples = 0});
    for (const std::size_t peer : {1UL, 2UL}) swarm.connect(0, peer);
    swarm.run_for(3s);
    swarm.finish(0);
    REQUIRE(swarm.run_until(60s, [&] { return all_finished(swarm, {0, 1, 2}); }));
    REQUIRE(swarm.node(3).training);

    swarm.connect(2, 3);

    REQUIRE(swarm.run_until(60s, [&] { return swarm.node(3).finished.has_value(); }));
    const auto steps = swarm.node(3).steps;
    swarm.run_for(10s);
    CHECK_FALSE(swarm.node(3).training);
    CHECK(swarm.node(3).steps == steps);
    CHECK(swarm.node(3).finished->role == consensus::Role::follower);
    CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
  }

  TEST_CASE("one that was cut off and ended alone ends nobody else's run, and they say so") {
    for (std::uint64_t seed = 61; seed <= 64; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed, .budget_samples = 0});
      for (const std::size_t peer : {1UL, 2UL}) swarm.connect(0, peer);
      swarm.finish(3);
      REQUIRE(swarm.run_until(60s, [&] { return swarm.node(3).finished.has_value(); }));
      const auto held = swarm.node(3).gossip->final_consensus()->certificate_message();
      REQUIRE(held.has_value());
      swarm.restart(3);
      swarm.serve(3, *held);
      swarm.connect(2, 3);

      swarm.run_for(60s);

      for (const std::size_t other : {0UL, 1UL, 2UL}) {
        CAPTURE(other);
        CHECK(swarm.node(other).training);
        CHECK_FALSE(swarm.node(other).finished);
      }
      REQUIRE(swarm.node(2).not_taken.has_value());
      CHECK(swarm.node(2).not_taken->others == 3);

      swarm.finish(0);
      REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0, 1, 2}); }));
      CHECK(results(swarm, {0, 1, 2}).size() == 1);
      CHECK(swarm.node(1).finished->certificate.participants.size() == 3);
    }
  }

  TEST_CASE("at the end both ends of every edge have added their half of each exchange") {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed, .budget_samples = 1'000, .delay_max = 50ms});
      swarm.connect_all();
      const std::vector<std::size_t> all{0, 1, 2, 3};
      REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, all); }));
      for (const std::size_t a : all)
        for (const std::size_t b : all) {
          CAPTURE(a);
          CAPTURE(b);
          if (a < b)
            CHECK(swarm.node(a).halves[swarm.node(b).id()] ==
                  swarm.node(b).halves[swarm.node(a).id()]);
        }
    }
  }

  TEST_CASE(
      "who leaves takes no half of an exchange along, as long as its sessions bring what it sent") {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed, .budget_samples = 1'000'000, .delay_max = 100ms});
      swarm.connect_all();
      swarm.run_for(2s + seed * 7ms);

      swarm.leave(3);

      REQUIRE(swarm.run_until(8s, [&] { return swarm.node(3).left; }));
      swarm.run_for(500ms);
      for (const std::size_t other : {0U, 1U, 2U}) {
        CAPTURE(other);
        CHECK(swarm.node(other).halves[swarm.node(3).id()] ==
              swarm.node(3).halves[swarm.node(other).id()]);
      }
    }
  }

  TEST_CASE("any member can order the end") {
    VirtualSwarm swarm({.seed = 41, .budget_samples = 1'000'000'000});
    swarm.connect_all();
    swarm.run_for(3s);

    swarm.finish(2);

    REQUIRE(swarm.run_until(60s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));
    CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
  }

  TEST_CASE("the certificate names the swarm's samples, however the end came") {
    for (const Duration time : {Duration(8s), Duration(0)}) {
      CAPTURE(seconds(time));
      VirtualSwarm swarm({.seed = 43, .budget_samples = 0, .budget_time = time});
      swarm.connect_all();
      swarm.run_for(6s);
      if (time == Duration(0)) swarm.finish(1);

      REQUIRE(swarm.run_until(60s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));

      std::uint64_t samples = 0;
      for (std::size_t k = 0; k < swarm.size(); ++k) samples += swarm.node(k).steps * 8;
      const auto certified = swarm.node(0).finished->certificate.samples;
      CHECK(certified > samples / 2);
      CHECK(certified < samples * 2);
    }
  }

  TEST_CASE("what a node has no room for while all agree is sent again and costs no epoch") {
    for (std::uint64_t seed = 42; seed <= 46; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed});
      swarm.connect_all();
      std::map<std::uint16_t, std::size_t> refused;
      swarm.refuses = [&](std::size_t, std::size_t, const transport::Message& message) {
        return message.room() == transport::Room::consensus && ++refused[message.type] <= 2;
      };

      REQUIRE(swarm.run_until(120s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));

      CHECK(refused.size() >= 3);  // Exponents, Sum, ResultChunk
      CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
      CHECK(swarm.node(0).finished->certificate.participants.size() == 4);
      CHECK(swarm.node(0).finished->certificate.epoch.value == 1);
    }
  }

  TEST_CASE(
      "a finished node that starts again serves its model to a joiner that waits for nobody") {
    VirtualSwarm swarm({.seed = 71, .nodes = 3});
    swarm.restart(2);  // comes when all is over
    swarm.connect(0, 1);
    REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0, 1}); }));
    const auto held = swarm.node(0).gossip->final_consensus()->certificate_message();
    REQUIRE(held.has_value());
    const auto model = swarm.node(0).result;
    swarm.kill(1);

    swarm.restart(0);
    swarm.serve(0, *held);
    swarm.connect(0, 2);
    swarm.run_for(1s);
    swarm.follow(2);
    const auto asked = swarm.now();

    REQUIRE(swarm.run_until(60s, [&] { return swarm.node(2).may_exit; }));
    CHECK(seconds(swarm.now() - asked) < 5);
    REQUIRE(swarm.node(2).finished.has_value());
    CHECK(swarm.node(2).finished->role == consensus::Role::follower);
    CHECK(swarm.node(2).result == model);
    CHECK(swarm.node(2).gossip->membership().state_of(swarm.node(0).id()) == MemberState::alive);
    CHECK_FALSE(swarm.node(0).training);
    // It holds the model now, and a later joiner may ask it.
    swarm.run_for(5s);
    CHECK(swarm.node(0).gossip->membership().state_of(swarm.node(2).id()) == MemberState::alive);
  }

  TEST_CASE("a replica that was not trained is no end of a run whose budget others have spent") {
    const std::pair<Origin, bool> cases[] = {{Origin::genesis, false},
                                             {Origin::restored, false},
                                             {Origin::restored, true},
                                             {Origin::transferred, true}};
    for (const auto& [origin, trained] : cases) {
      CAPTURE(static_cast<int>(origin));
      CAPTURE(trained);
      VirtualSwarm swarm({.seed = 91, .nodes = 3});
      swarm.restart(2);
      swarm.connect(0, 1);
      REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0, 1}); }));
      swarm.connect(0, 2);  // which tells it what was processed
      swarm.run_for(1s);
      REQUIRE(swarm.node(2).gossip->swarm_samples(swarm.now()) >= 4'000);
      for (const std::size_t gone : {0UL, 1UL}) swarm.kill(gone);

      // What it restores was saved by a process that began at genesis when all was over.
      Beginning beginning{.origin = origin};
      if (origin == Origin::restored) beginning.age = static_cast<double>(beginning.steps = 2);
      if (trained) beginning.age = 250;
      swarm.begin(2, beginning);
      swarm.run_for(5min);

      CHECK(swarm.node(2).finished.has_value() == trained);
      CHECK(swarm.node(2).failed.has_value() != trained);
      CHECK((trained || swarm.node(2).steps <= beginning.steps + 1));
    }
  }

  TEST_CASE("who is restarted from a checkpoint while the others end makes no end of its own") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed);
      VirtualSwarm swarm({.seed = seed});
      swarm.connect_all();
      const auto ends = [&] { return !swarm.node(0).gossip->final_consensus()->idle(); };
      REQUIRE(swarm.run_until(200s, ends));
      const auto saved = swarm.node(3).gossip->membership().progress().saved();
      const std::uint64_t steps = swarm.node(3).steps;

      // It knows nobody until somebody dials it, and the others stand still for a second.
      swarm.restart(3);
      for (const std::size_t other : {0UL, 1UL, 2UL}) swarm.freeze(other);
      swarm.node(3).gossip->membership().progress().merge(swarm.now(), saved);
      swarm.begin(3, {.origin = Origin::restored,
                      .age = static_cast<double>(steps),
                      .steps = steps,
                      .samples = steps * 8});
      swarm.run_for(1s);
      for (const std::size_t other : {0UL, 1UL, 2UL}) swarm.resume(other);
      REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0, 1, 2, 3}); }));

      CHECK(results(swarm, {0, 1, 2, 3}).size() == 1);
      CHECK(swarm.node(0).finished->certificate.participants.size() >= 3);
    }
  }

  TEST_CASE("whose others are gone for good when it is restarted ends by itself, a little later") {
    for (const bool lone : {false, true}) {
      CAPTURE(lone);
      VirtualSwarm swarm({.seed = 5, .nodes = lone ? 1UL : 3UL});
      swarm.connect_all();
      REQUIRE(swarm.run_until(200s, [&] { return all_finished(swarm, {0}); }));
      const auto saved = swarm.node(0).gossip->membership().progress().saved();
      for (std::size_t k = 1; k < swarm.size(); ++k) swarm.kill(k);
      swarm.restart(0);
      swarm.node(0).gossip->membership().progress().merge(swarm.now(), saved);
      const auto begun = swarm.now();
      swarm.begin(0, {.origin = Origin::restored, .age = 500, .steps = 500, .samples = 4'000});
      REQUIRE(swarm.run_until(200s, [&] { return swarm.node(0).may_exit; }));

      const double took = seconds(swarm.now() - begun);
      CHECK((lone ? took < 2 : took > 29));
      CHECK(took < 32);
    }
  }
}
