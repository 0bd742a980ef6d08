#include "training/cuda/engine.h"

#include "training/batch_tensors.h"
#include "training/cuda/device_memory.h"
#include "training/working_copy.h"

#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/nccl.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <string>

namespace starling::training::cuda {

CudaEngine::CudaEngine(const Model& model, const ResolvedDevice& device, const Replica& replica,
                       std::span<const float> momenta)
    : model_(model), arena_(model, device, replica, momenta) {
  const at::ScalarType type = arena_.set().is_bf16() ? at::kBFloat16 : at::kFloat;
  steps_.push_back(std::make_unique<DeviceStep>(model_, torch_device(device), arena_.set()));
  for (const int index : device.others) {
    const at::Device other(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    others_.push_back(std::make_unique<WorkingSet>(model_, other, type));
    steps_.push_back(std::make_unique<DeviceStep>(model_, other, *others_.back()));
  }
  if (gpus() == 1) return;
  for (std::size_t gpu = 0; gpu < gpus(); ++gpu)
    statistics_.push_back(at::empty_like(set(gpu).statistics()));
  spread_working_copy();
}

CudaEngine::~CudaEngine() {
  // The memory of the working sets goes back to a pool that knows nothing of these streams: it
  // would be somebody else's while a step still writes there.
  for (const auto& step : steps_) {
    try {
      step->stream().synchronize();
    } catch (const std::exception&) {
      // Whoever waited for that step was told; what has failed writes no more.
    }
  }
}

template <class Of>
std::vector<at::Tensor> CudaEngine::of_each(Of of) const {
  std::vector<at::Tensor> tensors;
  for (std::size_t gpu = 0; gpu < gpus(); ++gpu) tensors.push_back(of(set(gpu)));
  return tensors;
}

std::vector<std::optional<c10::cuda::CUDAStream>> CudaEngine::streams() const {
  std::vector<std::optional<c10::cuda::CUDAStream>> streams;
  for (const auto& step : steps_) streams.emplace_back(step->stream());
  return streams;
}

void CudaEngine::sum_on_first(std::size_t images) {
  if (gpus() == 1) return;
  const MutexLock lock(memory_mutex());
  const auto sum = [this](const std::vector<at::Tensor>& tensors, at::Tensor to) {
    torch::cuda::nccl::reduce(tensors, to, /*root=*/0,
                              static_cast<int32_t>(torch::cuda::nccl::ncclRedOp::Sum), streams());
  };
  const auto sum_in_place = [&sum](const std::vector<at::Tensor>& tensors) {
    sum(tensors, tensors.front());
  };
  sum_in_place(of_each([](const WorkingSet& set) { return set.flat_gradients().big; }));
  sum_in_place(of_each([](const WorkingSet& set) { return set.flat_gradients().small; }));
  sum_in_place(of_each([](const WorkingSet& set) { return set.loss(); }));
  // In evaluation these stand for what a slice's own statistics are on average.
  for (std::size_t gpu = 0; gpu < gpus(); ++gpu) {
    const c10::cuda::CUDAStreamGuard guard(steps_[gpu]->stream());
    const auto share =
        static_cast<double>(slice_place(images, gpu, gpus()).size) / static_cast<double>(images);
    at::mul_out(statistics_[gpu], set(gpu).statistics(), at::scalar_tensor(share));
  }
  sum(statistics_, arena_.set().statistics());
}

void CudaEngine::spread_working_copy() {
  if (gpus() == 1) return;
  const MutexLock lock(memory_mutex());
  torch::cuda::nccl::broadcast(of_each([](const WorkingSet& set) { return set.working().big; }),
                               streams());
  torch::cuda::nccl::broadcast(of_each([](const WorkingSet& set) { return set.working().small; }),
                               streams());
}

Result<std::optional<Engine::Outcome>> CudaEngine::compute(const Batch& batch,
                                                           double label_smoothing,
                                                           const std::atomic<bool>&) {
  TRY_VOID(check_batch(batch, model_.plan.spec, Doing::training));
  if (batch.size < gpus())
    return fail(Errc::bad_config, Doing::training,
                "a batch of " + std::to_string(batch.size) + " images cannot be shared by " +
                    std::to_string(gpus()) + " GPUs: raise --batch, or name fewer in --device");
  for (std::size_t gpu = 0; gpu < gpus(); ++gpu)
    TRY_VOID(steps_[gpu]->launch(batch, slice_place(batch.size, gpu, gpus()), label_smoothing));
  sum_on_first(batch.size);
  const c10::cuda::CUDAStreamGuard guard(stream());
  const bool finite = arena_.is_finite();
  const auto loss = arena_.set().loss().item<double>();
  return Outcome{loss, finite && std::isfinite(loss)};
}

void CudaEngine::stage(const Batch& batch) {
  for (const auto& step : steps_) step->stage(batch);
}

void CudaEngine::forget_staged() {
  for (const auto& step : steps_) step->forget_staged();
}

PassTimes CudaEngine::optimizer_pass(const Rates& rates) {
  const c10::cuda::CUDAStreamGuard guard(stream());
  const PassTimes times = arena_.optimizer_pass(rates);
  spread_working_copy();
  return times;
}

void CudaEngine::adopt(const Replica& replica) {
  const c10::cuda::CUDAStreamGuard guard(stream());
  arena_.adopt(replica);
  spread_working_copy();
}

Replica CudaEngine::snapshot() { return arena_.snapshot(); }

std::vector<float> CudaEngine::momenta() {
  const c10::cuda::CUDAStreamGuard guard(stream());
  return arena_.momenta();
}

}  // namespace starling::training::cuda
