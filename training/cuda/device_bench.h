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
  std::string clocks;  // "SM 1980 MHz, memory 3201 MHz": the card's highest
};
// Errors:  unsupported where there is no such device; device_failed.
[[nodiscard]] Result<DeviceNames> describe_device(int device);

// Milliseconds, one for each repeat.
struct DeviceOptimFigures {
  std::vector<double> copy_gb_per_s;  // 4 GB from device to device: bytes read and written
  std::vector<double> fp32_ms;        // the optimizer pass with its working copy
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
