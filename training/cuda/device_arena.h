// DeviceArena: master and momenta of one model, and a working set, in one allocation of a GPU.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/device_vectors.h"
#include "training/cuda/working_set.h"
#include "training/device.h"
#include "training/engine.h"
#include "training/lease.h"

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
// Cost:    8 bytes a parameter, 2 floats for each channel of a normalisation, and the working set.
//          On the host a staging copy of the master once master() was used.
class DeviceArena final : public DeviceMasterPort {
 public:
  // `momenta` is empty (zero) or has the size of the parameters.
  DeviceArena(const Model& model, const ResolvedDevice& device, const Replica& replica,
              std::span<const float> momenta);

  // What this GPU computes gradients with; the optimizer pass reads its gradients and writes its
  // working copy.
  [[nodiscard]] const WorkingSet& set() const { return set_; }
  // Whether gradients and statistics are finite numbers; waits for the current stream.
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
  void give_back_idle() override;

 private:
  class HostMaster final : public gossip::MasterPort {
   public:
    explicit HostMaster(DeviceArena& arena) : arena_(arena) {}
    void with_master(const std::function<void(gossip::MasterView)>& job) override;

   private:
    DeviceArena& arena_;
    at::Tensor staging_;  // parameters, means, variances
  };

  [[nodiscard]] std::vector<WorkingSet::Want> wanted();
  void load(const Replica& replica, std::span<const float> momenta);
  void write_working_copy();

  const Model& model_;
  at::Device device_;
  std::size_t split_;  // where tensors of rank <= 1 begin
  at::Tensor master_;  // parameters, then means, then variances: what is exchanged
  at::Tensor momenta_;
  at::Tensor rate_;
  at::Tensor refused_;
  WorkingSet set_;                    // with room for all of these
  std::int64_t batches_tracked_ = 0;  // guarded by the lease
  at::cuda::CUDAEvent written_;
  MasterLease lease_;
  HostMaster host_master_;
};

}  // namespace starling::training::cuda
