#include "training/cuda/engine.h"

#include "training/batch_tensors.h"
#include "training/layered_step.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <cmath>

namespace starling::training::cuda {
namespace {

// Steps before a capture: libraries choose algorithms and take their work space.
constexpr int kWarmUp = 3;

}  // namespace

class CudaEngine::Layers {
 public:
  virtual ~Layers() = default;
  virtual at::Tensor forward_backward(const StepJob& job) = 0;
};

template <class T>
class CudaEngine::LayersOf final : public Layers {
 public:
  LayersOf(const Model& model, const DeviceArena& arena)
      : step_(model, arena.weights(), arena.gradients(), [&arena](const UnitWiring& wires) {
          return DeviceNorm<T>(arena.norm_places(wires));
        }) {}
  at::Tensor forward_backward(const StepJob& job) override { return step_.forward_backward(job); }

 private:
  LayeredStep<T, DeviceNorm<T>> step_;
};

CudaEngine::CudaEngine(const Model& model, const ResolvedDevice& device, const Replica& replica,
                       std::span<const float> momenta)
    : model_(model),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true,
                                           static_cast<c10::DeviceIndex>(device.index))),
      arena_(model, device, replica, momenta),
      input_(stream_.device(), stream_) {
  at::globalContext().setBenchmarkCuDNN(true);
  if (arena_.is_bf16()) {
    layers_ = std::make_unique<LayersOf<Bf16>>(model_, arena_);
  } else {
    layers_ = std::make_unique<LayersOf<float>>(model_, arena_);
  }
}

CudaEngine::~CudaEngine() = default;

void CudaEngine::make_room(const Batch& batch, double label_smoothing) {
  const ModelSpec& spec = model_.plan.spec;
  const auto count = static_cast<std::int64_t>(batch.size);
  const std::int64_t side = side_of(batch, spec);
  const std::int64_t sizes[] = {count, spec.channels, side, side};
  if (images_.defined() && images_.sizes() == at::IntArrayRef(sizes) &&
      label_smoothing_ == label_smoothing) {
    return;
  }
  graph_.reset();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const auto device = at::TensorOptions().device(stream_.device());
  images_ = at::empty(sizes, device.dtype(arena_.is_bf16() ? at::kBFloat16 : at::kFloat),
                      at::MemoryFormat::ChannelsLast);
  labels_ = at::empty({count}, device.dtype(at::kLong));
  label_smoothing_ = label_smoothing;
}

Result<void> CudaEngine::load(const Batch& batch) {
  if (!batch.pixels.empty()) {
    input_.load(batch, images_, labels_);
    return {};
  }
  TRY(const BatchTensors tensors, tensors_of(batch, model_.plan.spec, at::kCPU, Doing::training));
  images_.copy_(tensors.images, /*non_blocking=*/true);
  labels_.copy_(tensors.labels, /*non_blocking=*/true);
  return {};
}

void CudaEngine::capture() {
  const StepJob job{images_, labels_, images_.size(0), label_smoothing_};
  for (int i = 0; i < kWarmUp; ++i) arena_.loss().copy_(layers_->forward_backward(job));
  stream_.synchronize();
  // The graph keeps memory of its own: what the steps before it took would lie idle beside it.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // Codec jobs on other threads go on meanwhile.
  graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  arena_.loss().copy_(layers_->forward_backward(job));
  graph->capture_end();
  graph_ = std::move(graph);
}

Result<std::optional<Engine::Outcome>> CudaEngine::compute(const Batch& batch,
                                                           double label_smoothing,
                                                           const std::atomic<bool>&) {
  TRY_VOID(check_batch(batch, model_.plan.spec, Doing::training));
  const c10::cuda::CUDAStreamGuard guard(stream_);
  make_room(batch, label_smoothing);
  TRY_VOID(load(batch));
  if (graph_ == nullptr) capture();
  graph_->replay();
  const bool finite = arena_.is_finite();
  const auto loss = arena_.loss().item<double>();
  return Outcome{loss, finite && std::isfinite(loss)};
}

PassTimes CudaEngine::optimizer_pass(const Rates& rates) {
  const c10::cuda::CUDAStreamGuard guard(stream_);
  return arena_.optimizer_pass(rates);
}

void CudaEngine::adopt(const Replica& replica) {
  const c10::cuda::CUDAStreamGuard guard(stream_);
  arena_.adopt(replica);
}

Replica CudaEngine::snapshot() { return arena_.snapshot(); }

std::vector<float> CudaEngine::momenta() {
  const c10::cuda::CUDAStreamGuard guard(stream_);
  return arena_.momenta();
}

}  // namespace starling::training::cuda
