#include "training/cuda/step_figures.h"

#include "training/cuda/device_bench.h"
#include "training/torch_guard.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/torch.h>

#include <utility>

namespace starling::training::cuda {

namespace {

constexpr std::int64_t kProductSide = 8'192;
constexpr int kWarmUps = 30;
constexpr int kTurns = 20;
constexpr int kRepeats = 5;

std::vector<double> product_tflop_per_s(int device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(
      /*isHighPriority=*/true, static_cast<c10::DeviceIndex>(device));
  const c10::cuda::CUDAStreamGuard guard(stream);
  const auto options = at::TensorOptions().device(stream.device()).dtype(at::kBFloat16);
  // Random, never zeros: those run faster.
  const at::Tensor a = at::randn({kProductSide, kProductSide}, options);
  const at::Tensor b = at::randn({kProductSide, kProductSide}, options);
  at::Tensor c = at::empty({kProductSide, kProductSide}, options);
  for (int i = 0; i < kWarmUps; ++i) at::mm_out(c, a, b);
  constexpr double kSide = kProductSide;
  std::vector<double> figures;
  StepTimer timer(stream);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    timer.begin();
    for (int i = 0; i < kTurns; ++i) at::mm_out(c, a, b);
    figures.push_back(kTurns * 2 * kSide * kSide * kSide / (1e9 * timer.end_ms()));
  }
  return figures;
}

}  // namespace

double StepTimer::end_ms() {
  end_.record(stream_);
  end_.synchronize();
  return static_cast<double>(begin_.elapsed_time(end_));
}

Result<DeviceStepFigures> measure_ceilings(int device) {
  DeviceStepFigures figures;
  TRY(const DeviceNames names, describe_device(device));
  figures.gpu = names.name;
  figures.clocks = names.clocks;
  TRY(figures.product_tflop_per_s, guarded(Doing::training, [&]() -> Result<std::vector<double>> {
        auto found = product_tflop_per_s(device);
        c10::cuda::CUDACachingAllocator::emptyCache();
        return found;
      }));
  TRY(CopyFigures copy, bench_copy({.device = device, .repeats = kRepeats}));
  figures.copy_gb_per_s = std::move(copy.gb_per_s);
  figures.copy_bytes = copy.bytes;
  c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(device));
  return figures;
}

std::size_t peak_bytes(int device) {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  return static_cast<std::size_t>(stats.reserved_bytes[0].peak);  // 0: all pools together
}

}  // namespace starling::training::cuda
