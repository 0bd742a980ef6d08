// What `starling bench step` measures on a GPU besides steps: events around them, what the card can
// do, what the allocator took.
//
// Includes torch: for this folder's .cc files only. Only in builds with STARLING_CUDA.
#pragma once

#include "node/base/result.h"
#include "training/step_bench.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

namespace starling::training::cuda {

// A pair of events on the stream that trains. One thread.
class StepTimer {
 public:
  explicit StepTimer(c10::cuda::CUDAStream stream) : stream_(stream) {}

  void begin() { begin_.record(stream_); }
  // Milliseconds since begin(), by the device's clock; waits for what was launched before.
  [[nodiscard]] double end_ms();

 private:
  c10::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent begin_{cudaEventDefault};
  at::cuda::CUDAEvent end_{cudaEventDefault};
};

// What the card does at its best in this very minute: a bf16 product of two matrices of 8,192 x
// 8,192 random values, and a copy. Figures are means of twenty, five of them.
//
// Errors:  unsupported, no_memory, device_failed.
// Cost:    0.4 GB of device memory for the product, then 16 GB for the copy (or half of what is
//          free), given back.
[[nodiscard]] Result<DeviceStepFigures> measure_ceilings(int device);

// Most bytes that LibTorch's allocator has held on the device so far.
[[nodiscard]] std::size_t peak_bytes(int device);

}  // namespace starling::training::cuda
