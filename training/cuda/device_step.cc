#include "training/cuda/device_step.h"

#include "training/batch_tensors.h"
#include "training/layered_step.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

namespace starling::training::cuda {
namespace {

// Steps before a capture: libraries choose algorithms and take their work space.
constexpr int kWarmUp = 3;

}  // namespace

class DeviceStep::Layers {
 public:
  virtual ~Layers() = default;
  virtual at::Tensor forward_backward(const StepJob& job) = 0;
};

template <class T>
class DeviceStep::LayersOf final : public Layers {
 public:
  LayersOf(const Model& model, const WorkingSet& set)
      : step_(model, set.weights(), set.gradients(),
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
  if (set_.is_bf16()) {
    layers_ = std::make_unique<LayersOf<Bf16>>(model_, set_);
  } else {
    layers_ = std::make_unique<LayersOf<float>>(model_, set_);
  }
}

DeviceStep::~DeviceStep() = default;

void DeviceStep::make_room(const Batch& batch, const SlicePlace& place, double label_smoothing) {
  const ModelSpec& spec = model_.plan.spec;
  const std::int64_t side = side_of(batch, spec);
  const std::int64_t sizes[] = {place.size, spec.channels, side, side};
  if (images_.defined() && images_.sizes() == at::IntArrayRef(sizes) && batch_ == batch.size &&
      label_smoothing_ == label_smoothing) {
    return;
  }
  graph_.reset();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const auto device = at::TensorOptions().device(stream_.device());
  images_ = at::empty(sizes, device.dtype(set_.is_bf16() ? at::kBFloat16 : at::kFloat),
                      at::MemoryFormat::ChannelsLast);
  labels_ = at::empty({place.size}, device.dtype(at::kLong));
  batch_ = batch.size;
  label_smoothing_ = label_smoothing;
}

Result<void> DeviceStep::load(const Batch& batch, const SlicePlace& place) {
  if (!batch.pixels.empty()) {
    input_.load(batch, place.begin, images_, labels_);
    return {};
  }
  TRY(const BatchTensors tensors, tensors_of(batch, model_.plan.spec, at::kCPU, Doing::training));
  images_.copy_(tensors.images.narrow(0, place.begin, place.size), /*non_blocking=*/true);
  labels_.copy_(tensors.labels.narrow(0, place.begin, place.size), /*non_blocking=*/true);
  return {};
}

void DeviceStep::capture(std::int64_t batch) {
  const StepJob job{images_, labels_, batch, label_smoothing_};
  for (int i = 0; i < kWarmUp; ++i) set_.loss().copy_(layers_->forward_backward(job));
  stream_.synchronize();
  // The graph keeps memory of its own: what the steps before it took would lie idle beside it.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // Codec jobs on other threads go on meanwhile.
  graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  set_.loss().copy_(layers_->forward_backward(job));
  graph->capture_end();
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
