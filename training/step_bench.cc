#include "training/step_bench.h"

#include "node/base/clock.h"
#include "node/base/random.h"
#include "training/cpu/intra_op.h"
#include "training/cpu/slices.h"
#include "training/cpu/tensor_memory.h"
#include "training/data/augment.h"
#include "training/genesis.h"
#include "training/stepper.h"
#include "training/torch_guard.h"

#ifdef STARLING_CUDA
#include "training/cuda/engine.h"
#include "training/cuda/step_figures.h"
#endif

#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <atomic>
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

// Whole images of random bytes, every second one mirrored, as a loader of pixels makes them.
Batch random_pixels(Rng& rng, const ModelSpec& spec, std::size_t size, const HostMemory& memory) {
  const auto side = static_cast<std::uint32_t>(spec.image_size);
  const auto channels = static_cast<std::uint32_t>(spec.channels);
  Image image{.pixels = {}, .size = {side, side}, .channels = channels};
  image.pixels.resize(std::size_t{side} * side * channels);
  View view{.box = {.top = 0,
                    .left = 0,
                    .height = static_cast<double>(side),
                    .width = static_cast<double>(side)},
            .flip = false};
  Resampler resampler;
  Batch batch;
  batch.pixels = PixelBatch(size, resampler.plan_part(image, view, side), memory);
  PixelBatch& pixels = batch.pixels;
  pixels.form = pixel_form({side, channels, default_normalisation(channels)});
  pixels.used = pixels.first_part();
  batch.size = size;
  batch.side = side;
  for (std::size_t n = 0; n < size; ++n) {
    for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(rng.below(256));
    view.flip = n % 2 == 1;
    const std::size_t bytes = resampler.plan_part(image, view, side);
    pixels.places()[n] = resampler.write_part(image, view, pixels.used,
                                              std::span(pixels.data() + pixels.used, bytes));
    pixels.used += bytes;
    const auto label = rng.below(static_cast<std::uint64_t>(spec.classes));
    batch.labels.push_back(static_cast<std::int64_t>(label));
    pixels.labels()[n] = batch.labels.back();
  }
  return batch;
}

// Four batches, of what a loader makes for this device.
Result<std::array<Batch, 4>> random_batches(const StepBenchOptions& options) {
  LoaderOptions loader;
  TRY_VOID(suit_loader(loader, options.device));
  return guarded(Doing::training, [&]() -> Result<std::array<Batch, 4>> {
    Rng rng(kSeed);
    std::array<Batch, 4> batches;
    for (Batch& batch : batches) {
      batch = loader.form == BatchForm::pixels
                  ? random_pixels(rng, options.model, options.batch, loader.memory)
                  : random_batch(rng, options.model, options.batch);
    }
    return batches;
  });
}

// Times blocks of steps on whatever computes them.
class BlockTimer {
 public:
  virtual ~BlockTimer() = default;
  virtual void begin() {}
  virtual void end(int /*steps*/, StepBenchReport& /*report*/) {}
  // After the last block.
  virtual void finish(StepBenchReport& /*report*/) {}
};

#ifdef STARLING_CUDA
class DeviceBlockTimer final : public BlockTimer {
 public:
  explicit DeviceBlockTimer(Engine& engine)
      : timer_(static_cast<cuda::CudaEngine&>(engine).stream()) {}
  void begin() override { timer_.begin(); }
  void end(int steps, StepBenchReport& report) override {
    report.gpu->step_ms.push_back(timer_.end_ms() / steps);
  }
  void finish(StepBenchReport& report) override {
    report.gpu->peak_bytes = cuda::peak_bytes(report.device.index);
  }

 private:
  cuda::StepTimer timer_;
};

Result<void> measure_device(StepBenchReport& report) {
  if (!report.device.cuda) return {};
  TRY(report.gpu, cuda::measure_ceilings(report.device.index));
  return {};
}
std::unique_ptr<BlockTimer> block_timer(const StepBenchReport& report, Engine& engine) {
  if (report.device.cuda) return std::make_unique<DeviceBlockTimer>(engine);
  return std::make_unique<BlockTimer>();
}
#else
Result<void> measure_device(StepBenchReport& /*report*/) { return {}; }
std::unique_ptr<BlockTimer> block_timer(const StepBenchReport& /*report*/, Engine& /*engine*/) {
  return std::make_unique<BlockTimer>();
}
#endif

