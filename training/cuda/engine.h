// CudaEngine: a replica in the memory of one GPU, forward and backward as one CUDA graph.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/device_arena.h"
#include "training/cuda/device_input.h"
#include "training/engine.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace starling::training::cuda {

// See Engine. Everything that trains runs on one stream. Forward and backward are captured once for
// each shape of a batch and replayed; they read the working copy, never the master, so a codec job
// and a graph may run at the same time. The learning rate is read from device memory.
//
// Cost:    DeviceArena, DeviceInput, and the activations of a batch in the graph's own pool.
//          Capturing takes three steps, once for each new shape; the memory of the shape before is
//          given back first.
class CudaEngine final : public Engine {
 public:
  // `model` must outlive it.
  CudaEngine(const Model& model, const ResolvedDevice& device, const Replica& replica,
             std::span<const float> momenta);
  ~CudaEngine() override;

  [[nodiscard]] Result<std::optional<Outcome>> compute(const Batch& batch, double label_smoothing,
                                                       const std::atomic<bool>& drop) override;
  void stage(const Batch& batch) override { input_.stage(batch); }
  [[nodiscard]] PassTimes optimizer_pass(const Rates& rates) override;
  void discard() override {}  // compute() moves no statistics

  void adopt(const Replica& replica) override;
  [[nodiscard]] Replica snapshot() override;
  [[nodiscard]] std::vector<float> momenta() override;
  [[nodiscard]] gossip::MasterPort& master() override { return arena_.master(); }
  [[nodiscard]] Result<std::unique_ptr<gossip::ReplicaVectors>> make_vectors() override {
    return DeviceVectors::make(model_.layout, arena_);
  }

  // Where everything runs that trains: for measurements.
  [[nodiscard]] c10::cuda::CUDAStream stream() const { return stream_; }

 private:
  class Layers;
  template <class T>
  class LayersOf;

  // Memory for a batch of this shape, without a graph, if the last one had another.
  void make_room(const Batch& batch, double label_smoothing);
  [[nodiscard]] Result<void> load(const Batch& batch);
  void capture();

  const Model& model_;
  c10::cuda::CUDAStream stream_;
  DeviceArena arena_;
  DeviceInput input_;
  std::unique_ptr<Layers> layers_;
  at::Tensor images_;  // what the graph reads, in the type of the working copy
  at::Tensor labels_;
  double label_smoothing_ = 0;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

}  // namespace starling::training::cuda
