// Who takes part where the budget ends the run: whoever has spent 98 percent of it, as far as it
// knows.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <optional>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

Finish said_by_liar(Swarm& swarm, std::size_t liar, Role role) {
  Finish finish;
  finish.round = {swarm.options().run, Epoch{1}};
  finish.fingerprint = swarm.options().fingerprint;
  finish.reason = FinishReason::budget;
  finish.role = role;
  sign(finish, *swarm.node(liar).signer, finish.fingerprint);
  return finish;
}

}  // namespace

TEST_SUITE("gossip/consensus/budget") {
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

  TEST_CASE("who does not know yet how much of the budget is spent takes part only once it does") {
    for (const auto& done : {std::optional<std::uint64_t>{}, {900}, {985}}) {
      CAPTURE(done.value_or(0));
      Swarm swarm({.nodes = 3, .seed = 7});
      swarm.connect_all();
      swarm.run(1s);
      swarm.progress(1, 990, 1000);
      // As Gossip does at its start, and again before the set is closed.
      swarm.at(swarm.elapsed() + 100ms, [&] { swarm.standing(2, Role::participant); });
      if (done) swarm.at(swarm.elapsed() + 150ms, [&] { swarm.progress(2, *done, 1000); });

      swarm.progress(0, 1000, 1000);
      swarm.run(120ms);
      CHECK(swarm.node(2).consensus->state().phase == Phase::following);
      swarm.run(15min);

      if (done == 985U)
        check_result(swarm, {0, 1, 2}, {0, 1, 2});
      else
        check_result(swarm, {0, 1, 2}, {0, 1});
    }
  }

  TEST_CASE("in a run without a budget nobody takes part because somebody says it is spent") {
    for (const Role role : {Role::participant, Role::follower}) {
      CAPTURE(static_cast<int>(role));
      Swarm swarm({.nodes = 4, .seed = 8});
      swarm.connect_all();
      swarm.run(1s);
      bool takes_part = false;
      swarm.on_deliver = [&](std::size_t, std::size_t to, const ConsensusMessage& message) {
        const auto* finish = std::get_if<Finish>(&message);
        const bool honest = finish != nullptr && finish->signer != swarm.node(3).id;
        takes_part = takes_part || (honest && finish->role == Role::participant);
        return to != 3;
      };
      // As Gossip does, which tells it once a second.
      for (Duration when = swarm.elapsed(); when < 15min; when += 1s)
        swarm.at(when, [&] {
          for (const std::size_t k : {0U, 1U, 2U}) {
            swarm.progress(k, 500, 0);
            swarm.standing(k, Role::participant);
          }
        });

      for (const std::size_t k : {0U, 1U, 2U}) swarm.inject(k, 3, said_by_liar(swarm, 3, role));
      swarm.run(15min);

      CHECK_FALSE(takes_part);
      for (const std::size_t k : {0U, 1U, 2U}) {
        CAPTURE(k);
        CHECK(swarm.node(k).consensus->idle());
        CHECK_FALSE(swarm.node(k).finished);
      }
    }
  }

  TEST_CASE(
      "nodes that see little of a fast one's work follow it to its end, though they are more") {
    Swarm swarm({.nodes = 3, .seed = 9});
    swarm.connect_all();
    swarm.run(1s);
    for (const std::size_t k : {1U, 2U}) swarm.progress(k, 30, 1000);
    swarm.progress(0, 1000, 1000);
    swarm.run(15min);
    check_result(swarm, {0, 1, 2}, {0});
  }
}

}  // namespace starling::gossip::consensus::testing
