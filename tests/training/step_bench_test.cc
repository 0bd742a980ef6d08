#include "training/step_bench.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/step_bench") {
  TEST_CASE("a benchmark of steps gives every figure once a block") {
    StepBenchOptions options;
    options.model = {"small", 4, 1, 12};
    options.batch = 8;
    options.device.device = "cpu";
    options.warmup = 1;
    options.blocks = 3;
    options.steps = 2;

    const auto report = bench_steps(options);

    REQUIRE(report.has_value());
    CHECK(report->blocks.size() == 3);
    for (const StepBlock& block : report->blocks) {
      CHECK(block.images_per_second > 0);
      CHECK(block.cpu_seconds_per_step >= 0);
      CHECK(block.faults_per_step >= 0);
      CHECK(block.optimizer_seconds > 0);
    }
    CHECK(report->first_step_seconds > 0);
    CHECK(std::isfinite(report->loss));
  }

  TEST_CASE("a benchmark of nothing is refused, and so is a model that does not exist") {
    StepBenchOptions nothing;
    nothing.batch = 0;
    CHECK(bench_steps(nothing).error().code == Errc::bad_argument);
    StepBenchOptions unknown;
    unknown.model.name = "resnet5";
    CHECK(bench_steps(unknown).error().code == Errc::bad_config);
  }
}
