// How fast this machine trains: the figures behind `starling bench step`.
#pragma once

#include "node/base/result.h"
#include "training/device.h"
#include "training/models/plan.h"

#include <cstddef>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace starling::training {

struct StepBenchOptions {
  ModelSpec model;
  std::size_t batch = 16;
  DeviceOptions device;
  // Steps that nobody counts: LibTorch makes its kernels, memory is mapped; a GPU's algorithms are
  // chosen and its graph is captured.
  int warmup = 2;
  int blocks = 5;             // every figure is given once a block; 1 to 1,000
  int steps = 3;              // in a block
  std::stop_token stop = {};  // ends it: within a step on a CPU, behind one on a GPU
};

// One block of steps.
struct StepBlock {
  double images_per_second = 0;     // of the wall clock
  double cpu_seconds_per_step = 0;  // user and system, all threads of the process
  double faults_per_step = 0;       // minor page faults
  double optimizer_seconds = 0;     // of a step, holding the master
};

// What only a GPU has. One value for each block or repeat.
struct DeviceStepFigures {
  std::string gpu;
  std::string clocks;
  // Ceilings, measured before the steps.
  std::vector<double> product_tflop_per_s;  // bf16, matrices of 8,192 x 8,192
  std::vector<double> copy_gb_per_s;        // read and written
  std::size_t copy_bytes = 0;
  std::vector<double> step_ms;  // of a block's steps, by events on the stream that trains
  std::size_t peak_bytes = 0;   // that LibTorch's allocator held
};

struct StepBenchReport {
  ResolvedDevice device;
  std::optional<DeviceStepFigures> gpu;  // only there
  std::size_t slices = 1;                // that a batch is computed in, with gradients of their own
  std::vector<StepBlock> blocks;
  double first_step_seconds = 0;  // the first of the warm-up
  double loss = 0;                // of the last step: finite, or the figures are worth nothing
};

// Trains a fresh replica on random pixels, four batches in turn, through the very code of a run
// (forward, backward, check of the gradients, optimizer pass under the lease); no data is loaded.
// On a GPU the batches are bytes in pinned memory, each copied while the one before is computed.
//
// Errors:  those of make_model() and resolve_device(); bad_argument for a size or count of zero;
//          device_failed, no_memory; cancelled.
// Thread:  the caller's, for as long as it takes; it should be alone on the machine.
[[nodiscard]] Result<StepBenchReport> bench_steps(const StepBenchOptions& options);

}  // namespace starling::training
