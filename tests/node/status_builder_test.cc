#include "node/status_builder.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

TEST_SUITE("node/status_builder") {
  TEST_CASE("who trains and has ended no step yet waits for one since training began") {
    constexpr TimePoint kBegan = TimePoint{} + 1h;
    NodeFigures figures;
    CHECK_FALSE(since_step_s(kBegan, figures).has_value());  // joins, however long that takes
    figures.training_began = kBegan;
    CHECK(since_step_s(kBegan + 11min, figures) == 660.0);
    figures.last_steps = StepFigures{};
    figures.last_step_ended = kBegan + 11min;
    CHECK(since_step_s(kBegan + 12min, figures) == 60.0);
  }

  TEST_CASE("who joined again has all the time of a first step, however long that took") {
    constexpr TimePoint kBefore = TimePoint{} + 1h;
    NodeFigures figures;
    figures.training_began = kBefore - 30min;
    figures.last_steps = StepFigures{};
    figures.last_step_ended = kBefore;
    CHECK(since_step_s(kBefore + 40min, figures) == 2400.0);
    figures.training_began = kBefore + 40min;
    CHECK(since_step_s(kBefore + 41min, figures) == 60.0);
  }
}
