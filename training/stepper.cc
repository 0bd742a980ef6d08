#include "training/stepper.h"

#include "node/base/check.h"
#include "node/base/clock.h"
#include "training/batch_tensors.h"
#include "training/torch_guard.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace starling::training {

Stepper::Stepper(const Model& model, const ResolvedDevice& device, const TrainerOptions& options,
                 const Trainer::Start& start)
    : spec_(model.plan.spec),
      options_(options),
      network_(model),
      arena_(model, device, start.replica, start.momenta),
      state_(start.state) {
  if (device.cuda) {
    arena_.attach_gradients();
  } else {
    slices_ = std::make_unique<Slices>(model, arena_, device.threads);
  }
}

Result<StepReport> Stepper::step(const Batch& batch, double progress_share) {
  const SteadyClock clock;
  StepReport report;
  report.batch = batch.size;
  const TimePoint begin = clock.now();
  TRY(const Slices::Outcome outcome, guarded(Doing::training, [&] { return compute(batch); }));
  report.loss = outcome.loss;
  report.compute_s = seconds(clock.now() - begin);

  // A gradient can overflow while the loss is still finite; in the master it would poison this
  // replica and, through exchanges, others.
  if (outcome.finite) {
    TRY_VOID(guarded(Doing::training, [&]() -> Result<void> {
      train(report, batch, progress_share, outcome.sets);
      return {};
    }));
  } else {
    TRY_VOID(guarded(Doing::training, [&] { return skip(report); }));
  }
  state_.cursor = batch.end;
  report.step = state_.step;
  report.samples = state_.samples;
  report.bad_steps = bad_steps_;
  return report;
}

Result<Slices::Outcome> Stepper::compute(const Batch& batch) {
  TRY(const BatchTensors tensors, tensors_of(batch, spec_, arena_.device(), Doing::training));
  if (!slices_) return compute_with_autograd(tensors);
  return slices_->run(tensors, options_.label_smoothing);
}

Slices::Outcome Stepper::compute_with_autograd(const BatchTensors& batch) {
  arena_.zero_gradients();
  const at::Tensor logits = network_.forward(arena_.weights(), batch.images, Mode::training);
  const at::Tensor loss =
      at::cross_entropy_loss(logits, batch.labels, /*weight=*/{}, at::Reduction::Mean,
                             /*ignore_index=*/-100, options_.label_smoothing);
  loss.backward();
  STARLING_DCHECK(arena_.gradients_in_place());
  arena_.collect_gradients();
  const auto value = loss.item<double>();
  return {value, std::isfinite(value) && arena_.gradients_finite(0), 1};
}

void Stepper::train(StepReport& report, const Batch& batch, double progress_share,
                    std::size_t sets) {
  state_.progress_share = progress_share;
  double rate = learning_rate(options_.schedule, progress_share);
  if (state_.steps_since_adoption < kAdoptionWarmupSteps) {
    rate *= adoption_factor(state_.steps_since_adoption + 1);
  }
  const SgdStep small{static_cast<float>(rate), options_.optimizer.momentum, 0.0F};
  SgdStep big = small;
  big.weight_decay = options_.optimizer.weight_decay;
  const Arena::PassTimes times =
      arena_.optimizer_pass({big, small}, sets, slices_ ? &slices_->team() : nullptr);

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
  arena_.discard_statistics();
  report.outcome = StepOutcome::skipped;
  ++bad_steps_;
  if (++bad_in_a_row_ < options_.max_bad_steps) return {};
  return fail(Errc::diverged, Doing::training,
              std::to_string(bad_in_a_row_) +
                  " steps in a row had a loss or gradient that is not finite, the last at step " +
                  std::to_string(state_.step) + "; the parameters before them are kept");
}

void Stepper::adopt(const Replica& replica) {
  arena_.adopt(replica);
  state_.steps_since_adoption = 0;
  bad_in_a_row_ = 0;
}

Checkpoint Stepper::checkpoint() { return {state_, arena_.snapshot(), arena_.momenta()}; }

}  // namespace starling::training
