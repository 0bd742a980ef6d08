#include "tests/sim/crowd.h"

#include "tests/sim/graph.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

using namespace starling;
using namespace starling::sim;
using namespace std::chrono_literals;

namespace {

CrowdFigures run(std::size_t nodes, std::size_t whole) {
  CrowdOptions options;
  options.nodes = nodes;
  options.whole = whole;
  // The first report of each member is asked for; what is counted comes after two of them.
  options.settle = 25s;
  options.measure = 10s;
  options.joins = 5;
  return Crowd(options).run();
}

Graph ring(std::uint32_t n) {
  Graph graph(n);
  for (std::uint32_t i = 0; i < n; ++i) graph[i] = {(i + 1) % n, (i + n - 1) % n};
  return graph;
}

}  // namespace

TEST_SUITE("sim/crowd") {
  TEST_CASE("what membership costs does not grow with the swarm, and news reaches everybody") {
    const CrowdFigures small = run(70, 70);
    const CrowdFigures large = run(700, 70);
    for (const auto* figures : {&small, &large}) {
      CAPTURE(figures->nodes);
      CHECK(figures->missed == 0);
      CHECK(figures->accused == 0);
      CHECK(figures->known_p95 > 0);
      CHECK(figures->known_p95 < 1);
    }
    CHECK(large.whole_rate.messages < 1.1 * small.whole_rate.messages);
    CHECK(large.whole_rate.bytes < 1.3 * small.whole_rate.bytes);
  }

  TEST_CASE("news and reports come once to everybody, by short ways") {
    const CrowdFigures figures = run(100, 100);
    CHECK(figures.missed == 0);
    CHECK(figures.last_hop < 15);
    CHECK(figures.news_redundancy < 0.2);
    CHECK(figures.report_redundancy < 0.2);
  }

  TEST_CASE("members that announce and deliver nothing keep no news from the others") {
    CrowdOptions options;
    options.nodes = 100;
    options.whole = 30;
    options.settle = 12s;
    options.measure = 3s;
    options.joins = 4;
    options.mute_every = 8;
    const CrowdFigures figures = Crowd(options).run();
    CHECK(figures.missed == 0);
    CHECK(figures.accused == 0);
    // The last ones hear of it when views are compared, every 30 to 33 s.
    CHECK(figures.known_p95 < 35);
  }

  TEST_CASE("relays pass on what whole members would") {
    const CrowdFigures whole = run(120, 120);
    const CrowdFigures mixed = run(120, 12);
    CHECK(mixed.whole_rate.messages == doctest::Approx(whole.whole_rate.messages).epsilon(0.05));
    CHECK(mixed.relay_messages == doctest::Approx(whole.whole_rate.messages).epsilon(0.05));
    CHECK(mixed.whole_rate.bytes == doctest::Approx(whole.whole_rate.bytes).epsilon(0.1));
    CHECK(mixed.report_redundancy == doctest::Approx(whole.report_redundancy).epsilon(0.1));
  }

  TEST_CASE("the figures of a graph are those of graphs that are known") {
    CHECK(diameter(ring(20)) == 10);
    // The second eigenvalue of a ring is cos(2 pi / n).
    CHECK(second_eigenvalue(ring(20)) ==
          doctest::Approx(std::cos(2 * std::numbers::pi / 20)).epsilon(0.001));
    Graph complete(6);
    for (std::uint32_t i = 0; i < 6; ++i)
      for (std::uint32_t j = 0; j < 6; ++j)
        if (i != j) complete[i].push_back(j);
    CHECK(diameter(complete) == 1);
    CHECK(second_eigenvalue(complete) == doctest::Approx(-0.2).epsilon(0.001));
    Graph apart(4);
    apart[0] = {1};
    apart[1] = {0};
    apart[2] = {3};
    apart[3] = {2};
    CHECK(diameter(apart) == std::numeric_limits<std::size_t>::max());
    CHECK(second_eigenvalue(apart) == doctest::Approx(1));
  }
}
