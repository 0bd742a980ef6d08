#include "training/stepper.h"

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/cpu_time.h"
#include "node/base/fault.h"
#include "training/batch_tensors.h"
#include "training/cpu/engine.h"
#include "training/cpu/tensor_memory.h"
#include "training/torch_guard.h"

#ifdef STARLING_CUDA
#include "training/cuda/engine.h"
#endif

#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace starling::training {

namespace {

std::unique_ptr<Engine> make_engine(const Model& model, const ResolvedDevice& device,
                                    const Trainer::Start& start) {
#ifdef STARLING_CUDA
  if (device.cuda)
    return std::make_unique<cuda::CudaEngine>(model, device, start.replica, start.momenta);
#endif
  STARLING_CHECK(!device.cuda);  // resolve_device() refuses it where there is none
  return std::make_unique<CpuEngine>(model, device, start.replica, start.momenta);
}

}  // namespace

Stepper::Stepper(const Model& model, const ResolvedDevice& device, const TrainerOptions& options,
                 const Trainer::Start& start)
    : plan_(model.plan),
      device_(device),
      options_(options),
      engine_(make_engine(model, device, start)),
      state_(start.state) {}

Result<StepReport> Stepper::step(const Batch& batch, double progress_share,
                                 const std::atomic<bool>& drop) {
  const SteadyClock clock;
  StepReport report;
  report.batch = batch.size;
  const TimePoint begin = clock.now();
  const double cpu_begin_s = thread_cpu_seconds();
  TRY(const std::optional<Engine::Outcome> outcome, compute(batch, drop));
  report.compute_s = seconds(clock.now() - begin);

  if (!outcome) {
    report.outcome = StepOutcome::dropped;
  } else {
    report.loss = outcome->loss;
    TRY_VOID(guarded(Doing::training, [&]() -> Result<void> {
      // A gradient or a variance can overflow while the loss is still finite; in the master it
      // would poison this replica, its checkpoints and, through exchanges, others.
      if (!outcome->finite) return skip(report);
      train(report, batch, progress_share);
      return {};
    }));
    state_.cursor = batch.end;
  }
  report.cpu_s = thread_cpu_seconds() - cpu_begin_s;
  report.step = state_.step;
  report.samples = state_.samples;
  report.bad_steps = bad_steps_;
  return report;
}

Result<std::optional<Engine::Outcome>> Stepper::compute(const Batch& batch,
                                                        const std::atomic<bool>& drop) {
  TRY_VOID(check_values(batch));
  auto outcome = guarded(Doing::training, [&]() -> Result<std::optional<Engine::Outcome>> {
    if (fault::maybe("train.no_memory"))
      return fail(Errc::no_memory, Doing::training, "a test says so");
    return engine_->compute(batch, options_.label_smoothing, drop);
  });
  if (outcome || outcome.error().code != Errc::no_memory) return outcome;
  // What the failed step left idle in the cache is what a checkpoint needs, which is no tensor.
  trim_tensor_memory();
  return fail(Errc::no_memory, Doing::training,
              "a batch of " + std::to_string(batch.size) + " images of " +
                  std::to_string(side_of(batch, plan_.spec)) +
                  " pixels does not fit into the memory of " + name_of(device_) +
                  ", choose a smaller --batch: " + outcome.error().detail);
}

Result<void> Stepper::check_values(const Batch& batch) const {
  const std::int64_t side = side_of(batch, plan_.spec);
  if (!leaves_one_value(batch.size, side)) return {};
  // It is its own mean: whatever it is becomes 0, no gradient passes, and the running variances
  // fall to 0, so that an evaluation sees noise.
  return fail(Errc::bad_config, Doing::training,
              "a batch of " + std::to_string(batch.size) + " on " + name_of(device_) +
                  " leaves the last normalisations of " + plan_.spec.name +
                  " a single value a channel where images have " + std::to_string(side) +
                  " pixels, and nothing can be learned from that: raise --batch");
}

bool Stepper::leaves_one_value(std::size_t images, std::int64_t side) const {
  return images / devices() == 1 && last_side(plan_, side) == 1;
}

bool Stepper::can_halve(const Batch& batch) const {
  const std::size_t half = batch.size / 2;
  return half >= devices() && !leaves_one_value(half, side_of(batch, plan_.spec));
}

Result<void> Stepper::stage(const Batch& batch) {
  return guarded(Doing::training, [&]() -> Result<void> {
    engine_->stage(batch);
    return {};
  });
}

Result<void> Stepper::forget_staged() {
  return guarded(Doing::training, [&]() -> Result<void> {
    engine_->forget_staged();
    return {};
  });
}

void Stepper::train(StepReport& report, const Batch& batch, double progress_share) {
  state_.progress_share = progress_share;
  double rate = learning_rate(options_.schedule, progress_share);
  if (state_.steps_since_adoption < kAdoptionWarmupSteps) {
    rate *= adoption_factor(state_.steps_since_adoption + 1);
  }
  const SgdStep small{static_cast<float>(rate), options_.optimizer.momentum, 0.0F};
  SgdStep big = small;
  big.weight_decay = options_.optimizer.weight_decay;
  const PassTimes times = engine_->optimizer_pass({big, small});

  ++state_.step;
  state_.samples += batch.size;
  state_.steps_since_adoption =
      std::min(state_.steps_since_adoption + 1, TrainingState::kStepsSettled);
  bad_in_a_row_ = 0;
  report.outcome = StepOutcome::trained;
  report.learning_rate = rate;
  report.lease_wait_s = times.wait_s;
  report.optimizer_s = times.hold_s;
}

Result<void> Stepper::skip(StepReport& report) {
  engine_->discard();
  report.outcome = StepOutcome::skipped;
  ++bad_steps_;
  if (++bad_in_a_row_ < options_.max_bad_steps) return {};
  return fail(
      Errc::diverged, Doing::training,
      std::to_string(bad_in_a_row_) +
          " steps in a row had a loss, gradients or statistics that are not finite, the last "
          "at step " +
          std::to_string(state_.step) +
          "; the parameters before them are kept: choose a smaller --lr");
}

void Stepper::adopt(const Replica& replica) {
  engine_->adopt(replica);
  state_.steps_since_adoption = 0;
  bad_in_a_row_ = 0;
}

Checkpoint Stepper::checkpoint() { return {state_, engine_->snapshot(), engine_->momenta()}; }

}  // namespace starling::training
