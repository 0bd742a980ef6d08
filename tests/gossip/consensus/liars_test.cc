// What a participant that lies can do to the others, and what somebody can who has no part.
#include "gossip/consensus/packing.h"
#include "tests/gossip/consensus/signed_certificate.h"
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

namespace {

// What a node that is further says, whether it has ever said that it takes part or not.
Finish claim_epoch(Swarm& swarm, std::size_t node, Epoch epoch) {
  Finish finish;
  finish.round = {swarm.options().run, epoch};
  finish.signer = swarm.node(node).id;
  finish.fingerprint = swarm.options().fingerprint;
  finish.reason = FinishReason::command;
  sign(finish, *swarm.node(node).signer, finish.fingerprint);
  return finish;
}

SharedBytes values_of(float value, std::size_t count) {
  const std::vector<float> values(count, value);
  Bytes bytes(count * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return share(std::move(bytes));
}

// What nobody in the swarm had a part in, signed by all who are said to have had one.
CertificateMessage invented_end(const Swarm& swarm, std::size_t participants, std::uint64_t seed) {
  CertificateMessage message;
  message.manifest = swarm.options().manifest;
  for (std::uint32_t chunk = 0; chunk < ChunkPlan(swarm.options().shape).count(); ++chunk)
    message.chunks.push_back(Hasher().add(seed).add(std::uint64_t{chunk}).finish());
  Certificate& certificate = message.certificate;
  certificate.epoch = Epoch{1};
  certificate.fingerprint = swarm.options().fingerprint;
  certificate.hash = model_hash(message.manifest, message.chunks);
  for (std::size_t k = 0; k < participants; ++k)
    certificate.participants.push_back(node_id(1'000'000 * (seed + 1) + k));
  sign_by_participants(certificate);
  return message;
}

void run_until(Swarm& swarm, std::size_t node, Phase phase) {
  while (swarm.node(node).consensus->state().phase != phase) swarm.run(1ms);
}

// Of five the fifth lied: some of the others noticed, and they ended with one model of them all.
void check_honest_four(Swarm& swarm) {
  std::size_t offences = 0;
  for (const std::size_t k : {0U, 1U, 2U, 3U}) {
    CAPTURE(k);
    offences += swarm.node(k).misbehaved.size();
    REQUIRE(swarm.node(k).finished);
    CHECK(same_bits(swarm.node(k).x, swarm.node(0).x));
    CHECK(swarm.node(k).finished->certificate.participants.size() >= 4);
  }
  CHECK(offences > 0);
}

}  // namespace

TEST_SUITE("gossip/consensus/liars") {
  TEST_CASE("malformed exponents of somebody who has no part cost no epoch") {
    Swarm swarm({.nodes = 5, .seed = 3});
    swarm.connect_all();
    swarm.standing(4, Role::follower);
    swarm.run(1s);
    std::size_t sent = 0;
    swarm.on_deliver = [&](std::size_t, std::size_t to, const ConsensusMessage& message) {
      const auto* exponents = std::get_if<Exponents>(&message);
      if (exponents == nullptr || to == 4) return true;
      for (const auto direction : {Direction::up, Direction::down})
        swarm.inject(to, 4,
                     Exponents{exponents->round, exponents->chunk, direction, share(Bytes(7))});
      ++sent;
      return true;
    };

    swarm.command(0);
    swarm.run(15min);

    CHECK(sent > 0);
    check_result(swarm, all_of(swarm), {0, 1, 2, 3});
    CHECK(epoch_of(swarm, 0) == 1);
  }

  TEST_CASE("batches below zero are blamed on who counted them") {
    Swarm swarm({.nodes = 5, .seed = 3});
    swarm.connect_all();
    swarm.run(1s);
    const ChunkPlan plan(swarm.options().shape);
    std::size_t lies = 0;
    swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
      const auto* sum = std::get_if<Sum>(&message);
      if (from != 4 || sum == nullptr || plan.kind(sum->chunk) != ChunkKind::counters) return true;
      const std::vector<std::int64_t> below(plan.values(sum->chunk), -1'000'000);
      swarm.inject(to, 4, Sum{sum->round, sum->chunk, share(pack(below, 64))});
      ++lies;
      return false;
    };

    swarm.command(0);
    swarm.run(15min);

    REQUIRE(lies > 0);
    check_honest_four(swarm);
    for (const std::size_t k : {0U, 1U, 2U, 3U})
      for (const auto& bad : swarm.node(k).misbehaved) CHECK(bad.peer == swarm.node(4).id);
  }

