#include "training/step_bench.h"

#include "node/base/clock.h"
#include "node/base/random.h"
#include "training/cpu/slices.h"
#include "training/cpu/tensor_memory.h"
#include "training/genesis.h"
#include "training/stepper.h"
#include "training/torch_guard.h"

#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <utility>

namespace starling::training {
namespace {

constexpr int kMostBlocks = 1'000;
constexpr std::uint64_t kSeed = 1;

struct Usage {
  double cpu_seconds = 0;
  double faults = 0;
};

Usage usage_now() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  const auto time = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return {time(usage.ru_utime) + time(usage.ru_stime), static_cast<double>(usage.ru_minflt)};
}

Batch random_batch(Rng& rng, const ModelSpec& spec, std::size_t size) {
  Batch batch;
  const auto side = static_cast<std::size_t>(spec.image_size);
  batch.images = AlignedFloats(size * side * side * static_cast<std::size_t>(spec.channels));
  batch.size = size;
  // Uniform with the spread of normalised pixels: mean 0, variance 1.
  std::ranges::generate(batch.images.span(),
                        [&] { return static_cast<float>((rng.unit() - 0.5) * 3.4641016); });
  for (std::size_t n = 0; n < size; ++n) {
    batch.labels.push_back(
        static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(spec.classes))));
  }
  return batch;
}

Result<void> check(const StepBenchOptions& options) {
  if (options.batch > 0 && options.warmup >= 0 && options.blocks > 0 &&
      options.blocks <= kMostBlocks && options.steps > 0) {
    return {};
  }
  return fail(
      Errc::bad_argument, Doing::training,
      "batch, blocks and steps must be at least 1, blocks at most 1,000, warmup at least 0");
}

}  // namespace

Result<StepBenchReport> bench_steps(const StepBenchOptions& options) {
  TRY_VOID(check(options));
  TRY(const Model model, make_model(options.model));
  use_cached_tensor_memory();
  StepBenchReport report;
  TRY(report.device, resolve_device(options.device));
  if (!report.device.cuda) report.slices = slice_count(options.batch, report.device.threads);
  TrainerOptions training;
  training.device = options.device;
  // Small, so that random labels cannot drive the parameters out of range.
  training.schedule = {.peak = 0.01, .warmup_share = 0, .floor_share = 0};
  TRY(const auto stepper, guarded(Doing::building_model, [&]() -> Result<std::unique_ptr<Stepper>> {
        return std::make_unique<Stepper>(
            model, report.device, training,
            Trainer::Start{make_genesis(model, kSeed).replica, {}, {}});
      }));

  Rng rng(kSeed);
  std::array<Batch, 4> batches;
  for (Batch& batch : batches) batch = random_batch(rng, options.model, options.batch);
  std::size_t number = 0;
  const auto step = [&]() -> Result<StepReport> {
    if (options.stop.stop_requested())
      return fail(Errc::cancelled, Doing::training, "stopped before its end");
    return stepper->step(batches.at(number++ % batches.size()), 0);
  };

  const SteadyClock clock;
  for (int i = 0; i < options.warmup; ++i) {
    const TimePoint begin = clock.now();
    TRY_VOID(step());
    if (i == 0) report.first_step_seconds = seconds(clock.now() - begin);
  }
  for (int block = 0; block < options.blocks; ++block) {
    StepBlock figures;
    const Usage before = usage_now();
    const TimePoint begin = clock.now();
    for (int i = 0; i < options.steps; ++i) {
      TRY(const StepReport done, step());
      report.loss = done.loss;
      figures.optimizer_seconds += done.optimizer_s / options.steps;
    }
    const double wall = seconds(clock.now() - begin);
    const Usage after = usage_now();
    const auto images = static_cast<double>(options.batch) * options.steps;
    figures.images_per_second = images / wall;
    figures.cpu_seconds_per_step = (after.cpu_seconds - before.cpu_seconds) / options.steps;
    figures.faults_per_step = (after.faults - before.faults) / options.steps;
    report.blocks.push_back(figures);
  }
  return report;
}

Result<PrecisionCost> measure_precisions(const ModelSpec& model, std::size_t batch, int threads,
                                         std::stop_token stop) {
  StepBenchOptions options{.model = model,
                           .device = {.device = "cpu", .threads = threads},
                           .warmup = 1,
                           .blocks = 3,
                           .steps = 1,
                           .stop = std::move(stop)};
  options.batch = std::min(batch, kMinSliceImages * static_cast<std::size_t>(threads));
  const auto cost_in = [&](Precision precision) -> Result<double> {
    options.device.precision = precision;
    TRY(const StepBenchReport report, bench_steps(options));
    trim_tensor_memory();
    const auto least = std::ranges::min(report.blocks, {}, &StepBlock::cpu_seconds_per_step);
    return least.cpu_seconds_per_step / static_cast<double>(options.batch);
  };
  PrecisionCost cost;
  TRY(cost.bf16, cost_in(Precision::bf16));
  TRY(cost.fp32, cost_in(Precision::fp32));
  return cost;
}

}  // namespace starling::training
