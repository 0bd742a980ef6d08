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
}

}  // namespace starling::gossip::consensus::testing
