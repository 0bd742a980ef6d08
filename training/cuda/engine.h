// CudaEngine: a replica in the memory of one GPU, forward and backward as one CUDA graph.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/device_arena.h"
#include "training/engine.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <memory>
#include <span>

namespace starling::training::cuda {

// See Engine. Everything that trains runs on one stream. Forward and backward are captured once for
// each shape of a batch and replayed; they read the working copy, never the master, so a codec job
// and a graph may run at the same time. The learning rate is read from device memory.
//
// Cost:    DeviceArena, and the activations of a batch in the graph's own pool. Capturing takes
//          three steps, once for each new shape.
class CudaEngine final : public Engine {
 public:
  // `model` must outlive it.
  CudaEngine(const Model& model, const ResolvedDevice& device, const Replica& replica,
             std::span<const float> momenta);
  ~CudaEngine() override;

  [[nodiscard]] Outcome compute(const BatchTensors& batch, double label_smoothing) override;
  [[nodiscard]] PassTimes optimizer_pass(const Rates& rates) override;
  void discard() override {}  // compute() moves no statistics

  void adopt(const Replica& replica) override;
  [[nodiscard]] Replica snapshot() override;
  [[nodiscard]] std::vector<float> momenta() override;
  [[nodiscard]] gossip::MasterPort& master() override { return arena_.master(); }
  [[nodiscard]] Result<std::unique_ptr<gossip::ReplicaVectors>> make_vectors() override {
    return DeviceVectors::make(model_.layout, arena_);
  }

  // The graph of the last shape, on its stream, without waiting: for measurements.
  [[nodiscard]] c10::cuda::CUDAStream stream() const { return stream_; }

 private:
  class Layers;
  template <class T>
  class LayersOf;

  void capture(const BatchTensors& batch, double label_smoothing);

  const Model& model_;
  c10::cuda::CUDAStream stream_;
  DeviceArena arena_;
  std::unique_ptr<Layers> layers_;
  at::Tensor images_;  // what the graph reads
  at::Tensor labels_;
  double label_smoothing_ = 0;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

}  // namespace starling::training::cuda
