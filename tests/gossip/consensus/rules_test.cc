// Which rule makes one model of all contributions, and what one participant can do to it.
#include "tests/gossip/consensus/swarm_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

namespace starling::gossip::consensus::testing {

using namespace std::chrono_literals;

TEST_SUITE("gossip/consensus/rules") {
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

  TEST_CASE("a rule that was asked for holds from the first epoch on") {
    for (const Rule rule : {Rule::median, Rule::trimmed})
      for (const std::size_t nodes : {2U, 5U, 8U}) {
        CAPTURE(nodes);
        Swarm swarm({.nodes = nodes, .seed = 15, .rule = rule});
        swarm.connect_randomly(3);
        swarm.run(1s);

        swarm.command(0);
        swarm.run(15min);

        check_result(swarm, all_of(swarm), all_of(swarm), rule);
        CHECK(epoch_of(swarm, 0) == 1);
      }
  }

  TEST_CASE("one participant's huge values wash out neither the median nor the trimmed mean") {
    for (const Rule rule : {Rule::median, Rule::trimmed}) {
      Swarm swarm({.nodes = 5, .seed = 16, .rule = rule});
      swarm.connect_all();
      for (std::size_t k = 0; k < 5; ++k) {
        auto& node = swarm.node(k);
        Rng rng(k + 1);
        for (auto& y : node.y) y = k == 4 ? 1e38F : 1.0F + static_cast<float>(rng.unit()) * 0.01F;
        for (auto& m : node.mean) m = k == 4 ? -1e18F : 0.5F;  // its square is finite
        node.tensors.clear();
        if (k != 4) node.tensors = {{0, node.y.size(), 1.0F}};
      }
      swarm.run(1s);

      swarm.command(0);
      swarm.run(15min);

      for (std::size_t k = 0; k < 5; ++k) {
        CAPTURE(k);
        REQUIRE(swarm.node(k).finished.has_value());
        CHECK(swarm.node(k).finished->certificate.participants.size() == 5);
        CHECK(swarm.node(k).x == swarm.node(0).x);
        const auto& node = swarm.node(k);
        CHECK(std::ranges::all_of(node.x, [](float x) { return x >= 1.0F && x <= 1.01F; }));
        CHECK(std::ranges::all_of(node.result_mean, [](float m) { return m == 0.5F; }));
      }
    }
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

  TEST_CASE("a participant that states a weight of its own is left out of the mean") {
    Swarm swarm({.nodes = 5, .seed = 17, .heavy = 4});
    swarm.connect_all();
    swarm.run(1s);

    swarm.command(0);
    swarm.run(15min);

    check_result(swarm, all_of(swarm), {0, 1, 2, 3});
  }

  TEST_CASE("BatchNorm statistics that one replica spoils are refused and the median stands") {
    struct Lie {
      float mean, variance;
      bool leaves = false;  // even the median is not near its own replica
    };
    for (const Lie lie : {Lie{1e6F, 1.0F}, Lie{0.5F, -1e6F}, Lie{0.5F, -5.5F},
                          Lie{1e21F, 1.0F, true}, Lie{-3e38F, 1.0F, true}}) {
      CAPTURE(lie.mean);
      CAPTURE(lie.variance);
      Swarm swarm({.nodes = 6, .seed = 18});
      swarm.connect_all();
      for (std::size_t k = 0; k < 6; ++k) {
        auto& node = swarm.node(k);
        Rng rng(k + 1);
        for (auto& m : node.mean) m = k == 5 ? lie.mean : static_cast<float>(rng.unit());
        for (auto& v : node.variance)
          v = k == 5 ? lie.variance : 1.0F + static_cast<float>(rng.unit()) * 0.01F;
      }
      swarm.run(1s);

      swarm.command(0);
      swarm.run(15min);

      const std::vector<std::size_t> honest{0, 1, 2, 3, 4};
      check_result(swarm, all_of(swarm), lie.leaves ? honest : all_of(swarm), Rule::median);
      CHECK(epoch_of(swarm, 0) == (lie.leaves ? 3 : 2));
      for (const float m : swarm.node(0).result_mean) CHECK((m >= 0.0F && m <= 1.0F));
      for (const float v : swarm.node(0).result_variance) CHECK((v >= 1.0F && v < 2.5F));
    }
  }

  TEST_CASE("BatchNorm statistics of fresh, trained and dead channels agree on the mean") {
    struct Channel {
      float mean, variance;
    };
    const std::vector<Channel> seen{{0.0F, 1.0F},    // as initialised
                                    {5.0F, 0.01F},   // trained, far from where it began
                                    {0.0F, 0.0F},    // dead here
                                    {-9.0F, 60.0F},  // trained at a high rate
                                    {1e-9F, 1e-20F}};
    for (std::size_t turn = 0; turn < seen.size(); ++turn) {
      CAPTURE(turn);
      Swarm swarm({.nodes = 6, .seed = 19});
      swarm.connect_all();
      for (std::size_t k = 0; k < 6; ++k) {
        auto& node = swarm.node(k);
        for (std::size_t c = 0; c < node.mean.size(); ++c) {
          // One node alone has seen something else than all others.
          const auto& own = seen[k == 0 ? turn : (c % seen.size())];
          node.mean[c] = own.mean;
          node.variance[c] = own.variance;
        }
      }
      swarm.run(1s);

      swarm.command(0);
      swarm.run(15min);

      check_result(swarm, all_of(swarm), all_of(swarm));
      CHECK(epoch_of(swarm, 0) == 1);
    }
  }

  TEST_CASE("a node whose statistics are not finite withdraws and the others take the mean") {
    for (const bool of_variance : {false, true}) {
      CAPTURE(of_variance);
      Swarm swarm({.nodes = 4, .seed = 20});
      swarm.connect_all();
      auto& broken = swarm.node(2);
      (of_variance ? broken.variance : broken.mean)[3] = std::numeric_limits<float>::quiet_NaN();
      swarm.run(1s);

      swarm.command(0);
      swarm.run(15min);

      check_result(swarm, all_of(swarm), {0, 1, 3});
      CHECK(epoch_of(swarm, 0) == 2);
    }
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

  TEST_CASE("statements of a run with other settings are no offence of whoever passes them on") {
    Swarm swarm({.nodes = 2});
    swarm.command(0);
    swarm.run(10min);
    REQUIRE(swarm.node(0).finished.has_value());
    const FakeSigner& signer = *swarm.node(1).signer;
    const Hash other = hash_of(as_bytes("other settings"));
    Finish finish;
    finish.round = {{}, {1}};
    finish.signer = signer.id();
    finish.fingerprint = other;
    Acknowledge word{.round = finish.round, .signer = signer.id(), .hash = other, .signature = {}};
    sign(finish, signer, other);
    sign(word, signer, other);

    swarm.inject(0, 1, finish);
    swarm.inject(0, 1, word);
    CHECK(swarm.node(0).misbehaved.empty());

    finish.fingerprint = swarm.options().fingerprint;  // it has adopted the settings of this run
    sign(finish, signer, finish.fingerprint);
    swarm.inject(0, 1, finish);
    swarm.inject(0, 1, word);
    CHECK(swarm.node(0).misbehaved.size() == 1);
  }
}

}  // namespace starling::gossip::consensus::testing
