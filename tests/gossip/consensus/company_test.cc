// Nodes that are alone for a moment when the run ends, and are no lone nodes.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

void all_spend_budget(Swarm& swarm, Duration until) {
  for (Duration when = swarm.elapsed(); when < until; when += 200ms)
    swarm.at(when, [&swarm] {
      for (std::size_t k = 0; k < swarm.size(); ++k) swarm.progress(k, 100, 100);
    });
}

// Nobody's replica alone is the result, and there is one.
void check_company(Swarm& swarm, std::size_t least) {
  for (const std::size_t k : all_of(swarm)) {
    CAPTURE(k);
    REQUIRE(swarm.node(k).finished);
    CHECK(swarm.node(k).finished->certificate.hash == swarm.node(0).finished->certificate.hash);
    CHECK(swarm.node(k).finished->certificate.participants.size() >= least);
  }
}

// The one that was restarted has a line again, and membership hears of everybody over it.
void come_back(Swarm& swarm, std::size_t node) {
  for (std::size_t k = 0; k < swarm.size(); ++k) {
    if (k == node) continue;
    swarm.connect(node, k);
    swarm.presence(node, k, Presence::trains);
  }
}

}  // namespace

TEST_SUITE("gossip/consensus/company") {
  TEST_CASE("who is restarted while the others end certifies nothing alone, whenever it is back") {
    for (const Phase phase : {Phase::collecting, Phase::reducing, Phase::certifying})
      for (const Duration away : {400ms, 1000ms, 3000ms, 6000ms, 12000ms, 25000ms}) {
        CAPTURE(name_of(phase));
        CAPTURE(seconds(away));
        Swarm swarm({.nodes = 4, .seed = 6, .longest_job = 400ms});
        swarm.connect_all();
        swarm.run(1s);
        all_spend_budget(swarm, 2min);
        const auto is_there = [&](std::size_t k) {
          return swarm.node(k).consensus->state().phase == phase;
        };
        while (std::ranges::none_of(all_of(swarm), is_there)) swarm.run(1ms);

        swarm.restart_from_checkpoint(3);
        swarm.at(swarm.elapsed() + away, [&] { come_back(swarm, 3); });
        swarm.run(10min);

        check_company(swarm, 3);
        CHECK(swarm.node(3).awaiting.size() == 1);
      }
  }

  TEST_CASE("who is restarted and told to finish before it has company waits for it, too") {
    Swarm swarm({.nodes = 4, .seed = 7});
    swarm.connect_all();
    swarm.run(1s);
    swarm.restart_from_checkpoint(3);
    swarm.run(1s);
    swarm.command(3);
    swarm.run(2s);
    CHECK(swarm.node(3).consensus->idle());

    come_back(swarm, 3);
    swarm.run(10min);

    check_result(swarm, all_of(swarm), all_of(swarm));
  }

  TEST_CASE("all that are restarted at once end together") {
    Swarm swarm({.nodes = 4, .seed = 8});
    swarm.run(1s);
    for (const std::size_t k : all_of(swarm)) swarm.restart_from_checkpoint(k);
    all_spend_budget(swarm, 2min);
    swarm.run(10s);
    for (const std::size_t k : all_of(swarm)) come_back(swarm, k);
    swarm.run(10min);

    check_result(swarm, all_of(swarm), all_of(swarm));
  }

  TEST_CASE("whose company is gone ends alone after linger, and says for whom it waits") {
    for (const bool ordered : {false, true}) {
      CAPTURE(ordered);
      Swarm swarm({.nodes = 4, .seed = 9});
      for (const std::size_t k : {0U, 1U, 2U}) swarm.kill(k);
      swarm.restart_from_checkpoint(3);
      swarm.run(1s);
      if (ordered) swarm.command(3);
      if (!ordered) all_spend_budget(swarm, 2min);
      swarm.run(10min);

      check_result(swarm, {3}, {3});
      const Duration ended = swarm.node(3).finished_at - TimePoint{};
      CHECK(ended > swarm.options().linger);
      CHECK(ended < swarm.options().linger + 5s);
      REQUIRE(swarm.node(3).awaiting.size() == 1);
      CHECK(swarm.node(3).awaiting.front().members == 3);
      CHECK(swarm.node(3).awaiting.front().longest > swarm.options().linger - 2s);
      CHECK(swarm.idle());
    }
  }

  TEST_CASE("whose company is gone for long, or has left, ends at once") {
    for (const bool left : {false, true}) {
      CAPTURE(left);
      Swarm swarm({.nodes = 3, .seed = 10});
      for (const std::size_t k : {0U, 1U}) swarm.kill(k);
      swarm.restart_from_checkpoint(2);
      if (!left) swarm.run(1min);
      for (const std::size_t k : {0U, 1U})
        if (left) swarm.presence(2, k, Presence::gone);
      const TimePoint spent = swarm.now();
      swarm.progress(2, 100, 100);
      swarm.run(10min);

      check_result(swarm, {2}, {2});
      CHECK(swarm.node(2).finished_at < spent + 1s);
      CHECK(swarm.node(2).awaiting.empty());
    }
  }

  TEST_CASE("who was always alone ends at once") {
    Swarm swarm({.nodes = 1, .seed = 11});
    swarm.restart_from_checkpoint(0);
    swarm.progress(0, 100, 100);
    swarm.run(10min);

    check_result(swarm, {0}, {0});
    CHECK(swarm.node(0).finished_at < TimePoint{} + 1s);
    CHECK(swarm.node(0).awaiting.empty());
  }

  TEST_CASE("a line that is gone for a moment when the budget is spent parts nobody") {
    for (const std::size_t cut : {1U, 2U})
      for (const Duration away : {500ms, 1000ms, 3000ms}) {
        CAPTURE(cut);
        CAPTURE(seconds(away));
        Swarm swarm({.nodes = 4, .seed = 12});
        swarm.connect_all();
        swarm.can_dial = [](std::size_t, std::size_t) { return false; };
        swarm.run(1s);
        for (std::size_t here = 0; here < cut; ++here)
          for (std::size_t there = cut; there < 4; ++there) swarm.disconnect(here, there);
        swarm.run(100ms);
        all_spend_budget(swarm, 2min);
        swarm.at(1s + away, [&] { swarm.connect_all(); });
        swarm.run(10min);

        check_result(swarm, all_of(swarm), all_of(swarm));
      }
  }

  TEST_CASE("who is dead, says membership, is waited for by nobody") {
    Swarm swarm({.nodes = 3, .seed = 13});
    swarm.connect_all();
    swarm.run(1s);
    swarm.kill(2);
    for (const std::size_t k : {0U, 1U}) swarm.presence(k, 2, Presence::gone);
    const TimePoint spent = swarm.now();
    for (const std::size_t k : {0U, 1U}) swarm.progress(k, 100, 100);
    swarm.run(10min);

    check_result(swarm, {0, 1}, {0, 1});
    CHECK(swarm.node(0).finished_at < spent + 2s);
  }
}

}  // namespace starling::gossip::consensus::testing
