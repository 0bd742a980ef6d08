// Stepper: one training step on one batch.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/arena.h"
#include "training/models/network.h"
#include "training/trainer.h"

#include <memory>

namespace starling::training {

// Forward, backward, optimizer pass, and the counters that they move.
//
// Owned by the trainer; lives on the train thread, except that arena().lease() may be used by any.
// Truth: this node's replica. The batch is computed as one slice; with several learners or slices
// this is the class that holds them, and everything around it stays.
class Stepper {
 public:
  // Throws what LibTorch throws: call it inside guarded().
  Stepper(const Model& model, const ResolvedDevice& device, const TrainerOptions& options,
          const Trainer::Start& start);

  // Trains on one batch with the learning rate of `progress_share`. Fills everything but the times
  // that the trainer knows (data_wait_s, evaluation_s, images_per_second).
  //
  // Errors:  data_failed, device_failed, no_memory; diverged after max_bad_steps in a row.
  [[nodiscard]] Result<StepReport> step(const Batch& batch, double progress_share);

  // Takes over a replica: momenta zero, warm-up again.
  void adopt(const Replica& replica);

  // Everything that a checkpoint holds, at this step boundary.
  [[nodiscard]] Checkpoint checkpoint();

  [[nodiscard]] Arena& arena() { return arena_; }
  [[nodiscard]] const TrainingState& state() const { return state_; }

 private:
  [[nodiscard]] Result<double> forward_backward(const Batch& batch);
  void train(StepReport& report, const Batch& batch, double progress_share);
  [[nodiscard]] Result<void> skip(StepReport& report);

  ModelSpec spec_;
  TrainerOptions options_;
  Network network_;
  Arena arena_;
  TrainingState state_;
  int bad_in_a_row_ = 0;
  std::uint64_t bad_steps_ = 0;
};

}  // namespace starling::training
