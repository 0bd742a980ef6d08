// DIR/precision: in which precision this machine computes a step for less, measured once.
#pragma once

#include "node/base/log.h"
#include "training/device.h"
#include "training/models/plan.h"

#include <cstddef>
#include <filesystem>
#include <stop_token>
#include <string>

namespace starling::node {

// What is going to be computed, and a wish to end the measuring early.
struct PrecisionQuestion {
  training::DeviceOptions device;
  training::ModelSpec model;
  std::size_t batch = 1;
  std::stop_token stop;
};

// What `automatic` comes to, and why, in words for a person.
struct PrecisionChoice {
  training::Precision precision = training::Precision::fp32;
  std::string why;
};

// The precision for a run; only an automatic one is chosen here.
//
// Rule:    bf16 on CUDA; fp32 on a CPU without bf16 instructions; else what was measured to need
//          less processor time: bf16 halves the time of a large convolution where the CPU has
//          matrix units, and may lose to its conversions on small images. The measurement of the
//          same model, batch, threads, CPU and LibTorch that `file` holds is taken again.
// Errors:  none: where nothing can be measured or kept, the log says so and bf16 is taken. Stopped,
//          it returns within a step and keeps nothing.
// Cost:    training::measure_precisions() the first time. Thread: any but the io thread's.
[[nodiscard]] PrecisionChoice choose_precision(const PrecisionQuestion& question,
                                               const std::filesystem::path& file, Log& log);

}  // namespace starling::node
