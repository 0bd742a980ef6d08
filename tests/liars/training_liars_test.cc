#include "tests/liars/training_liars.h"

#include <doctest/doctest.h>

namespace starling::liars {

using gossip::Aggregator;

TEST_SUITE("liars/training") {
  TEST_CASE("beside a neighbour with the sign turned round only a net that clips learns") {
    const auto images = load_images("fashion-mnist", 4'000, 400);
    if (!images) {
      MESSAGE("skipped: " << images.error().detail);
      return;
    }
    const auto learned = [&](Aggregator rule) {
      const auto result =
          train_with_liar(*images, {.seed = 1, .rule = rule, .lie = Lie::sign_flip, .steps = 40});
      REQUIRE(result.has_value());
      CHECK(result->finite);
      return result->accuracy;
    };

    // One in ten is what a net knows that has learned nothing.
    CHECK(learned(Aggregator::mean) < 0.3);
    CHECK(learned(Aggregator::clip) > 0.5);
  }
}

}  // namespace starling::liars
