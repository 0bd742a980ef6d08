// DeviceArena: master, momenta, gradients and working copy of one model in one allocation of a GPU.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/device_vectors.h"
#include "training/cuda/norm_layer.h"
#include "training/device.h"
#include "training/engine.h"
#include "training/lease.h"
#include "training/models/network.h"

#include <ATen/cuda/CUDAEvent.h>
#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace starling::training::cuda {

// All values of a replica on the device, in canonical order, padding zero throughout.
//
// Owned by the engine. The train thread uses everything, on one stream; other threads reach the
// master through master() and with_device_master() alone. The host's lease says who may launch work
// on the master; an event makes a codec's stream wait for the optimizer pass that was launched
// last, and a codec job ends only when its own work has.
// Cost:    16 bytes a parameter in fp32, 12 in bf16; 10 floats for each channel of a
//          normalisation; up to 17 MB of partial sums. On the host a staging copy of the master
//          once master() was used.
class DeviceArena final : public DeviceMasterPort {
 public:
  // `momenta` is empty (zero) or has the size of the parameters.
  DeviceArena(const Model& model, const ResolvedDevice& device, const Replica& replica,
              std::span<const float> momenta);

  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const std::vector<at::Tensor>& gradients() const { return gradients_; }
  [[nodiscard]] bool is_bf16() const { return working_big_.scalar_type() == at::kBFloat16; }
  // The memory of the layer that follows `wires`.
  [[nodiscard]] NormPlaces norm_places(const UnitWiring& wires) const;

  // One double, where forward and backward leave the loss.
  [[nodiscard]] at::Tensor& loss() { return loss_; }
  // Whether loss and gradients are finite numbers; waits for the current stream.
  [[nodiscard]] bool is_finite();

  // Launches the optimizer pass on the current stream, under the lease; then the statistics of the
  // batch move the master's.
  [[nodiscard]] PassTimes optimizer_pass(const Rates& rates);

  void adopt(const Replica& replica);
  [[nodiscard]] Replica snapshot();
  [[nodiscard]] std::vector<float> momenta() const;

  // The master in host memory: a copy that goes down and comes back, for everything but exchanges.
  [[nodiscard]] gossip::MasterPort& master() { return host_master_; }

  // DeviceMasterPort: the master where it is, for exchanges.
  void with_device_master(const std::function<void(const MasterPlaces&)>& job) override;
  [[nodiscard]] int device_index() const override { return device_.index(); }

 private:
  class HostMaster final : public gossip::MasterPort {
   public:
    explicit HostMaster(DeviceArena& arena) : arena_(arena) {}
    void with_master(const std::function<void(gossip::MasterView)>& job) override;

   private:
    DeviceArena& arena_;
    at::Tensor staging_;  // parameters, means, variances
  };

  void allocate(const Model& model, at::ScalarType type);
  void load(const Replica& replica, std::span<const float> momenta);
  void write_working_copy();

  const Model& model_;
  at::Device device_;
  std::size_t split_;  // where tensors of rank <= 1 begin
  at::Tensor memory_;  // everything below is a view of it
  at::Tensor master_;  // parameters, then means, then variances: what is exchanged
  at::Tensor momenta_;
  at::Tensor gradient_big_;
  at::Tensor gradient_small_;
  at::Tensor working_big_;
  at::Tensor working_small_;
  at::Tensor lines_;  // eight for each channel
  at::Tensor partials_;
  at::Tensor loss_;
  at::Tensor rate_;
  at::Tensor refused_;
  std::vector<at::Tensor> gradients_;
  Weights weights_;
  std::int64_t batches_tracked_ = 0;  // guarded by the lease
  at::cuda::CUDAEvent written_;
  MasterLease lease_;
  HostMaster host_master_;
};

}  // namespace starling::training::cuda
