// WorkingSet: what one GPU computes gradients with.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/norm_layer.h"
#include "training/models/network.h"

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace starling::training::cuda {

// A working copy, room for its gradients and for the loss, and the lines of all normalisations, in
// canonical order, padding zero throughout: one allocation.
//
// The train thread uses it, on the stream of the GPU.
// Cost:    8 bytes a parameter in fp32, 4 in bf16; 8 floats for each channel of a normalisation; up
//          to 7 MB of partial sums.
class WorkingSet {
 public:
  // Something to be cut from the same allocation.
  struct Want {
    at::Tensor* view;
    std::int64_t count;
    at::ScalarType type;
  };
  // `type` is that of tensors of rank >= 2; the others are fp32. Throws where the device has no
  // room, or a normalisation has more channels than the kernels take.
  WorkingSet(const Model& model, at::Device device, at::ScalarType type,
             std::vector<Want> more = {});
  WorkingSet(const WorkingSet&) = delete;
  WorkingSet& operator=(const WorkingSet&) = delete;

  // A view for each parameter.
  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const std::vector<at::Tensor>& gradients() const { return gradients_; }
  [[nodiscard]] bool is_bf16() const { return working_.big.scalar_type() == at::kBFloat16; }
  // The memory of the layer that follows `wires`.
  [[nodiscard]] NormPlaces norm_places(const UnitWiring& wires) const;

  // The same values flat: tensors of rank >= 2, and the rest.
  struct Flat {
    at::Tensor big;
    at::Tensor small;
  };
  [[nodiscard]] const Flat& working() const { return working_; }
  [[nodiscard]] const Flat& flat_gradients() const { return flat_gradients_; }
  // Means, then variances, of all channels in the last forward pass.
  [[nodiscard]] at::Tensor statistics() const { return lines_.narrow(0, 0, 2 * channels_); }
  // One double, where forward and backward leave the loss.
  [[nodiscard]] const at::Tensor& loss() const { return loss_; }

 private:
  void make_views();

  const Model& model_;
  std::int64_t channels_;
  at::Tensor memory_;  // everything below is a view of it
  Flat working_;
  Flat flat_gradients_;
  at::Tensor lines_;  // eight for each channel
  at::Tensor partials_;
  at::Tensor loss_;
  std::vector<at::Tensor> gradients_;
  Weights weights_;
};

}  // namespace starling::training::cuda
