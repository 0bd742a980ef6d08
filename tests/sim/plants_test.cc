#include "tests/sim/plants.h"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>

using namespace starling;
using namespace starling::sim;

TEST_SUITE("sim") {
  TEST_CASE("the simulator finds every planted bug") {
    for (const auto& plant : all_plants()) {
      CAPTURE(plant.name);
      const Catch caught = hunt(plant, std::array{plant.seed}, nullptr);
      CHECK(caught.reached > 0);
      CHECK(caught.seed == plant.seed);
    }
  }

  TEST_CASE("the seeds that find planted bugs find nothing without them") {
    std::set<std::uint64_t> seeds;
    // The suite `sim` runs the first 40.
    for (const auto& plant : all_plants())
      if (plant.seed > 40) seeds.insert(plant.seed);
    for (const auto seed : seeds) {
      CAPTURE(seed);
      World world(draw_plan(seed, {}), nullptr);
      CHECK(world.run().violations.size() == 0);
    }
  }
}
