#include "tests/liars/quadratic_liars.h"

#include <doctest/doctest.h>

namespace starling::liars {

using gossip::Aggregator;

TEST_SUITE("liars/quadratic") {
  TEST_CASE("with clipping, a median or a trimmed mean one liar of four costs next to nothing") {
    const double clean = run_on_quadratic(1, Aggregator::mean, std::nullopt).optimum;
    for (const Lie lie : {Lie::sign_flip, Lie::random, Lie::little, Lie::dissensus, Lie::huge})
      for (const Aggregator rule : {Aggregator::clip, Aggregator::median, Aggregator::trimmed}) {
        CAPTURE(name_of(lie));
        CAPTURE(name_of(rule));
        const Distances harm = run_on_quadratic(1, rule, lie);
        CHECK(harm.finite);
        // The plain mean ends 20 times as far away and more, which the next case shows.
        CHECK(harm.optimum < 2.5 * clean);
        CHECK(harm.each_other < 0.01);
      }
  }

  TEST_CASE("a liar that is the first to speak gets nowhere either") {
    const double clean = run_on_quadratic(1, Aggregator::mean, std::nullopt).optimum;
    for (std::uint64_t seed = 2; seed <= 6; ++seed) {
      CAPTURE(seed);
      CHECK(run_on_quadratic(seed, Aggregator::clip, Lie::huge).optimum < 2.5 * clean);
    }
  }

  TEST_CASE("the plain mean follows whoever shouts, and stays finite") {
    const double clean = run_on_quadratic(1, Aggregator::mean, std::nullopt).optimum;
    for (const Lie lie : {Lie::sign_flip, Lie::huge}) {
      CAPTURE(name_of(lie));
      const Distances harm = run_on_quadratic(1, Aggregator::mean, lie);
      CHECK(harm.finite);
      CHECK(harm.optimum > 10 * clean);
    }
  }

  TEST_CASE("rules against liars cost honest swarms little") {
    const Distances clean = run_on_quadratic(1, Aggregator::mean, std::nullopt);
    for (const Aggregator rule : {Aggregator::clip, Aggregator::median, Aggregator::trimmed}) {
      CAPTURE(name_of(rule));
      const Distances harm = run_on_quadratic(1, rule, std::nullopt);
      CHECK(harm.optimum < 1.5 * clean.optimum);
      CHECK(harm.each_other < 1.5 * clean.each_other);
    }
  }
}

}  // namespace starling::liars
