// Stepper: one training step on one batch.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/engine.h"
#include "training/trainer.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace starling::training {

// Forward, backward, optimizer pass, and the counters that they move.
//
// Owned by the trainer; lives on the train thread, except for what of engine() any may use. Truth:
// this node's replica. On a CPU the batch is computed in slices, one a thread (cpu/engine.h); on a
// GPU as a whole, as one CUDA graph (cuda/engine.h).
class Stepper {
 public:
  // Throws what LibTorch throws: call it inside guarded(). `model` must outlive it.
  Stepper(const Model& model, const ResolvedDevice& device, const TrainerOptions& options,
          const Trainer::Start& start);

  // Trains on one batch with the learning rate of `progress_share`. Fills everything but the times
  // that the trainer knows (data_wait_s, evaluation_s, images_per_second). Once `drop` is true, a
  // step that has no gradients yet is given up: nothing was changed then.
  //
  // Errors:  data_failed, device_failed, no_memory; diverged after max_bad_steps in a row;
  //          bad_config where a GPU has no image of the batch, or a normalisation a single value.
  [[nodiscard]] Result<StepReport> step(const Batch& batch, double progress_share,
                                        const std::atomic<bool>& drop);
  [[nodiscard]] Result<StepReport> step(const Batch& batch, double progress_share) {
    const std::atomic<bool> never = false;
    return step(batch, progress_share, never);
  }

  // Begins to bring a later batch to the device; see Engine::stage().
  [[nodiscard]] Result<void> stage(const Batch& batch);

  // No staged batch is computed any more, and nothing of a step that failed is under way.
  [[nodiscard]] Result<void> forget_staged();

  // Whether half as many images would be enough: one for every GPU, and more than a single value
  // for every normalisation. Where not, a step would say "raise --batch" to one who lacks memory.
  [[nodiscard]] bool can_halve(const Batch& batch) const;

  // Takes over a replica: momenta zero, warm-up again.
  void adopt(const Replica& replica);

  // Everything that a checkpoint holds, at this step boundary.
  [[nodiscard]] Checkpoint checkpoint();

  [[nodiscard]] Engine& engine() { return *engine_; }
  [[nodiscard]] const TrainingState& state() const { return state_; }

 private:
  // The gradients of a batch, left in the engine; nothing where they were dropped.
  [[nodiscard]] Result<std::optional<Engine::Outcome>> compute(const Batch& batch,
                                                               const std::atomic<bool>& drop);
  void train(StepReport& report, const Batch& batch, double progress_share);
  [[nodiscard]] Result<void> skip(StepReport& report);

  // Whether the last normalisations can learn from such a batch.
  [[nodiscard]] Result<void> check_values(const Batch& batch) const;
  [[nodiscard]] bool leaves_one_value(std::size_t images, std::int64_t side) const;
  [[nodiscard]] std::size_t devices() const { return 1 + device_.others.size(); }

  const ModelPlan& plan_;
  ResolvedDevice device_;
  TrainerOptions options_;
  std::unique_ptr<Engine> engine_;
  TrainingState state_;
  int bad_in_a_row_ = 0;
  std::uint64_t bad_steps_ = 0;
};

}  // namespace starling::training
