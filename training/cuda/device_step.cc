#include "training/cuda/device_step.h"

#include "training/batch_tensors.h"
#include "training/layered_step.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>

namespace starling::training::cuda {
namespace {

// Steps before a capture: libraries choose algorithms and take their work space.
constexpr int kWarmUp = 3;

// Where the runtime refuses a capture, capture_end() of LibTorch 2.11 throws before it tells the
// allocators: they would take the capture for one that goes on, give nothing idle back any more,
// and ask a graph that is gone which memory is its. An allocator that was told throws.
void let_go_of(c10::MempoolId_t pool, c10::DeviceIndex device) {
  try {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
    c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  } catch (const std::exception&) {
    // It was told, and whoever told it releases the pool.
  }
  try {
    at::HostAllocator& host = *at::getHostAllocator(at::kCUDA);
    host.end_allocate_to_pool(pool);
    host.release_pool(pool);
  } catch (const std::exception&) {
    // The same.
  }
}

// Of a capture that failed, for want of memory say. A stream that goes on capturing would run
// nothing any more, not even the copies of the checkpoint that is saved before the end.
void end_quietly(at::cuda::CUDAGraph& graph, c10::MempoolId_t pool, c10::DeviceIndex device) {
  try {
    graph.capture_end();
  } catch (const std::exception&) {
    // The first error is the one to tell.
    let_go_of(pool, device);
  }
}

}  // namespace

class DeviceStep::Layers {
 public:
  virtual ~Layers() = default;
  virtual at::Tensor forward_backward(const StepJob& job) = 0;
};

template <class T>
class DeviceStep::LayersOf final : public Layers {
 public:
  LayersOf(const Wiring& wiring, const Weights& weights, const std::vector<at::Tensor>& gradients,
           const WorkingSet& set)
      : step_(wiring, weights, gradients,
              [&set](const UnitWiring& wires) { return DeviceNorm<T>(set.norm_places(wires)); }) {}
  at::Tensor forward_backward(const StepJob& job) override { return step_.forward_backward(job); }

 private:
  LayeredStep<T, DeviceNorm<T>> step_;
};

DeviceStep::DeviceStep(const Model& model, at::Device device, const WorkingSet& set)
    : model_(model),
      set_(set),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())),
      input_(device, stream_) {
  at::globalContext().setBenchmarkCuDNN(true);
  // As cuDNN does by itself: operands of the head's products, fp32, are rounded to 11 bits.
  at::globalContext().setAllowTF32CuBLAS(true);
}

DeviceStep::~DeviceStep() = default;

void DeviceStep::make_layers(std::int64_t side) {
  Wiring wiring = wiring_of(model_);
  Weights weights = set_.weights();
  std::vector<at::Tensor> gradients = set_.gradients();
  stem_.reset();
  if (SpaceToDepth::fits(model_.plan, side))
    stem_.emplace(wiring.stem, weights.parameters, gradients);
  if (set_.is_bf16()) {
    layers_ = std::make_unique<LayersOf<Bf16>>(wiring, weights, gradients, set_);
  } else {
    layers_ = std::make_unique<LayersOf<float>>(wiring, weights, gradients, set_);
  }
}

void DeviceStep::make_room(const Batch& batch, const SlicePlace& place, double label_smoothing) {
  const ModelSpec& spec = model_.plan.spec;
  const std::int64_t side = side_of(batch, spec);
  if (in_.images.defined() && in_.images.size(0) == place.size && side_ == side &&
      batch_ == batch.size && label_smoothing_ == label_smoothing) {
    return;
  }
  graph_.reset();
  layers_.reset();
  in_ = {};
  c10::cuda::CUDACachingAllocator::emptyCache();
  make_layers(side);
  const auto device = at::TensorOptions().device(stream_.device());
  const auto images = device.dtype(set_.is_bf16() ? at::kBFloat16 : at::kFloat);
  side_ = side;
  batch_ = batch.size;
  label_smoothing_ = label_smoothing;
  in_.layout = stem_ ? ImageLayout::blocks : ImageLayout::pixels;
  in_.labels = at::empty({place.size}, device.dtype(at::kLong));
  // Last: where there is no room for them, the next batch begins anew.
  in_.images = stem_ ? SpaceToDepth::make_images(place.size, side, images)
                     : at::empty({place.size, spec.channels, side, side}, images,
                                 at::MemoryFormat::ChannelsLast);
}

Result<void> DeviceStep::load(const Batch& batch, const SlicePlace& place) {
  if (!batch.pixels.empty()) {
    input_.load(batch, place.begin, in_);
    return {};
  }
  TRY(const BatchTensors tensors, tensors_of(batch, model_.plan.spec, at::kCPU, Doing::training));
  const at::Tensor images = tensors.images.narrow(0, place.begin, place.size);
  if (stem_) {
    SpaceToDepth::write_images(images, in_.images);
  } else {
    in_.images.copy_(images, /*non_blocking=*/true);
  }
  in_.labels.copy_(tensors.labels.narrow(0, place.begin, place.size), /*non_blocking=*/true);
  return {};
}

void DeviceStep::compute(const StepJob& job) {
  if (stem_) stem_->write_weight();
  set_.loss().copy_(layers_->forward_backward(job));
  if (stem_) stem_->read_gradient();
}

void DeviceStep::capture(std::int64_t batch) {
  const StepJob job{in_.images, in_.labels, batch, label_smoothing_};
  for (int i = 0; i < kWarmUp; ++i) compute(job);
  stream_.synchronize();
  // The graph keeps memory of its own: what the steps before it took would lie idle beside it.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // The graph's own, and named here for let_go_of().
  const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
  const c10::DeviceIndex device = stream_.device_index();
  try {
    // Codec jobs on other threads go on meanwhile.
    graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    compute(job);
  } catch (...) {
    end_quietly(*graph, pool, device);
    throw;
  }
  try {
    graph->capture_end();
  } catch (...) {
    let_go_of(pool, device);
    throw;
  }
  graph_ = std::move(graph);
}

Result<void> DeviceStep::launch(const Batch& batch, const SlicePlace& place,
                                double label_smoothing) {
  const c10::cuda::CUDAStreamGuard guard(stream_);
  make_room(batch, place, label_smoothing);
  TRY_VOID(load(batch, place));
  if (graph_ == nullptr) capture(static_cast<std::int64_t>(batch.size));
  graph_->replay();
  return {};
}

}  // namespace starling::training::cuda
