#include "tests/sim/eclipse.h"

#include <doctest/doctest.h>

namespace starling::sim {

TEST_SUITE("sim/eclipse") {
  TEST_CASE("four hundred Sybils of four networks leave every node two honest neighbours") {
    const auto outcome = run_eclipse({.seed = 1, .length = std::chrono::minutes(12)});
    CHECK(outcome.samples > 11'000);
    CHECK(outcome.share() >= 0.99);
    CHECK(outcome.least >= 2);
  }

  TEST_CASE("Sybils that invent addresses in other networks gain nothing") {
    const auto outcome =
        run_eclipse({.seed = 3, .length = std::chrono::minutes(11), .invented = true});
    CHECK(outcome.share() >= 0.99);
  }

  TEST_CASE("neighbours that follow from names alone would be Sybils nearly all") {
    const auto outcome =
        run_eclipse({.seed = 1, .length = std::chrono::minutes(5), .strangers = false});
    CHECK(outcome.share() < 0.5);
  }
}

}  // namespace starling::sim
