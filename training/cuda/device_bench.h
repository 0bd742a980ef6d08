// How long the kernels of a GPU take: the figures behind `starling bench optim|codec --device
// cuda`, by CUDA events.
#pragma once

#include "gossip/delta/layout.h"
#include "gossip/delta/level.h"
#include "node/base/result.h"

#include <cstddef>
#include <string>
#include <vector>

namespace starling::training::cuda {

// Thirty turns that nobody counts, then `repeats` of twenty each; a figure is the mean of twenty.
struct DeviceBenchOptions {
  int device = 0;
  int repeats = 5;
};

struct DeviceNames {
  std::string name;
  // "SM 1980 MHz, memory 3201 MHz at most": what the runtime knows. The present ones are NVML's,
  // which is not linked: nvidia-smi tells them.
  std::string clocks;
};
// Errors:  unsupported where there is no such device; device_failed.
[[nodiscard]] Result<DeviceNames> describe_device(int device);

struct CopyFigures {
  std::size_t bytes = 0;         // of one copy: 8 GB, or a quarter of the memory that is free
  std::vector<double> gb_per_s;  // bytes read and written, one figure for each repeat
};
// A copy from device to device: what memory does at its best.
//
// Errors:  as describe_device(), and no_memory.
[[nodiscard]] Result<CopyFigures> bench_copy(const DeviceBenchOptions& options);

// Milliseconds, one for each repeat.
struct DeviceOptimFigures {
  CopyFigures copy;
  std::vector<double> fp32_ms;  // the optimizer pass with its working copy
  std::vector<double> bf16_ms;
};
// The optimizer pass over n parameters with random values (rounded up to a multiple of 16).
//
// Errors:  as describe_device(), and no_memory.
[[nodiscard]] Result<DeviceOptimFigures> bench_optimizer(std::size_t n,
                                                         const DeviceBenchOptions& options);

struct DeviceCodecFigures {
  std::size_t bytes = 0;            // of the last delta
  std::vector<double> encode_ms;    // kernels alone
  std::vector<double> encoded_ms;   // until the bytes are in host memory, by the host's clock
  std::vector<double> exchange_ms;  // upload, kernels and the norm, by the host's clock
};
// Encodes and applies deltas of a replica that drifts from its reference.
//
// Errors:  as bench_optimizer().
[[nodiscard]] Result<DeviceCodecFigures> bench_codec(const gossip::Layout& layout,
                                                     gossip::Level level,
                                                     const DeviceBenchOptions& options);

}  // namespace starling::training::cuda