Result<void> check(const StepBenchOptions& options) {
  if (options.batch > 0 && options.warmup >= 0 && options.blocks > 0 &&
      options.blocks <= kMostBlocks && options.steps > 0) {
    return {};
  }
  return fail(
      Errc::bad_argument, Doing::training,
      "batch, blocks and steps must be at least 1, blocks at most 1,000, warmup at least 0");
}

// See bench_steps(); begins with `replica`.
Result<StepBenchReport> bench_from(const StepBenchOptions& options, const Model& model,
                                   const Replica& replica) {
  use_cached_tensor_memory();
  // The replica is built on this thread, which would have LibTorch start one for each core.
  use_intra_op_threads(1);
  StepBenchReport report;
  TRY(report.device, resolve_device(options.device));
  TRY_VOID(measure_device(report));
  if (!report.device.cuda) report.slices = slice_count(options.batch, report.device.threads);
  TrainerOptions training;
  training.device = options.device;
  // Small, so that random labels cannot drive the parameters out of range.
  training.schedule = {.peak = 0.01, .warmup_share = 0, .floor_share = 0};
  TRY(const auto batches, random_batches(options));  // outlive what is staged of them
  TRY(const auto stepper, guarded(Doing::building_model, [&]() -> Result<std::unique_ptr<Stepper>> {
        return std::make_unique<Stepper>(model, report.device, training,
                                         Trainer::Start{replica, {}, {}});
      }));

  std::size_t number = 0;
  std::atomic<bool> drop = false;
  const std::stop_callback on_stop(options.stop, [&drop] { drop = true; });
  const auto step = [&]() -> Result<StepReport> {
    const Batch& batch = batches.at(number++ % batches.size());
    TRY_VOID(stepper->stage(batches.at(number % batches.size())));
    TRY(const StepReport done, stepper->step(batch, 0, drop));
    // A GPU drops no step.
    if (done.outcome == StepOutcome::dropped || (report.device.cuda && drop))
      return fail(Errc::cancelled, Doing::training, "stopped before its end");
    return done;
  };

  const auto timer = block_timer(report, stepper->engine());
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
    timer->begin();
    for (int i = 0; i < options.steps; ++i) {
      TRY(const StepReport done, step());
      report.loss = done.loss;
      figures.optimizer_seconds += done.optimizer_s / options.steps;
    }
    timer->end(options.steps, report);
    const double wall = seconds(clock.now() - begin);
    const Usage after = usage_now();
    const auto images = static_cast<double>(options.batch) * options.steps;
    figures.images_per_second = images / wall;
    figures.cpu_seconds_per_step = (after.cpu_seconds - before.cpu_seconds) / options.steps;
    figures.faults_per_step = (after.faults - before.faults) / options.steps;
    report.blocks.push_back(figures);
  }
  timer->finish(report);
  return report;
}

// How many times one precision has to be as fast as the other for one step of each to tell.
constexpr double kClear = 1.25;

}  // namespace

Result<StepBenchReport> bench_steps(const StepBenchOptions& options) {
  TRY_VOID(check(options));
  TRY(const Model model, make_model(options.model));
  return bench_from(options, model, genesis_replica(model, kSeed));
}

Result<PrecisionCost> measure_precisions(const ModelSpec& model, std::size_t batch, int threads,
                                         std::stop_token stop) {
  StepBenchOptions options{.model = model,
                           .device = {.device = "cpu", .threads = threads},
                           .warmup = 1,
                           .steps = 1,
                           .stop = std::move(stop)};
  options.batch = std::min(batch, kMinSliceImages * static_cast<std::size_t>(threads));
  TRY_VOID(check(options));
  TRY(const Model built, make_model(model));
  const Replica replica = genesis_replica(built, kSeed);
  const auto cost_in = [&](Precision precision) -> Result<double> {
    options.device.precision = precision;
    TRY(const StepBenchReport report, bench_from(options, built, replica));
    const auto least = std::ranges::min(report.blocks, {}, &StepBlock::cpu_seconds_per_step);
    return least.cpu_seconds_per_step / static_cast<double>(options.batch);
  };
  PrecisionCost cost;
  for (const int blocks : {1, 3}) {
    options.blocks = blocks;
    TRY(cost.fp32, cost_in(Precision::fp32));
    trim_tensor_memory();
    TRY(cost.bf16, cost_in(Precision::bf16));
    // What bf16 leaves behind is what training in bf16 takes next.
    if (cost.cheaper() != Precision::bf16) trim_tensor_memory();
    if (std::max(cost.fp32, cost.bf16) > kClear * std::min(cost.fp32, cost.bf16)) break;
  }
  return cost;
}

}  // namespace starling::training
