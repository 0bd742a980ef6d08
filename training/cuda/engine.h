// CudaEngine: a replica in the memory of one GPU, trained by it, or by several GPUs of one host.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/device_arena.h"
#include "training/cuda/device_step.h"
#include "training/engine.h"

#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace starling::training::cuda {

// See Engine. Everything that trains runs on one stream of each GPU; the learning rate is read from
// device memory.
//
// Of several GPUs each computes a slice of every batch, with a working set of its own; NCCL sums
// the gradients on the first one, which has the master and the optimizer pass, and brings its
// working copy to the others. Exchanges know of the first one alone. All GPUs are driven by the
// train thread, which tells NCCL of all of them at once: no two threads could enter its collectives
// in different orders. A slice's gradients are rounded to bf16 where that is the precision, and so
// are their sums.
//
// Cost:    DeviceArena on the first GPU, a WorkingSet on each other one, a DeviceStep on each.
//          Between GPUs a step moves the gradients and the working copy, one after the other.
class CudaEngine final : public Engine {
 public:
  // `model` must outlive it. Throws where this LibTorch has no NCCL and there are several GPUs.
  CudaEngine(const Model& model, const ResolvedDevice& device, const Replica& replica,
             std::span<const float> momenta);
  // Waits for what is still under way on any GPU.
  ~CudaEngine() override;
  CudaEngine(const CudaEngine&) = delete;
  CudaEngine& operator=(const CudaEngine&) = delete;

  [[nodiscard]] Result<std::optional<Outcome>> compute(const Batch& batch, double label_smoothing,
                                                       const std::atomic<bool>& drop) override;
  void stage(const Batch& batch) override;
  void forget_staged() override;
  [[nodiscard]] PassTimes optimizer_pass(const Rates& rates) override;
  void discard() override {}  // compute() moves no statistics

  void adopt(const Replica& replica) override;
  [[nodiscard]] Replica snapshot() override;
  [[nodiscard]] std::vector<float> momenta() override;
  [[nodiscard]] gossip::MasterPort& master() override { return arena_.master(); }
  [[nodiscard]] Result<std::unique_ptr<gossip::ReplicaVectors>> make_vectors() override {
    return DeviceVectors::make(model_.layout, arena_);
  }

  // Where everything of the first GPU runs that trains, and waits for the others: for measurements.
  [[nodiscard]] c10::cuda::CUDAStream stream() const { return steps_.front()->stream(); }

 private:
  [[nodiscard]] std::size_t gpus() const { return steps_.size(); }
  [[nodiscard]] const WorkingSet& set(std::size_t gpu) const {
    return gpu == 0 ? arena_.set() : *others_[gpu - 1];
  }
  // One tensor of each GPU's working set.
  template <class Of>
  [[nodiscard]] std::vector<at::Tensor> of_each(Of of) const;
  [[nodiscard]] std::vector<std::optional<c10::cuda::CUDAStream>> streams() const;
  // Gradients, loss and statistics of a batch of so many images; nothing where there is one GPU.
  void sum_on_first(std::size_t images);
  // The working copy of the first GPU.
  void spread_working_copy();

  const Model& model_;
  DeviceArena arena_;                                // the first GPU's
  std::vector<std::unique_ptr<WorkingSet>> others_;  // the others'
  std::vector<std::unique_ptr<DeviceStep>> steps_;   // all GPUs', the first one's first
  std::vector<at::Tensor> statistics_;               // what each GPU adds, where there are several
};

}  // namespace starling::training::cuda
