// finish.by = admin: whose word ends the run, and whose does not.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <optional>
#include <vector>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

// What a member says whose program asks nobody.
Finish said_by_thief(Swarm& swarm, std::size_t thief, FinishReason reason,
                     const std::optional<Signature>& order = std::nullopt, Epoch epoch = Epoch{1}) {
  Finish finish;
  finish.round = {swarm.options().run, epoch};
  finish.fingerprint = swarm.options().fingerprint;
  finish.reason = reason;
  finish.order = order;
  sign(finish, *swarm.node(thief).signer, finish.fingerprint);
  return finish;
}

void tell_all(Swarm& swarm, std::size_t thief, const Finish& finish) {
  for (const std::size_t k : all_of(swarm))
    if (k != thief) swarm.inject(k, thief, finish);
}

void wait_for(Swarm& swarm, std::size_t node, Phase phase) {
  const auto phase_of = [&] { return swarm.node(node).consensus->state().phase; };
  for (int ms = 0; ms < 60'000 && phase_of() != phase; ++ms) swarm.run(1ms);
  REQUIRE(phase_of() == phase);
}

void check_all_train(Swarm& swarm, std::size_t but) {
  for (const std::size_t k : all_of(swarm)) {
    CAPTURE(k);
    if (k != but) CHECK(swarm.node(k).consensus->idle());
    CHECK_FALSE(swarm.node(k).finished);
  }
}

}  // namespace

