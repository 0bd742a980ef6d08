#include "node/base/random.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>

using namespace starling;

TEST_SUITE("base/random") {
  // Genesis and every simulation depend on these numbers being the same on every machine and for
  // ever.
  TEST_CASE("a seed gives the same numbers everywhere") {
    Rng rng(1);

    CHECK(rng() == 12966619160104079557ULL);
    CHECK(rng() == 9600361134598540522ULL);
  }

  TEST_CASE("below() is uniform and never reaches its bound") {
    Rng rng(7);
    std::array<int, 10> counts{};

    for (int i = 0; i < 100'000; ++i) ++counts[rng.below(10)];

    // Standard deviation of one count is 95; six of them is a chance of 2e-9.
    for (const int count : counts) CHECK(std::abs(count - 10'000) < 570);
    CHECK(rng.below(0) == 0);
    CHECK(rng.below(1) == 0);
  }

  TEST_CASE("unit() stays in [0, 1)") {
    Rng rng(3);
    for (int i = 0; i < 10'000; ++i) {
      const double u = rng.unit();
      CHECK(u >= 0);
      CHECK(u < 1);
    }
  }
}
