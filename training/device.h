// Which device computes, in which precision, on how many threads. Free of torch, so that any folder
// may include it.
#pragma once

#include "node/base/result.h"
#include "training/models/plan.h"

#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace starling::training {

struct LoaderOptions;

enum class Precision : std::uint8_t {
  automatic,  // see resolve_device(); a node measures
  fp32,
  bf16,  // convolutions in bf16; master, normalisations, last layer and loss in fp32
};

struct DeviceOptions {
  // auto, cpu, cuda or cuda:N, or several as cuda:N,M. auto is the first CUDA device if this build
  // and machine have one that is new enough.
  std::string device = "auto";
  Precision precision = Precision::automatic;
  // Threads that compute on the CPU, each its own slice of a batch (evaluating: inside the
  // operations). More than cores makes every step slower.
  int threads = 1;
};

// What the options come to on this machine and for this model.
struct ResolvedDevice {
  bool cuda = false;
  int index = 0;                          // of the CUDA device that has the master
  std::vector<int> others = {};           // CUDA devices that compute slices of its batches
  Precision precision = Precision::fp32;  // never automatic
  int threads = 1;
};

// Rule:    automatic precision is bf16 on CUDA and on CPUs with bf16 instructions, and fp32
//          elsewhere. Which one is faster depends on the model: a node asks node/precision.h first.
// Errors:  bad_config for an unknown device text, a device named twice or a thread count outside
//          1..1024; unsupported if CUDA is asked for and this build or machine has none, if its
//          driver is older than this build's CUDA, or if a GPU is older than what the kernels are
//          compiled for (compute capability 8.0, the first with bf16).
[[nodiscard]] Result<ResolvedDevice> resolve_device(const DeviceOptions& options);

// Why `auto` takes no GPU although this machine has one (its driver or it is too old), or although
// this build is for one. Empty where it is taken, in a build without CUDA, and for every other
// device.
[[nodiscard]] std::string refused_gpu(const DeviceOptions& options);

// Makes batches what the device takes: pixels in pinned memory for a GPU, which crops, resizes and
// normalises by itself; floats for a CPU. The images are the same.
//
// Errors:  those of resolve_device().
[[nodiscard]] Result<void> suit_loader(LoaderOptions& loader, const DeviceOptions& options);

// Whether this CPU computes with bf16 at all: without, nothing needs to be measured.
[[nodiscard]] bool cpu_has_bf16();

// Whether this CPU announces matrix tiles (AMX) and tells nothing of their sizes, as under some
// hypervisors: CPUID has the flag, and zeros in the leaf that describes them.
//
// oneDNN, which computes LibTorch's bf16, believes the flag; the process would then end by SIGILL
// or convolutions fail. So before main() it is limited to AVX-512 where that is so:
// ONEDNN_MAX_CPU_ISA is set, unless the environment has it.
[[nodiscard]] bool cpu_hides_tiles();

// Whether this CPU multiplies tiles of bf16 matrices (AMX), and oneDNN does.
[[nodiscard]] bool cpu_has_tiles();

// What a sample costs on this CPU in each precision: processor time, which other programs on the
// same cores hardly change, in seconds.
struct PrecisionCost {
  double fp32 = 0;
  double bf16 = 0;
  [[nodiscard]] Precision cheaper() const {
    return fp32 < bf16 ? Precision::fp32 : Precision::bf16;
  }
};

// Trains a few steps of a few samples in both, on random pixels.
//
// Errors:  those of make_model(); bad_argument for a batch of 0; no_memory, cancelled.
// Cost:    two steps of at most 8 samples a thread in each precision (ResNet-50 at 224 pixels: some
//          five seconds), four more where they cost about the same. Their memory is given back, but
//          for tensors in bf16 where that is cheaper: training takes it next.
[[nodiscard]] Result<PrecisionCost> measure_precisions(const ModelSpec& model, std::size_t batch,
                                                       int threads, std::stop_token stop);

[[nodiscard]] std::string_view name_of(Precision precision);
// "cpu", "cuda:0".
[[nodiscard]] std::string name_of(const ResolvedDevice& device);

// "2.11.0", for `starling version`.
[[nodiscard]] std::string libtorch_version();

}  // namespace starling::training