  TEST_CASE("who never said that it takes part moves nobody to a later epoch") {
    for (const Phase phase : {Phase::collecting, Phase::confirming, Phase::reducing}) {
      for (const bool one_dies : {false, true}) {
        CAPTURE(name_of(phase));
        CAPTURE(one_dies);
        Swarm swarm({.nodes = 6, .seed = 4});
        swarm.connect_all();
        swarm.standing(5, Role::follower);
        swarm.run(1s);
        swarm.command(0);
        for (std::size_t k = 0; k < 5; ++k) run_until(swarm, k, phase);

        for (std::size_t k = 0; k < 5; ++k) swarm.inject(k, 5, claim_epoch(swarm, 5, Epoch{12}));
        if (one_dies) {
          run_until(swarm, 0, Phase::reducing);
          swarm.kill(4);
        }
        swarm.run(15min);

        std::vector<std::size_t> participants{0, 1, 2, 3};
        if (!one_dies) participants.push_back(4);
        check_result(swarm, participants, participants);
        CHECK(epoch_of(swarm, 0) == (one_dies ? 2 : 1));
      }
    }
  }

  TEST_CASE("who was away for several epochs goes on in that of the others") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      // Who is at work does not say again where it is, who still collects does.
      const Phase phase = seed % 2 == 0 ? Phase::collecting : Phase::reducing;
      Swarm swarm({.nodes = 5, .seed = seed});
      swarm.connect(0, 1);
      for (const auto& [a, b] : {std::pair(2U, 3U), {3U, 4U}, {2U, 4U}}) swarm.connect(a, b);
      swarm.run(1s);
      // Neither side comes to its end by itself.
      swarm.on_deliver = [](std::size_t, std::size_t to, const ConsensusMessage& message) {
        return to < 2 ? !std::holds_alternative<Sum>(message)
                      : !std::holds_alternative<ResultChunk>(message);
      };
      swarm.command(0);
      swarm.command(2);
      swarm.at(4s, [&] { swarm.disconnect(2, 4); });
      swarm.at(12s, [&] { swarm.kill(4); });
      while (swarm.node(2).consensus->state().epoch < Epoch{3}) swarm.run(1ms);
      run_until(swarm, 2, phase);
      REQUIRE(swarm.node(0).consensus->state().phase == Phase::reducing);
      REQUIRE(swarm.node(0).consensus->state().epoch == Epoch{1});

      swarm.on_deliver = nullptr;
      swarm.connect(0, 2);
      swarm.run(200ms);
      CHECK(swarm.node(0).consensus->state().epoch >= Epoch{3});
      CHECK(swarm.node(1).consensus->state().epoch >= Epoch{3});
      swarm.run(15min);

