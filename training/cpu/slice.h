// Slice: forward and backward of one model on one part of a batch, on one thread, without autograd.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/cpu/norm.h"
#include "training/device.h"
#include "training/layered_step.h"
#include "training/models/network.h"

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace starling::training {

// Computes the loss of its images and the gradients of all parameters (layered_step.h).
//
// Owned by a Slices; one thread at a time. Reads the weights, which any number of slices share, and
// writes gradients of its own; running statistics are not its business: it reports what it found.
class Slice {
 public:
  virtual ~Slice() = default;

  // The share of the batch's mean loss that these images have (its sum over `batch`), or nothing
  // where the job was dropped. Every gradient is overwritten. Throws what LibTorch throws.
  [[nodiscard]] virtual std::optional<double> forward_backward(const StepJob& job) = 0;

  // What the last forward pass found, in the order of Model::norms.
  [[nodiscard]] virtual const NormState& statistics(std::size_t norm) const = 0;

  // `gradients` are views in the order of Layout::tensors(), of the weights' types and strides. All
  // must outlive the slice.
  [[nodiscard]] static std::unique_ptr<Slice> make(const Model& model, const Weights& weights,
                                                   const std::vector<at::Tensor>& gradients);
};

}  // namespace starling::training
