#include "training/step_bench.h"

#include "training/cpu/tensor_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <stop_token>
#include <thread>

using namespace starling;
using namespace starling::training;

namespace {

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// What is left once those that have ended are gone: the kernel lists one for a moment after a join.
// Looks until there are no more than `enough`, for some seconds at most.
std::ptrdiff_t threads_that_stay(std::ptrdiff_t enough) {
  auto least = threads_of_process();
  for (int looks = 0; looks < 100'000 && least > enough; ++looks) {
    std::this_thread::yield();
    least = std::min(least, threads_of_process());
  }
  return least;
}

}  // namespace

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

  TEST_CASE("a benchmark that is stopped gives up the step under way") {
    use_cached_tensor_memory();
    trim_tensor_memory();
    // Few parameters and large activations, of a single step: no moment between two.
    StepBenchOptions options;
    options.model = {"small", 4, 1, 224};
    options.device = {.device = "cpu", .threads = 1};
    options.warmup = 0;
    options.blocks = 1;
    options.steps = 1;
    std::stop_source source;
    options.stop = source.get_token();
    const std::size_t one_activation = options.batch * 224 * 224 * sizeof(float);
    const std::size_t in_a_step = tensor_memory_bytes() + 8 * one_activation;
    std::atomic<bool> over = false;
    std::thread stopper([&] {
      while (!over && tensor_memory_bytes() < in_a_step) std::this_thread::yield();
      source.request_stop();
    });

    const auto report = bench_steps(options);

    over = true;
    stopper.join();
    REQUIRE_FALSE(report);
    CHECK(report.error().code == Errc::cancelled);
  }

  TEST_CASE("a benchmark starts no more threads than it was given") {
    std::ptrdiff_t before = 0;
    std::ptrdiff_t after = 0;
    // On a thread that has computed nothing yet: what LibTorch starts stays with it.
    std::thread([&] {
      before = threads_of_process();
      StepBenchOptions options;
      options.model = {"resnet18", 4, 3, 32};
      options.batch = 8;
      options.device = {.device = "cpu", .threads = 1};
      options.warmup = 0;
      options.blocks = 1;
      options.steps = 1;
      CHECK(bench_steps(options));
      after = threads_that_stay(before);
    }).join();

    CHECK(after <= before);
  }
}