      if (phase == Phase::collecting) check_result(swarm, {0, 1, 2, 3}, {0, 1, 2, 3});
      for (std::size_t k = 0; k < 4; ++k) {
        REQUIRE(swarm.node(k).finished);
        CHECK(swarm.node(k).finished->certificate == swarm.node(0).finished->certificate);
      }
    }
  }

  TEST_CASE("who shows one end after the other has few of its signatures verified a second") {
    Swarm swarm({.nodes = 4, .seed = 5});
    swarm.connect_all();
    swarm.run(1s);
    std::vector<CertificateMessage> ends;
    for (std::uint64_t seed = 0; seed < 20; ++seed) ends.push_back(invented_end(swarm, 1000, seed));
    const std::size_t before = swarm.verifier().asked;

    for (int round = 0; round < 50; ++round)
      for (const auto& end : ends) swarm.inject(0, 3, end);
    CHECK(swarm.verifier().asked - before <= 2 * kMaxParticipants);
    // It is no way out to come again.
    swarm.disconnect(0, 3);
    swarm.connect(0, 3);
    swarm.run(1s);
    for (const auto& end : ends) swarm.inject(0, 3, end);
    CHECK(swarm.verifier().asked - before <= 2 * kMaxParticipants + 2000);

    swarm.command(1);
    swarm.run(15min);
    check_result(swarm, all_of(swarm), all_of(swarm));
  }

  TEST_CASE("a participant that invents what the swarm has processed has no say in it") {
    for (const std::size_t nodes : {2U, 4U}) {
      CAPTURE(nodes);
      Swarm swarm({.nodes = nodes, .seed = 5});
      swarm.connect_all();
      for (std::size_t k = 0; k + 1 < nodes; ++k) swarm.progress(k, 1000 + k, 0);
      swarm.progress(nodes - 1, ~std::uint64_t{0}, 0);
      swarm.run(1s);

      swarm.command(0);
      swarm.run(15min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      REQUIRE(swarm.node(0).finished);
      CHECK(swarm.node(0).finished->certificate.samples == 1000 + nodes - 2);
    }
  }

  TEST_CASE("who takes no part refuses no rule") {
    Swarm swarm({.nodes = 5, .seed = 6});
    swarm.connect_all();
    swarm.standing(4, Role::follower);
    swarm.run(1s);
    swarm.command(0);
    run_until(swarm, 0, Phase::reducing);
    Refusal refusal;
    refusal.round = {swarm.options().run, Epoch{1}};
    sign(refusal, *swarm.node(4).signer, swarm.options().fingerprint);

    for (std::size_t k = 0; k < 4; ++k) swarm.inject(k, 4, refusal);
    swarm.kill(3);
    swarm.run(15min);

    check_result(swarm, {0, 1, 2, 4}, {0, 1, 2}, Rule::mean);
    CHECK(epoch_of(swarm, 0) == 2);
  }

  TEST_CASE("a participant that speaks for others in the median is not heard") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      Swarm swarm({.nodes = 5, .seed = seed, .rule = Rule::median});
      swarm.connect_all();
      swarm.run(1s);
      const ChunkPlan plan(swarm.options().shape);
      std::size_t forged = 0;
      swarm.on_deliver = [&](std::size_t from, std::size_t to, const ConsensusMessage& message) {
        const auto* exponents = std::get_if<Exponents>(&message);
        if (to != 4 || exponents == nullptr || exponents->direction != Direction::down) return true;
        const auto values = values_of(12345.0F, plan.values(exponents->chunk));
        for (std::size_t k = 0; k < 4; ++k) {
          if (k == from) continue;
          const auto& origin = swarm.node(k).id;
          swarm.inject(from, 4, Contribution{exponents->round, exponents->chunk, origin, values});
          ++forged;
        }
        return true;
      };

      swarm.command(0);
      swarm.run(15min);

      REQUIRE(forged > 0);
      // It loses its sessions with those to whom it lied, and with the last one its part.
      check_honest_four(swarm);
      for (const std::size_t k : {0U, 1U, 2U, 3U})
        CHECK(std::ranges::none_of(swarm.node(k).x, [](float x) { return x == 12345.0F; }));
    }
  }

  TEST_CASE("a median that half of its participants refuse is nobody's model") {
    for (std::size_t nodes = 2; nodes <= 7; ++nodes) {
      for (std::size_t far = 0; far <= nodes; ++far) {
        CAPTURE(nodes);
        CAPTURE(far);
        if (nodes == 2 && far == 1) continue;  // the middle of two is as far from either
        Swarm swarm({.nodes = nodes, .seed = nodes, .rule = Rule::median});
        swarm.connect_all();
        std::vector<std::size_t> near;
        for (std::size_t k = 0; k < nodes; ++k) {
          auto& node = swarm.node(k);
          // Each one that is far from the others is so on its own, by turns to either side.
          const float side = k % 2 == 0 ? 1000.0F : -1000.0F;
          const float value = k < far ? side * static_cast<float>(k + 1) : 1.0F;
          std::ranges::fill(node.y, value);
          // The liar alone is content with whatever comes out.
          if (k >= far) near.push_back(k);
          node.tensors = {{0, node.y.size(), k < far ? 1.0F : 1e9F}};
        }
        swarm.run(1s);

        swarm.command(0);
        swarm.run(15min);

        CHECK(swarm.idle());
        if (2 * far < nodes) {
          check_result(swarm, all_of(swarm), near, Rule::median);
          continue;
        }
        for (const std::size_t k : all_of(swarm)) {
          CAPTURE(k);
          CHECK_FALSE(swarm.node(k).finished);
          REQUIRE(swarm.node(k).failed);
          CHECK(swarm.node(k).failed->code == Errc::replicas_differ);
        }
      }
    }
  }
}

}  // namespace starling::gossip::consensus::testing
