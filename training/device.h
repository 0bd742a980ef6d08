// Which device computes, in which precision, on how many threads. Free of torch, so that any folder
// may include it.
#pragma once

#include "node/base/result.h"
#include "training/models/plan.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace starling::training {

enum class Precision : std::uint8_t {
  automatic,  // see resolve_device()
  fp32,
  bf16,  // convolutions in bf16; master, normalisations, last layer and loss in fp32
};

struct DeviceOptions {
  // auto, cpu, cuda or cuda:N. auto is the first CUDA device if this build and machine have one.
  std::string device = "auto";
  Precision precision = Precision::automatic;
  // Threads that compute on the CPU, each its own slice of a batch (evaluating: inside the
  // operations). More than cores makes every step slower.
  int threads = 1;
};

// What the options come to on this machine and for this model.
struct ResolvedDevice {
  bool cuda = false;
  int index = 0;                          // of the CUDA device
  Precision precision = Precision::fp32;  // never automatic
  int threads = 1;
};

// Rule:    automatic precision is bf16 on CUDA and on CPUs with bf16 instructions (on a Zen 5 core
// the
//          small net trains at 937 images a second in bf16, 453 in fp32), and fp32 elsewhere.
// Errors:  bad_config for an unknown device text or a thread count outside 1..1024; unsupported if
//          CUDA is asked for and this build or machine has none.
[[nodiscard]] Result<ResolvedDevice> resolve_device(const DeviceOptions& options);

[[nodiscard]] std::string_view name_of(Precision precision);
// "cpu", "cuda:0".
[[nodiscard]] std::string name_of(const ResolvedDevice& device);
// auto, fp32 or bf16. Errors: bad_config.
[[nodiscard]] Result<Precision> parse_precision(std::string_view text);

// "2.11.0", for `starling version`.
[[nodiscard]] std::string libtorch_version();

}  // namespace starling::training
