#include "training/device.h"

#include "training/data/loader.h"
#include "training/torch_guard.h"

#ifdef STARLING_CUDA
#include "training/cuda/pinned_memory.h"

#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#endif

#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ranges>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace starling::training {
namespace {

constexpr int kMaxThreads = 1'024;
#ifdef STARLING_CUDA
constexpr int kLeastCapability = 8;
#endif

std::unexpected<Error> bad_device(std::string what) {
  return fail(Errc::bad_config, Doing::building_model, std::move(what));
}

std::unexpected<Error> unknown_device(std::string_view text) {
  return bad_device("device is \"" + std::string(text) +
                    "\", expected auto, cpu, cuda, cuda:N or cuda:N,M");
}

// The CUDA devices that a text like "cuda:1" or "cuda:0,1" names.
Result<std::vector<int>> cuda_indices(std::string_view text) {
  constexpr std::string_view kPrefix = "cuda:";
  if (text == "cuda") return std::vector<int>{0};
  if (!text.starts_with(kPrefix) || text.size() == kPrefix.size()) return unknown_device(text);
  std::vector<int> indices;
  for (const auto part : std::views::split(text.substr(kPrefix.size()), ',')) {
    const std::string_view digits(part.begin(), part.end());
    int index = 0;
    const auto [end, problem] =
        std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (problem != std::errc{} || end != digits.data() + digits.size() || index < 0)
      return unknown_device(text);
    if (std::ranges::find(indices, index) != indices.end())
      return bad_device("device is \"" + std::string(text) +
                        "\", which names cuda:" + std::to_string(index) + " twice");
    indices.push_back(index);
  }
  return indices;
}

int cuda_devices() {
#ifdef STARLING_CUDA
  return static_cast<int>(torch::cuda::device_count());
#else
  return 0;
#endif
}

#ifdef STARLING_CUDA
std::string cuda_version(int number) {
  return std::to_string(number / 1'000) + "." + std::to_string(number % 1'000 / 10);
}

// What keeps this process from all GPUs of the machine, if it is the driver: LibTorch counts no
// devices then, as where there are none.
std::string old_driver() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  int driver = 0;
  int runtime = 0;
  const bool known = cudaDriverGetVersion(&driver) == cudaSuccess &&
                     cudaRuntimeGetVersion(&runtime) == cudaSuccess;
  // The runtime keeps the error, and the next launch of this thread would be told of it.
  (void)cudaGetLastError();
  // The same error is said where there is no driver at all, whose version is 0 then.
  if (found != cudaErrorInsufficientDriver || !known || driver == 0) return {};
  return "the NVIDIA driver is too old: it knows CUDA " + cuda_version(driver) +
         ", this build needs CUDA " + cuda_version(runtime) +
         ": update the driver, or choose --device cpu";
}

std::string no_gpu() {
  return "this build is for a GPU and sees none: give it one (in a container, see "
         "deploy/README.md), or choose --device cpu";
}
#else
std::string old_driver() { return {}; }
std::string no_gpu() { return {}; }
#endif

// Whether the kernels run on a device that is there.
#ifdef STARLING_CUDA
Result<void> check_capability(int index) {
  return guarded(Doing::building_model, [&]() -> Result<void> {
    const cudaDeviceProp& found =
        *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
    if (found.major >= kLeastCapability) return {};
    return fail(Errc::unsupported, Doing::building_model,
                "cuda:" + std::to_string(index) + " (" + found.name + ") has compute capability " +
                    std::to_string(found.major) + "." + std::to_string(found.minor) +
                    ", Starling needs 8.0 or later: choose another --device, or cpu");
  });
}
#else
Result<void> check_capability(int /*index*/) { return {}; }
#endif

// Before main(), because the environment is not to be written once there are threads.
[[gnu::constructor]] void limit_onednn() {
  if (cpu_hides_tiles()) (void)::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", /*overwrite=*/0);
}

}  // namespace

bool cpu_hides_tiles() {
#if defined(__x86_64__)
  // Intel, Software Developer's Manual, volume 2A, CPUID: leaf 7 announces AMX-TILE, leaf 1DH has
  // the highest palette of tile sizes, which is at least 1.
  constexpr unsigned kFeatures = 7;
  constexpr unsigned kTiles = 0x1D;
  constexpr unsigned kAmxTile = 1U << 24U;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (::__get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) == 0 || (d & kAmxTile) == 0) return false;
  return ::__get_cpuid_count(kTiles, 0, &a, &b, &c, &d) == 0 || a == 0;
#else
  return false;
#endif
}

bool cpu_has_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

bool cpu_has_tiles() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("amx-bf16") != 0 && !cpu_hides_tiles();
#else
  return false;
#endif
}

Result<ResolvedDevice> resolve_device(const DeviceOptions& options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return bad_device("threads is " + std::to_string(options.threads) + ", expected 1 to " +
                      std::to_string(kMaxThreads));
  }
  ResolvedDevice resolved;
  resolved.threads = options.threads;
  const int devices = options.device == "cpu" ? 0 : cuda_devices();
  if (options.device == "auto") {
    resolved.cuda = devices > 0 && check_capability(0).has_value();
  } else if (options.device != "cpu") {
    TRY(const std::vector<int> indices, cuda_indices(options.device));
    if (std::ranges::max(indices) >= devices) {
#ifdef STARLING_CUDA
      std::string reason = devices == 0 ? old_driver() : std::string();
      if (reason.empty()) reason = "this machine has " + std::to_string(devices) + " CUDA devices";
#else
      const std::string reason = "this build has no CUDA (STARLING_CUDA=OFF)";
#endif
      return fail(Errc::unsupported, Doing::building_model,
                  "device " + options.device + ": " + reason);
    }
    for (const int index : indices) TRY_VOID(check_capability(index));
    resolved.cuda = true;
    resolved.index = indices.front();
    resolved.others.assign(indices.begin() + 1, indices.end());
  }
  resolved.precision = options.precision;
  if (options.precision == Precision::automatic) {
    const bool worth_it = resolved.cuda || cpu_has_bf16();
    resolved.precision = worth_it ? Precision::bf16 : Precision::fp32;
  }
  return resolved;
}

std::string refused_gpu(const DeviceOptions& options) {
  if (options.device != "auto") return {};
  if (cuda_devices() == 0) {
    const std::string reason = old_driver();
    return reason.empty() ? no_gpu() : reason;
  }
  const Result<void> capable = check_capability(0);
  return capable ? std::string() : capable.error().detail;
}

Result<void> suit_loader(LoaderOptions& loader, const DeviceOptions& options) {
  TRY(const ResolvedDevice device, resolve_device(options));
  loader.form = device.cuda ? BatchForm::pixels : BatchForm::floats;
#ifdef STARLING_CUDA
  if (device.cuda) loader.memory = cuda::pinned_memory(device.index);
#endif
  return {};
}

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::automatic:
      return "auto";
    case Precision::fp32:
      return "fp32";
    case Precision::bf16:
      return "bf16";
  }
  return "?";
}

std::string name_of(const ResolvedDevice& device) {
  if (!device.cuda) return "cpu";
  std::string name = "cuda:" + std::to_string(device.index);
  for (const int other : device.others) name += "," + std::to_string(other);
  return name;
}

std::string libtorch_version() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + "." +
         std::to_string(TORCH_VERSION_PATCH);
}

}  // namespace starling::training
