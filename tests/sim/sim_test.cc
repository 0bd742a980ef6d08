#include "tests/sim/world.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::sim;
using namespace std::chrono_literals;

namespace {

Outcome run(std::uint64_t seed, const PlanLimits& limits) {
  World world(draw_plan(seed, limits), nullptr);
  return world.run();
}

std::string what_went_wrong(const Outcome& outcome) {
  std::string text;
  for (const auto& violation : outcome.violations) text += violation.what + "\n";
  if (text.empty()) return text;
  return text + "replay: tests/sim/run --seeds 1 --first " + std::to_string(outcome.seed) +
         " --trace";
}

}  // namespace

TEST_SUITE("sim") {
  TEST_CASE("swarms keep every promise under every kind of fault, and end in one model") {
    Tally sum;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(seed);
      const Outcome outcome = run(seed, {});
      CHECK(what_went_wrong(outcome) == "");
      sum.exchanges += outcome.tally.exchanges;
      sum.pairs_compared += outcome.tally.pairs_compared;
      sum.references_compared += outcome.tally.references_compared;
      sum.deaths += outcome.tally.deaths;
      sum.finished += outcome.tally.finished;
    }
    // The checkers had something to check.
    CHECK(sum.pairs_compared > 1'000);
    CHECK(sum.references_compared > 1'000);
    CHECK(sum.deaths > 100);
    CHECK(sum.finished > 200);
  }

  TEST_CASE("what one seed in a thousand found is found no more") {
    // Left behind frozen by those who went on; gone and held for alive; the only holder without
    // power; newcomers alone; a certificate of one.
    for (const std::uint64_t seed : {127U, 3'701U, 5'313U, 30'599U, 40'330U}) {
      CAPTURE(seed);
      CHECK(what_went_wrong(run(seed, {})) == "");
    }
  }

  TEST_CASE("one seed is one run, event for event") {
    for (const std::uint64_t seed : {3U, 8U}) {
      CAPTURE(seed);
      const Outcome once = run(seed, {.nodes = 8, .safety = 20s});
      const Outcome again = run(seed, {.nodes = 8, .safety = 20s});
      CHECK(once.trace == again.trace);
      CHECK(once.events == again.events);
      CHECK(run(seed + 1, {.nodes = 8, .safety = 20s}).trace != once.trace);
    }
  }

  TEST_CASE("without faults nobody is accused and nothing is torn, reset or refused") {
    for (std::uint64_t seed = 101; seed <= 106; ++seed) {
      CAPTURE(seed);
      const Outcome outcome = run(seed, {.calm = true});
      CHECK(what_went_wrong(outcome) == "");
      CHECK(outcome.tally.deaths == 0);
      CHECK(outcome.tally.torn == 0);
      CHECK(outcome.tally.resets == 0);
      CHECK(outcome.tally.failed == 0);
      CHECK(outcome.tally.finished == outcome.machines);
    }
  }
}
