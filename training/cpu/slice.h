// Slice: forward and backward of one model on one part of a batch, on one thread, without autograd.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/cpu/norm.h"
#include "training/device.h"
#include "training/models/network.h"

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace starling::training {

// Computes the loss of its images and the gradients of all parameters.
//
// Owned by a Slices; one thread at a time. Reads the weights, which any number of slices share, and
// writes gradients of its own; running statistics are not its business: it reports what it found.
// The same layers as Network with autograd, in fewer passes over memory: normalisation, residual
// and relu are one, gradients are written where they belong instead of added to zeros, and the two
// gradients that meet at the end of a block are summed where they are read.
// Cost:    two activations for each convolution until the backward pass has used them.
class Slice {
 public:
  virtual ~Slice() = default;

  struct Job {
    at::Tensor images;       // n x C x H x W, channels_last strides, fp32
    at::Tensor labels;       // n, int64
    std::int64_t batch = 0;  // images of the whole batch: gradients are those of its mean loss
    double label_smoothing = 0;
  };
  // The share of the batch's mean loss that these images have (its sum over `batch`). Every
  // gradient is overwritten. Throws what LibTorch throws.
  [[nodiscard]] virtual double forward_backward(const Job& job) = 0;

  // What the last forward pass found, in the order of Model::norms.
  [[nodiscard]] virtual const NormState& statistics(std::size_t norm) const = 0;

  // `gradients` are views in the order of Layout::tensors(), of the weights' types and strides. All
  // must outlive the slice.
  [[nodiscard]] static std::unique_ptr<Slice> make(const Model& model, const Weights& weights,
                                                   const std::vector<at::Tensor>& gradients);
};

}  // namespace starling::training
