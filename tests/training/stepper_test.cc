#include "training/stepper.h"

#include "node/base/fault.h"
#include "node/base/hash.h"
#include "torch_support.h"
#include "training/cpu/tensor_memory.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

Hash hash_after(const Model& model, const ResolvedDevice& device, std::uint64_t seed, int steps) {
  Stepper stepper(model, device, tiny_options(), start_of(model, seed));
  Rng rng(seed);
  for (int step = 0; step < steps; ++step) {
    REQUIRE(stepper.step(quarter_batch(rng, 24, 12), 0.1).has_value());
  }
  const Checkpoint checkpoint = stepper.checkpoint();
  return hash_of(std::as_bytes(std::span(checkpoint.replica.parameters)));
}

long page_faults() {
  rusage usage{};
  REQUIRE(::getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_minflt;
}

}  // namespace

TEST_SUITE("training/stepper") {
  TEST_CASE("the same seed and batches give the same parameters, bit for bit") {
    const Model model = tiny_model();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      for (const int threads : {1, 3}) {
        CAPTURE(name_of(precision));
        CAPTURE(threads);
        const ResolvedDevice device{.precision = precision, .threads = threads};
        const Hash first = hash_after(model, device, 1, 5);

        CHECK(hash_after(model, device, 1, 5) == first);
        CHECK(hash_after(model, device, 2, 5) != first);
      }
    }
  }

  TEST_CASE("the loss falls on images that can be told apart, in fp32 and in bf16") {
    const Model model = tiny_model();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(name_of(precision));
      ResolvedDevice device;
      device.precision = precision;
      TrainerOptions options = tiny_options();
      options.label_smoothing = 0;
      Stepper stepper(model, device, options, start_of(model));
      Rng rng(1);

      double first = 0;
      double last = 0;
      for (int step = 0; step < 40; ++step) {
        const auto report = stepper.step(quarter_batch(rng, 16, 12), 0.1);
        REQUIRE(report.has_value());
        if (step < 5) first += report->loss / 5;
        if (step >= 35) last += report->loss / 5;
      }
      CHECK(first > 0.7);
      CHECK(last < 0.3);
    }
  }

  TEST_CASE("a batch whose loss is not finite changes nothing and is counted") {
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Rng rng(1);
    REQUIRE(stepper.step(quarter_batch(rng, 8, 12), 0.1).has_value());
    const Checkpoint before = stepper.checkpoint();

    Batch poisoned = quarter_batch(rng, 8, 12);
    poisoned.images.data()[3] = std::numeric_limits<float>::infinity();
    const auto report = stepper.step(poisoned, 0.1);

    REQUIRE(report.has_value());
    CHECK(report->outcome == StepOutcome::skipped);
    CHECK(report->bad_steps == 1);
    const Checkpoint after = stepper.checkpoint();
    CHECK(after.replica == before.replica);
    CHECK(after.momenta == before.momenta);
    CHECK(after.state.step == before.state.step);
    const auto next = stepper.step(quarter_batch(rng, 8, 12), 0.1);
    REQUIRE(next.has_value());
    CHECK(next->outcome == StepOutcome::trained);
    CHECK(std::isfinite(next->loss));
  }

  TEST_CASE("statistics that are not finite cost the step, and never reach the replica") {
    const Model model = tiny_model();
    for (const int threads : {1, 2}) {
      CAPTURE(threads);
      Stepper stepper(model, {.threads = threads}, tiny_options(), start_of(model));
      Rng rng(1);
      REQUIRE(stepper.step(quarter_batch(rng, 16, 12), 0.1).has_value());
      const Checkpoint before = stepper.checkpoint();

      // As after a rate that is far too high: all values are finite, the squares of what the first
      // convolution makes of them are not, and what is normalised by an infinite variance is 0.
      Batch huge = quarter_batch(rng, 16, 12);
      for (float& pixel : huge.images.span()) pixel *= 1e25F;
      const auto report = stepper.step(huge, 0.1);

      REQUIRE(report.has_value());
      CHECK(std::isfinite(report->loss));
      CHECK(report->outcome == StepOutcome::skipped);
      const Checkpoint after = stepper.checkpoint();
      CHECK(after.replica == before.replica);
      CHECK(after.momenta == before.momenta);
    }
  }

  TEST_CASE("a rate that is far too high ends the run with a checkpoint that can be loaded") {
    const Model model = tiny_model();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(name_of(precision));
      TrainerOptions options = tiny_options();
      options.schedule.peak = 1'000;
      Stepper stepper(model, {.precision = precision}, options, start_of(model));
      Rng rng(1);
      std::optional<Error> end;
      for (int step = 0; step < 100 && !end; ++step) {
        const auto report = stepper.step(quarter_batch(rng, 16, 12), 0.1);
        if (!report) end = report.error();
      }

      REQUIRE(end.has_value());
      CHECK(end->code == Errc::diverged);
      CHECK(end->detail.find("--lr") != std::string::npos);
      const Replica replica = stepper.checkpoint().replica;
      CHECK(all_finite(replica.parameters));
      CHECK(all_finite(replica.bn_mean));
      CHECK(all_finite(replica.bn_variance));
    }
  }

  TEST_CASE("a step that is dropped leaves no trace: the next one is what it would have been") {
    const Model model = tiny_model();
    for (const int threads : {1, 3}) {
      CAPTURE(threads);
      const ResolvedDevice device{.precision = Precision::fp32, .threads = threads};
      const auto after_two = [&](bool drop_between) {
        Stepper stepper(model, device, tiny_options(), start_of(model));
        Rng rng(1);
        const Batch first = quarter_batch(rng, 24, 12);
        Batch other = quarter_batch(rng, 24, 12);
        other.end.position = 77;
        const Batch second = quarter_batch(rng, 24, 12);
        REQUIRE(stepper.step(first, 0.1).has_value());
        if (drop_between) {
          const std::atomic<bool> drop = true;
          const auto report = stepper.step(other, 0.1, drop);
          REQUIRE(report.has_value());
          CHECK(report->outcome == StepOutcome::dropped);
          CHECK(report->step == 1);
        }
        REQUIRE(stepper.step(second, 0.1).has_value());
        return stepper.checkpoint();
      };
      const Checkpoint with = after_two(true);
      const Checkpoint without = after_two(false);

      CHECK(with.replica == without.replica);
      CHECK(with.momenta == without.momenta);
      CHECK(with.state.step == 2);
      CHECK(with.state.samples == without.state.samples);
      CHECK(with.state.cursor == without.state.cursor);
    }
  }

  TEST_CASE("ten such batches in a row end the run as diverged, nine do not") {
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Rng rng(1);
    Batch poisoned = quarter_batch(rng, 4, 12);
    poisoned.images.data()[3] = std::numeric_limits<float>::quiet_NaN();

    for (int i = 0; i < 9; ++i) CHECK(stepper.step(poisoned, 0.1).has_value());
    REQUIRE(stepper.step(quarter_batch(rng, 4, 12), 0.1).has_value());
    for (int i = 0; i < 9; ++i) CHECK(stepper.step(poisoned, 0.1).has_value());
    const auto last = stepper.step(poisoned, 0.1);

    REQUIRE_FALSE(last.has_value());
    CHECK(last.error().code == Errc::diverged);
  }

  TEST_CASE("a label that the model has no class for is the data's fault") {
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Rng rng(1);
    Batch batch = quarter_batch(rng, 4, 12);
    batch.labels[2] = kClasses;

    const auto report = stepper.step(batch, 0.1);

    REQUIRE_FALSE(report.has_value());
    CHECK(report.error().code == Errc::data_failed);
  }

  TEST_CASE("a batch of which a normalisation sees one value is refused with the remedy") {
    const auto model = make_model({"resnet18", kClasses, 1, 33});
    REQUIRE(model.has_value());
    Stepper stepper(*model, {}, tiny_options(), start_of(*model));
    Rng rng(1);
    const auto step_on = [&](std::size_t images, std::uint32_t side) {
      Batch batch = quarter_batch(rng, images, side);
      batch.side = side;
      return stepper.step(batch, 0.1);
    };

    // One pixel is left of 32, and four of 33.
    const auto refused = step_on(1, 32);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Errc::bad_config);
    CHECK(refused.error().detail.find("32 pixels") != std::string::npos);
    CHECK(refused.error().detail.find("--batch") != std::string::npos);
    CHECK(step_on(2, 32).has_value());
    CHECK(step_on(1, 33).has_value());
  }

  TEST_CASE("a batch is halved while every device keeps an image, and every channel its values") {
    const auto model = make_model({"resnet18", kClasses, 1, 33});
    REQUIRE(model.has_value());
    const auto can_halve = [&](std::vector<int> others, std::size_t images, std::uint32_t side) {
      const ResolvedDevice device{.others = std::move(others), .precision = Precision::fp32};
      const Stepper stepper(*model, device, tiny_options(), start_of(*model));
      Batch batch;
      batch.size = images;
      batch.side = side;
      return stepper.can_halve(batch);
    };

    // One pixel is left of 32, and four of 33.
    CHECK(can_halve({}, 2, 33));
    CHECK_FALSE(can_halve({}, 1, 33));
    CHECK(can_halve({}, 4, 32));
    CHECK_FALSE(can_halve({}, 3, 32));
    const std::vector<int> seven{1, 2, 3, 4, 5, 6, 7};
    CHECK(can_halve(seven, 16, 33));
    CHECK_FALSE(can_halve(seven, 15, 33));
    CHECK(can_halve(seven, 32, 32));
    CHECK_FALSE(can_halve(seven, 16, 32));
  }

  TEST_CASE("pixels of another shape than the model's are the data's fault") {
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Batch batch;
    batch.pixels = PixelBatch(2, 12 * 12 * sizeof(float), ordinary_memory());
    batch.pixels.form = {.side = 12, .channels = 3};
    batch.size = 2;
    batch.side = 12;
    batch.labels = {0, 1};

    const auto report = stepper.step(batch, 0.1);

    REQUIRE_FALSE(report.has_value());
    CHECK(report.error().code == Errc::data_failed);
    CHECK(report.error().detail.find("3 channels") != std::string::npos);
  }

  TEST_CASE("after an adoption the momenta are zero and the rate warms up over 200 steps") {
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Rng rng(1);
    REQUIRE(stepper.step(quarter_batch(rng, 8, 12), 0).has_value());
    const Replica other = make_genesis(model, 42).replica;

    stepper.adopt(other);

    const Checkpoint adopted = stepper.checkpoint();
    CHECK(adopted.replica == other);
    CHECK(adopted.momenta == std::vector<float>(model.layout.size(), 0.0F));
    for (int step = 1; step <= 3; ++step) {
      const auto report = stepper.step(quarter_batch(rng, 8, 12), 0);
      REQUIRE(report.has_value());
      CHECK(report->learning_rate == doctest::Approx(0.05 * step / 200));
    }
  }

  TEST_CASE("a step takes no page fault once the first ones are done") {
    use_cached_tensor_memory();
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Rng rng(1);
    const Batch batch = quarter_batch(rng, 64, 12);
    for (int step = 0; step < 4; ++step) REQUIRE(stepper.step(batch, 0.1).has_value());

    // The system may take a page away at any time: the best of ten steps is what the code does.
    long fewest = std::numeric_limits<long>::max();
    for (int step = 0; step < 10; ++step) {
      const long before = page_faults();
      REQUIRE(stepper.step(batch, 0.1).has_value());
      fewest = std::min(fewest, page_faults() - before);
    }
    CHECK(fewest == 0);
  }

  TEST_CASE("activations of one size are given back when images of another come") {
    use_cached_tensor_memory();
    const Model model = tiny_model();
    // What the cache holds after one step for each of these sides.
    const auto held_after = [&model](const std::vector<std::int64_t>& sides) {
      trim_tensor_memory();
      Stepper stepper(model, {}, tiny_options(), start_of(model));
      Rng rng(1);
      for (const std::int64_t side : sides) {
        Batch batch = quarter_batch(rng, 64, side);
        batch.side = static_cast<std::uint32_t>(side);
        REQUIRE(stepper.step(batch, 0.1).has_value());
      }
      return tensor_memory_bytes();
    };

    const std::size_t largest = held_after({48});
    CHECK(held_after({24, 32, 40, 48}) <= largest + largest / 8);
  }

  TEST_CASE("a step for which memory is short gives back what lies idle, for whoever comes next") {
    use_cached_tensor_memory();
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    Rng rng(1);
    Batch batch = quarter_batch(rng, 64, 48);
    batch.side = 48;
    REQUIRE(stepper.step(batch, 0.1).has_value());
    const std::size_t idle_too = tensor_memory_bytes();

    const fault::Armed armed(*fault::find_point("train.no_memory"));
    CHECK(stepper.step(batch, 0.1).error().code == Errc::no_memory);

    const std::size_t held = tensor_memory_bytes();
    CHECK(held < idle_too);
    trim_tensor_memory();
    CHECK(tensor_memory_bytes() == held);
  }
}