TEST_SUITE("gossip/consensus/orders") {
  TEST_CASE("where only the admin ends the run, a command without the order does nothing") {
    Swarm swarm({.nodes = 4, .admin = true});
    swarm.connect_ring();
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_all_train(swarm, swarm.size());
  }

  TEST_CASE("with the admin's order given to one member the whole swarm ends") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 6, .seed = seed, .admin = true});
      swarm.connect_ring();  // so that most hear it from somebody who was told of it
      swarm.run(1s);

      swarm.command(2, swarm.order());
      swarm.run(15min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      CHECK(epoch_of(swarm, 0) == 1);
    }
  }

  TEST_CASE("an order that somebody else signed, or for other settings, is none") {
    Swarm swarm({.nodes = 4, .admin = true});
    swarm.connect_all();
    swarm.run(1s);
    const std::vector<Signature> wrong{
        swarm.order(swarm.options().fingerprint, *swarm.node(3).signer),
        swarm.order(hash_of(as_bytes("other settings")), Swarm::admin()), Signature{}};

    for (const auto& order : wrong) {
      swarm.command(0, order);
      tell_all(swarm, 3, said_by_thief(swarm, 3, FinishReason::command, order));
    }
    swarm.run(15min);

    check_all_train(swarm, swarm.size());
    for (const std::size_t k : all_of(swarm)) CHECK(swarm.node(k).misbehaved.empty());
  }

  TEST_CASE("a member that says without the order that the run ends is not even passed on") {
    Swarm swarm({.nodes = 4, .admin = true});
    swarm.connect_all();
    swarm.run(1s);
    std::size_t passed_on = 0;
    swarm.on_deliver = [&](std::size_t, std::size_t, const ConsensusMessage&) {
      ++passed_on;
      return true;
    };

    tell_all(swarm, 3, said_by_thief(swarm, 3, FinishReason::command));
    swarm.run(15min);

    CHECK(passed_on == 0);
    check_all_train(swarm, swarm.size());
    // Nor does it stand in the way of the admin, even if it went meanwhile.
    swarm.on_deliver = nullptr;
    swarm.kill(3);
    for (const std::size_t k : {0U, 1U, 2U}) swarm.presence(k, 3, Presence::gone);
    swarm.command(0, swarm.order());
    swarm.run(15min);
    check_result(swarm, {0, 1, 2}, {0, 1, 2});
    CHECK(epoch_of(swarm, 0) == 1);
  }

  TEST_CASE("a member that says too early that the budget is spent ends nobody's run") {
    Swarm swarm({.nodes = 4, .admin = true});
    swarm.connect_all();
    for (const std::size_t k : {0U, 1U, 2U}) swarm.progress(k, 500, 1000);
    swarm.run(1s);

    swarm.progress(3, 1000, 1000);
    swarm.run(4s);

    check_all_train(swarm, 3);
    // It has made an end of its own by then, which the others outnumber.
    swarm.run(15min);
    for (const std::size_t k : {0U, 1U, 2U}) {
      CHECK(swarm.node(k).consensus->idle());
      CHECK(swarm.node(k).not_taken.size() == 1);
    }
    swarm.command(0, swarm.order());
    swarm.run(15min);
    check_result(swarm, {0, 1, 2}, {0, 1, 2});
  }

  TEST_CASE("who named a late epoch before it was shut out takes nobody there") {
    Swarm swarm({.nodes = 4, .admin = true});
    swarm.connect_all();
    swarm.run(1s);
    for (const Epoch epoch : {Epoch{1}, Epoch{12}})
      tell_all(swarm, 3, said_by_thief(swarm, 3, FinishReason::budget, std::nullopt, epoch));
    swarm.run(1s);
    check_all_train(swarm, swarm.size());

    swarm.kill(3);
    for (const std::size_t k : {0U, 1U, 2U}) swarm.presence(k, 3, Presence::gone);
    swarm.command(0, swarm.order());
    swarm.run(1min);

    check_result(swarm, {0, 1, 2}, {0, 1, 2});
    CHECK(epoch_of(swarm, 0) <= 2);
  }

  TEST_CASE("what was said of the budget counts as soon as it is as good as spent here") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed, .admin = true});
      swarm.connect_ring();
      for (const std::size_t k : all_of(swarm)) swarm.progress(k, 970, 1000);
      swarm.run(1s);

      swarm.progress(0, 1000, 1000);
      swarm.run(2s);
      check_all_train(swarm, 0);
      for (const std::size_t k : {1U, 2U, 3U, 4U}) swarm.progress(k, 985, 1000);
      swarm.run(15min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      CHECK(epoch_of(swarm, 0) == 1);
    }
  }

  TEST_CASE("whoever joined at the order shows it in later epochs, too") {
    Swarm swarm({.nodes = 5, .seed = 3, .admin = true});
    swarm.connect_all();
    swarm.run(1s);
    std::size_t later = 0;
    swarm.on_deliver = [&](std::size_t, std::size_t, const ConsensusMessage& message) {
      const auto* finish = std::get_if<Finish>(&message);
      if (finish == nullptr) return true;
      CHECK(finish->order == std::optional(swarm.order()));
      if (finish->round.epoch > Epoch{1}) ++later;
      return true;
    };

    swarm.command(0, swarm.order());
    wait_for(swarm, 1, Phase::confirming);
    swarm.kill(4);
    for (const std::size_t k : {0U, 1U, 2U, 3U}) swarm.presence(k, 4, Presence::gone);
    swarm.run(15min);

    CHECK(later > 0);
    check_result(swarm, {0, 1, 2, 3}, {0, 1, 2, 3});
  }

  TEST_CASE("the order outlasts a run that came to nothing") {
    // Node 0 has the order and node 1 follows it; then 0 dies, and 1 gives the run up.
    Swarm swarm({.nodes = 3, .seed = 5, .admin = true});
    swarm.connect(0, 1);
    swarm.standing(1, Role::follower);
    swarm.run(1s);
    swarm.command(0, swarm.order());
    wait_for(swarm, 1, Phase::following);
    swarm.kill(0);
    swarm.presence(1, 0, Presence::gone);
    swarm.run(10min);
    REQUIRE(swarm.node(1).consensus->idle());
    CHECK_FALSE(swarm.node(1).finished);

    // It knows what the admin wants, and tells whoever knows nothing of it.
    swarm.connect(1, 2);
    swarm.standing(1, Role::participant);
    swarm.run(1s);
    swarm.command(1);
    swarm.run(15min);

    check_result(swarm, {1, 2}, {1, 2});
  }

  TEST_CASE("a node without a replica needs no order to ask for the certified model") {
    Swarm swarm({.nodes = 4, .seed = 2, .newcomer = 3, .admin = true});
    for (std::size_t a = 0; a < 3; ++a)
      for (std::size_t b = 0; b < a; ++b) swarm.connect(a, b);
    swarm.run(1s);

    SUBCASE("after the end") {
      swarm.command(0, swarm.order());
      swarm.run(5s);
      for (const std::size_t k : {0U, 1U, 2U}) REQUIRE(swarm.node(k).finished);
      for (const std::size_t k : {0U, 1U, 2U}) swarm.connect(3, k);
      swarm.command(3);
    }
    SUBCASE("before it, without ending anybody's run") {
      for (const std::size_t k : {0U, 1U, 2U}) swarm.connect(3, k);
      swarm.run(1s);
      swarm.command(3);
      swarm.run(1min);
      CHECK(swarm.node(3).consensus->state().phase == Phase::following);
      for (const std::size_t k : {0U, 1U, 2U}) CHECK(swarm.node(k).consensus->idle());
      swarm.command(0, swarm.order());
    }
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 2});
  }

  TEST_CASE("a merge needs no order") {
    Swarm swarm({.nodes = 3, .seed = 4, .kind = RunKind::merge, .admin = true});
    swarm.connect_all();
    swarm.run(1s);
    for (const std::size_t k : all_of(swarm)) swarm.command(k);
    swarm.run(1min);
    for (const std::size_t k : all_of(swarm)) CHECK(swarm.node(k).merged);
  }

  TEST_CASE("the orders of another admin count once this node knows it") {
    Swarm swarm({.nodes = 2, .seed = 6, .admin = true});
    swarm.connect_all();
    swarm.run(1s);
    const FakeSigner next(node_id(1'000'001));
    const Signature order = swarm.order(swarm.options().fingerprint, next);

    swarm.command(0, order);
    swarm.run(1s);
    check_all_train(swarm, swarm.size());
    for (const std::size_t k : {0U, 1U}) swarm.node(k).consensus->set_admin(next.id());
    swarm.command(0, order);
    swarm.run(15min);

    check_result(swarm, {0, 1}, {0, 1});
  }
}

}  // namespace starling::gossip::consensus::testing
