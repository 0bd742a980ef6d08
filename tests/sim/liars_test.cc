#include "tests/sim/liars.h"

#include <doctest/doctest.h>

namespace starling::sim {

using gossip::Aggregator;

TEST_SUITE("sim/liars") {
  TEST_CASE("with clipping, a median or a trimmed mean one liar of four costs next to nothing") {
    const double clean = run_with_liar(1, Aggregator::mean, std::nullopt).distance;
    for (const Lie lie : {Lie::sign_flip, Lie::random, Lie::little, Lie::huge})
      for (const Aggregator rule : {Aggregator::clip, Aggregator::median, Aggregator::trimmed}) {
        CAPTURE(name_of(lie));
        CAPTURE(name_of(rule));
        const Harm harm = run_with_liar(1, rule, lie);
        CHECK(harm.finite);
        // The plain mean ends 20 times as far away and more, which the next case shows.
        CHECK(harm.distance < 2.5 * clean);
        CHECK(harm.disagreement < 0.01);
      }
  }

  TEST_CASE("a liar that is the first to speak gets nowhere either") {
    const double clean = run_with_liar(1, Aggregator::mean, std::nullopt).distance;
    for (std::uint64_t seed = 2; seed <= 6; ++seed) {
      CAPTURE(seed);
      CHECK(run_with_liar(seed, Aggregator::clip, Lie::huge).distance < 2.5 * clean);
    }
  }

  TEST_CASE("the plain mean follows whoever shouts, and stays finite") {
    const double clean = run_with_liar(1, Aggregator::mean, std::nullopt).distance;
    for (const Lie lie : {Lie::sign_flip, Lie::huge}) {
      CAPTURE(name_of(lie));
      const Harm harm = run_with_liar(1, Aggregator::mean, lie);
      CHECK(harm.finite);
      CHECK(harm.distance > 10 * clean);
    }
  }

  TEST_CASE("rules against liars cost honest swarms little") {
    const Harm clean = run_with_liar(1, Aggregator::mean, std::nullopt);
    for (const Aggregator rule : {Aggregator::clip, Aggregator::median, Aggregator::trimmed}) {
      CAPTURE(name_of(rule));
      const Harm harm = run_with_liar(1, rule, std::nullopt);
      CHECK(harm.distance < 1.5 * clean.distance);
      CHECK(harm.disagreement < 1.5 * clean.disagreement);
    }
  }
}

}  // namespace starling::sim
