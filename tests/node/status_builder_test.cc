#include "node/status_builder.h"

#include <doctest/doctest.h>

#include <span>
#include <vector>

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

  TEST_CASE("what happened once is wrong for ten minutes, and as long as it happens again") {
    constexpr TimePoint kSeen = TimePoint{} + 1h;
    NodeFigures figures;
    figures.troubles.isolated = true;
    CHECK(troubles_at(kSeen, figures).isolated);
    CHECK_FALSE(troubles_at(kSeen, figures).cloned);
    figures.clone_seen = kSeen;
    figures.events_lost_at = kSeen;
    figures.troubles.events_lost = 3;
    CHECK(troubles_at(kSeen + 9min, figures).cloned);
    CHECK(troubles_at(kSeen + 9min, figures).events_lost == 3);
    figures.events_lost_at = kSeen + 5min;
    CHECK_FALSE(troubles_at(kSeen + 11min, figures).cloned);
    CHECK(troubles_at(kSeen + 11min, figures).events_lost == 3);
    CHECK(troubles_at(kSeen + 16min, figures).events_lost == 0);
    CHECK(troubles_at(kSeen + 16min, figures).isolated);
  }

  TEST_CASE("counted is what this process trained, whatever its figures go on from") {
    StepFigures first;
    first.step = 80'001;
    first.steps = 1;
    first.batch = 64;
    first.samples = 5'110'064;
    first.bad_samples = 2;
    Trained trained = trained_in(first, std::nullopt);
    CHECK(trained.steps == 1);
    CHECK(trained.samples == 64);
    CHECK(trained.bad_samples == 2);

    StepFigures second = first;
    second.step = 80'004;
    second.steps = 3;
    second.batch = 32;  // halved within the report
    second.samples += 64 + 2 * 32;
    trained = trained_in(second, first);
    CHECK(trained.steps == 3);
    CHECK(trained.samples == 128);
    CHECK(trained.bad_samples == 0);

    StepFigures other;  // after other settings: another trainer, another loader
    other.step = 1;
    other.steps = 1;
    other.batch = 16;
    other.samples = 16;
    other.bad_samples = 1;
    trained = trained_in(other, second);
    CHECK(trained.steps == 1);
    CHECK(trained.samples == 16);
    CHECK(trained.bad_samples == 1);
  }

  TEST_CASE("a peer that was dropped has no part in how far the neighbours are apart") {
    const auto seen = [](gossip::EdgeState state, std::uint64_t exchanges, double ratio) {
      gossip::NeighbourView view;
      view.state = state;
      view.exchanges = exchanges;
      view.disagreement_ratio = ratio;
      return view;
    };
    using enum gossip::EdgeState;
    CHECK_FALSE(median_disagreement({}).has_value());
    const std::vector views{seen(open, 400, 0.5), seen(closed, 7, 30), seen(lost, 300, 0.7),
                            seen(closed, 9, 40), seen(open, 0, 0)};
    CHECK(median_disagreement(views) == 0.7);
    CHECK_FALSE(median_disagreement(std::span(views).subspan(1, 1)).has_value());
  }

  TEST_CASE("time is left while a run lasts, not after its end") {
    const gossip::Budget by_samples{.samples = 1'000, .time = {}};
    const gossip::Budget by_time{.samples = 0, .time = 60s};
    CHECK(left_s(by_samples, {.samples = 400, .rate = 10, .age = 5s}) == 60.0);
    CHECK_FALSE(left_s(by_samples, {.samples = 400, .rate = 0, .age = 5s}).has_value());
    CHECK(left_s(by_time, {.samples = 400, .rate = 10, .age = 50s}) == 10.0);
    CHECK(left_s(by_time, {.samples = 400, .rate = 10, .age = 70s}) == 0.0);
    for (const auto phase : {Phase::starting, Phase::joining, Phase::training})
      CHECK(still_trains(phase));
    for (const auto phase : {Phase::finishing, Phase::finished, Phase::leaving})
      CHECK_FALSE(still_trains(phase));
  }

  TEST_CASE("what is of one run is forgotten with it") {
    NodeFigures figures;
    figures.name = "mossy-otter";
    figures.exchanges = 7;
    figures.loss = 2.5;
    figures.last_steps = StepFigures{};
    figures.eval = StatusSnapshot::Eval{};
    figures.checkpoint = "checkpoints/step-7";
    figures.images_per_second = 40;
    figures.forget_run();
    CHECK_FALSE(figures.loss.has_value());
    CHECK_FALSE(figures.last_steps.has_value());
    CHECK_FALSE(figures.eval.has_value());
    CHECK(figures.checkpoint.empty());
    CHECK(figures.images_per_second == 0);
    CHECK(figures.name == "mossy-otter");
    CHECK(figures.exchanges == 7);
  }
}
