#include "training/schedule.h"

#include <doctest/doctest.h>

#include <limits>

using namespace starling::training;

TEST_SUITE("training/schedule") {
  TEST_CASE("the rate rises in a straight line to its peak and falls along a cosine to the floor") {
    const ScheduleOptions options{.peak = 0.2, .warmup_share = 0.1, .floor_share = 0.01};

    CHECK(learning_rate(options, 0.05) == doctest::Approx(0.1));
    CHECK(learning_rate(options, 0.1) == doctest::Approx(0.2));
    CHECK(learning_rate(options, 0.55) == doctest::Approx(0.5 * (0.2 + 0.002)));
    CHECK(learning_rate(options, 1.0) == doctest::Approx(0.002));
  }

  TEST_CASE("the first step moves, and the rate never leaves its bounds") {
    const ScheduleOptions options;

    CHECK(learning_rate(options, 0) > 0);
    for (int i = -10; i <= 110; ++i) {
      const double rate = learning_rate(options, i / 100.0);
      CAPTURE(i);
      CHECK(rate >= 0);
      CHECK(rate <= options.peak);
    }
  }

  TEST_CASE("without a warm-up the run starts at the peak") {
    const ScheduleOptions options{.peak = 0.1, .warmup_share = 0};

    CHECK(learning_rate(options, 0) == doctest::Approx(0.1));
  }

  TEST_CASE("a share that is no number counts as the start") {
    const ScheduleOptions options;

    CHECK(learning_rate(options, std::numeric_limits<double>::quiet_NaN()) ==
          learning_rate(options, 0));
  }

  TEST_CASE("images are small up to the end of their stage, and whole after the last one") {
    const std::vector<ImageStage> stages{{160, 0.4}, {192, 0.8}};
    CHECK(image_side(stages, 0, 224) == 160);
    CHECK(image_side(stages, 0.39, 224) == 160);
    CHECK(image_side(stages, 0.4, 224) == 192);
    CHECK(image_side(stages, 0.8, 224) == 224);
    CHECK(image_side(stages, 2, 224) == 224);
    CHECK(image_side({}, 0, 224) == 224);
    CHECK(image_side(stages, std::numeric_limits<double>::quiet_NaN(), 224) == 224);
  }

  TEST_CASE("a node that adopted a replica reaches the full rate after 200 steps") {
    CHECK(adoption_factor(1) == doctest::Approx(1.0 / 200));
    CHECK(adoption_factor(100) == doctest::Approx(0.5));
    CHECK(adoption_factor(200) == 1.0);
    CHECK(adoption_factor(1'000'000) == 1.0);
  }
}
