// Slices: a batch computed in parts, one part a thread.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "node/base/team.h"
#include "training/arena.h"
#include "training/batch_tensors.h"
#include "training/cpu/slice.h"
#include "training/slice_place.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace starling::training {

// A slice has at least so many images: its normalisations take their statistics from them alone.
inline constexpr std::size_t kMinSliceImages = 8;

// How many slices a batch is cut into: no more than threads, none smaller than kMinSliceImages
// (unless the batch is).
[[nodiscard]] std::size_t slice_count(std::size_t images, int threads);

// Forward and backward on the CPU: every slice computes the whole model on its part of the batch,
// on its own thread, with gradients of its own, which the optimizer pass sums. Nothing inside an
// operation waits for another thread (at a barrier it would spin, and one busy neighbour on two
// cores then costs four fifths of the speed); the slices meet once, at the end of a step.
//
// Owned by the stepper; lives on the train thread, which computes the first slice. Where there are
// more threads than slices the rest works inside the operations.
// Cost:    one vector of gradients of the model's size in the working type for each slice.
class Slices {
 public:
  Slices(const Model& model, Arena& arena, int threads);

  struct Outcome {
    double loss = 0;       // mean over the batch
    bool finite = false;   // the loss, all gradients and the statistics
    std::size_t sets = 1;  // of gradients in the arena, the first ones
  };
  // Leaves gradients in as many sets of the arena as there were slices, and moves the running
  // statistics of its weights by the mean of what the slices found. Nothing where a slice was
  // dropped: statistics stand where they were then. Throws what LibTorch throws.
  [[nodiscard]] std::optional<Outcome> run(const BatchTensors& batch, double label_smoothing,
                                           const std::atomic<bool>& drop);

  // The threads, for other work of the same step.
  [[nodiscard]] Team& team() { return team_; }

 private:
  void grow(std::size_t count);
  // False where one of them is no finite number then.
  [[nodiscard]] bool move_statistics(std::size_t slices, std::size_t images);

  const Model& model_;
  Arena& arena_;
  int threads_;
  Team team_;
  std::vector<std::unique_ptr<Slice>> slices_;
};

}  // namespace starling::training
