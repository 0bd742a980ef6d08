// WorkingCopy: the parameters in the type and on the device where forward and backward compute.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/device.h"
#include "training/models/network.h"
#include "training/optimizer.h"
#include "training/replica.h"

#include <torch/torch.h>

#include <cstddef>
#include <span>

namespace starling::training {

// One of the two parts of the canonical vector: tensors of rank >= 2 (bf16 where that is the
// precision), and those of rank <= 1 (always fp32).
struct WorkingPart {
  std::size_t begin = 0;  // in the canonical vector
  std::size_t size = 0;
  at::Tensor host;    // what the optimizer pass writes
  at::Tensor device;  // what the network reads; the same tensor on a CPU
};

// Two flat tensors in canonical order with a view for every parameter, and the statistics of all
// normalisations.
//
// Owned by the arena or by an evaluation; lives on their thread. Cost: the model once in its type
// (twice on CUDA, where the host's half is staging).
class WorkingCopy {
 public:
  WorkingCopy(const Model& model, const ResolvedDevice& device);

  // Takes over a replica's values.
  void load(const Replica& replica);
  // Sends what was written to the host tensors to the device. Nothing to do on a CPU.
  void upload();

  // Views with channels_last strides (O,H,W,I in memory). The views stay the same for life.
  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] WorkingPart& big() { return big_; }
  [[nodiscard]] WorkingPart& small() { return small_; }
  [[nodiscard]] at::Device device() const { return device_; }

  // The running statistics as the last forward pass left them, and setting them.
  void read_statistics(std::span<float> mean, std::span<float> variance) const;
  void write_statistics(std::span<const float> mean, std::span<const float> variance);

  // A view of a flat tensor of one part for a parameter: dimensions O,I,H,W over memory O,H,W,I.
  [[nodiscard]] static at::Tensor view(const at::Tensor& flat, const WorkingPart& part,
                                       const gossip::TensorPlace& place);

 private:
  at::Device device_;
  WorkingPart big_;
  WorkingPart small_;
  at::Tensor means_;
  at::Tensor variances_;
  Weights weights_;
};

// The values of a flat host tensor.
[[nodiscard]] std::span<float> floats_of(const at::Tensor& flat);
[[nodiscard]] std::span<Bf16> bf16s_of(const at::Tensor& flat);

// The device as torch names it.
[[nodiscard]] at::Device torch_device(const ResolvedDevice& device);

}  // namespace starling::training
