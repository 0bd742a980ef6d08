// How good a replica is on a data set.
#pragma once

#include "node/base/result.h"
#include "training/batch_source.h"
#include "training/device.h"
#include "training/models/tensor_table.h"
#include "training/replica.h"

#include <cstdint>
#include <memory>

namespace starling::training {

// What an evaluation found. The shares are of all images seen.
struct EvaluationReport {
  std::int64_t step = 0;  // of the replica that was evaluated
  std::int64_t images = 0;
  std::int64_t left_out = 0;  // images of the data that could not be read, in no share
  double loss = 0;            // mean cross-entropy, without label smoothing
  double top1 = 0;            // share whose label has the highest logit
  double top5 = 0;            // ... is among the five highest (among all, with fewer classes)
  double seconds = 0;
};

// One evaluation, batch by batch, so that a trainer can do it between its steps.
//
// Owned by whoever evaluates; one thread. Holds its own copy of the parameters: training goes on
// unseen by it. Cost: one vector of the model's size, and the activations of one batch without
// gradients.
class Evaluation {
 public:
  // Errors:  device_failed, no_memory.
  [[nodiscard]] static Result<Evaluation> create(const Model& model, const Replica& replica,
                                                 const DeviceOptions& device,
                                                 std::unique_ptr<BatchSource> source);
  ~Evaluation();
  Evaluation(Evaluation&&) noexcept;
  Evaluation& operator=(Evaluation&&) noexcept;

  enum class Progress : std::uint8_t { more, finished };
  // Evaluates one batch.
  //
  // Errors:  data_failed, also where the source ends and no image came; cancelled, device_failed;
  //          final.
  [[nodiscard]] Result<Progress> advance();

  // Of the images seen so far.
  [[nodiscard]] EvaluationReport report() const;

 private:
  struct Impl;
  explicit Evaluation(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A whole evaluation in one call: `starling eval`, and the accuracy of the merged model.
//
// Thread:  the caller's, for as long as it takes.
[[nodiscard]] Result<EvaluationReport> evaluate(const Model& model, const Replica& replica,
                                                const DeviceOptions& device,
                                                std::unique_ptr<BatchSource> source);

}  // namespace starling::training
