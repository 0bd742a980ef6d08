// DeviceStep: forward and backward of a slice on one GPU, as one CUDA graph.
//
// Includes torch: for this folder's .cc files and their tests only. Only in builds with
// STARLING_CUDA.
#pragma once

#include "training/cuda/device_input.h"
#include "training/cuda/space_to_depth.h"
#include "training/cuda/working_set.h"
#include "training/slice_place.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>

namespace starling::training {
struct StepJob;
}  // namespace starling::training

namespace starling::training::cuda {

// Captured once for each shape of a slice and replayed, on a stream of its own. Reads the working
// copy, never the master, so a codec job and a graph may run at the same time. The stem computes on
// blocks of pixels where SpaceToDepth fits.
//
// Owned by the engine; train thread. Throws what LibTorch throws.
// Cost:    DeviceInput, and the activations of a slice in the graph's own pool. Capturing takes
//          three steps, once for each new shape; the memory of the shape before is given back
//          first.
class DeviceStep {
 public:
  // `set` and `model` must outlive it.
  DeviceStep(const Model& model, at::Device device, const WorkingSet& set);
  ~DeviceStep();
  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;

  // See Engine::stage().
  void stage(const Batch& batch) { input_.stage(batch); }
  void forget_staged() { input_.forget_staged(); }
  // Launches what leaves the gradients of the batch's mean loss, and the slice's share of that
  // loss, in the set. Waits for nothing, unless it has to capture.
  //
  // Errors:  those of tensors_of().
  [[nodiscard]] Result<void> launch(const Batch& batch, const SlicePlace& place,
                                    double label_smoothing);

  [[nodiscard]] c10::cuda::CUDAStream stream() const { return stream_; }

 private:
  class Layers;
  template <class T>
  class LayersOf;

  // Memory for a slice of this shape, without a graph, if the last one had another.
  void make_room(const Batch& batch, const SlicePlace& place, double label_smoothing);
  void make_layers(std::int64_t side);
  [[nodiscard]] Result<void> load(const Batch& batch, const SlicePlace& place);
  // All of a step, its loss included.
  void compute(const StepJob& job);
  void capture(std::int64_t batch);

  const Model& model_;
  const WorkingSet& set_;
  c10::cuda::CUDAStream stream_;
  DeviceInput input_;
  std::optional<SpaceToDepth> stem_;  // none: images are pixels
  std::unique_ptr<Layers> layers_;
  InputTensors in_;        // what the graph reads, in the type of the working copy
  std::int64_t side_ = 0;  // of an image, in pixels
  std::size_t batch_ = 0;  // images of the whole batch
  double label_smoothing_ = 0;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

}  // namespace starling::training::cuda
