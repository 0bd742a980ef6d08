#include "training/cuda/device_bench.h"

#include "node/base/clock.h"
#include "node/base/random.h"
#include "training/cuda/device_codec.h"
#include "training/cuda/launch_optimizer.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace starling::training::cuda {

namespace {

constexpr int kWarmUps = 30;
constexpr int kTurns = 20;
constexpr std::uint64_t kSeed = 20'260'102;

// A pair of events around work on a stream.
class Stopwatch {
 public:
  [[nodiscard]] static Result<Stopwatch> make() {
    Stopwatch watch;
    for (cudaEvent_t* event : {&watch.begin_, &watch.end_})
      TRY_VOID(checked(cudaEventCreate(event), Doing::training));
    return watch;
  }
  Stopwatch(Stopwatch&& other) noexcept
      : begin_(std::exchange(other.begin_, nullptr)), end_(std::exchange(other.end_, nullptr)) {}
  Stopwatch& operator=(Stopwatch&&) = delete;
  ~Stopwatch() {
    for (cudaEvent_t event : {begin_, end_})
      if (event != nullptr) (void)cudaEventDestroy(event);
  }

  // Milliseconds of one turn: the mean of kTurns.
  [[nodiscard]] Result<double> measure(cudaStream_t stream,
                                       const std::function<Result<void>()>& turn) {
    TRY_VOID(checked(cudaEventRecord(begin_, stream), Doing::training));
    for (int i = 0; i < kTurns; ++i) TRY_VOID(turn());
    TRY_VOID(checked(cudaEventRecord(end_, stream), Doing::training));
    TRY_VOID(checked(cudaEventSynchronize(end_), Doing::training));
    float all = 0;
    TRY_VOID(checked(cudaEventElapsedTime(&all, begin_, end_), Doing::training));
    return static_cast<double>(all) / kTurns;
  }
  [[nodiscard]] Result<std::vector<double>> repeat(cudaStream_t stream, int repeats,
                                                   const std::function<Result<void>()>& turn) {
    for (int i = 0; i < kWarmUps; ++i) TRY_VOID(turn());
    std::vector<double> figures;
    for (int i = 0; i < repeats; ++i) {
      TRY(const double figure, measure(stream, turn));
      figures.push_back(figure);
    }
    return figures;
  }

 private:
  Stopwatch() = default;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Random values, never zeros: those run faster.
template <class T>
Result<DeviceArray<T>> random_array(std::size_t n, Rng& rng, double spread) {
  std::vector<T> host(n);
  for (T& value : host) narrow(static_cast<float>((rng.unit() - 0.5) * spread), value);
  TRY(DeviceArray<T> array, DeviceArray<T>::make(n, Doing::training));
  TRY_VOID(checked(cudaMemcpy(array.get(), host.data(), n * sizeof(T), cudaMemcpyHostToDevice),
                   Doing::training));
  // The bytes may still be on their way, and not every stream waits for them.
  TRY_VOID(checked(cudaStreamSynchronize(nullptr), Doing::training));
  return array;
}

template <class T>
Result<std::vector<double>> measure_pass(std::size_t n, int repeats, Stopwatch& watch) {
  Rng rng(kSeed);
  TRY(const auto x, random_array<float>(n, rng, 1));
  TRY(const auto g, random_array<T>(n, rng, 1));
  TRY(const auto v, random_array<float>(n, rng, 1));
  TRY(const auto w, random_array<T>(n, rng, 1));
  TRY(const auto rate, random_array<float>(1, rng, 1e-3));
  TRY(const auto refused, DeviceArray<std::uint32_t>::make(1, Doing::training));
  TRY_VOID(checked(cudaMemset(refused.get(), 0, sizeof(std::uint32_t)), Doing::training));
  const SgdArgs<T> args{x.get(),    g.get(),       v.get(), w.get(), n,
                        rate.get(), refused.get(), 0.9F,    5e-5F};
  return watch.repeat(nullptr, repeats,
                      [&] { return checked(launch_sgd(args, nullptr), Doing::training); });
}

// Whole pieces of random values, as many as there is room for.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kCopyBytes = 8'000'000'000 / kPieceBytes * kPieceBytes;

Result<CopyFigures> measure_copy(int repeats, Stopwatch& watch) {
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  TRY_VOID(checked(cudaMemGetInfo(&free_bytes, &all_bytes), Doing::training));
  CopyFigures figures;
  figures.bytes = std::min(kCopyBytes, free_bytes / 4 / kPieceBytes * kPieceBytes);
  if (figures.bytes == 0)
    return fail(Errc::no_memory, Doing::training,
                "the GPU has " + std::to_string(free_bytes) + " bytes free, too few for a copy");
  Rng rng(kSeed);
  TRY(const auto pattern, random_array<float>(kPieceBytes / sizeof(float), rng, 1));
  TRY(const auto from, DeviceArray<std::uint8_t>::make(figures.bytes, Doing::training));
  TRY(const auto to, DeviceArray<std::uint8_t>::make(figures.bytes, Doing::training));
  for (std::size_t at = 0; at < figures.bytes; at += kPieceBytes)
    TRY_VOID(
        checked(cudaMemcpy(from.get() + at, pattern.get(), kPieceBytes, cudaMemcpyDeviceToDevice),
                Doing::training));
  TRY(figures.gb_per_s, watch.repeat(nullptr, repeats, [&] {
    return checked(
        cudaMemcpyAsync(to.get(), from.get(), figures.bytes, cudaMemcpyDeviceToDevice, nullptr),
        Doing::training);
  }));
  for (double& figure : figures.gb_per_s)
    figure = 2.0 * static_cast<double>(figures.bytes) / (1e6 * figure);
  return figures;
}

}  // namespace

Result<DeviceNames> describe_device(int device) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  if (device >= devices)
    return fail(Errc::unsupported, Doing::training,
                "this machine has " + std::to_string(devices) +
                    " CUDA devices that this process can use, cuda:" + std::to_string(device) +
                    " is none of them: see nvidia-smi, or leave out --device");
  TRY_VOID(checked(cudaSetDevice(device), Doing::training));
  cudaDeviceProp found{};
  int clock = 0;
  int memory_clock = 0;
  TRY_VOID(checked(cudaGetDeviceProperties(&found, device), Doing::training));
  TRY_VOID(checked(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, device), Doing::training));
  TRY_VOID(checked(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, device),
                   Doing::training));
  return DeviceNames{found.name, "SM " + std::to_string(clock / 1'000) + " MHz, memory " +
                                     std::to_string(memory_clock / 1'000) + " MHz at most"};
}

Result<CopyFigures> bench_copy(const DeviceBenchOptions& options) {
  TRY_VOID(describe_device(options.device));
  TRY(Stopwatch watch, Stopwatch::make());
  return measure_copy(options.repeats, watch);
}

Result<DeviceOptimFigures> bench_optimizer(std::size_t n, const DeviceBenchOptions& options) {
  TRY_VOID(describe_device(options.device));
  TRY(Stopwatch watch, Stopwatch::make());
  const std::size_t padded = (n + 15) / 16 * 16;
  DeviceOptimFigures figures;
  TRY(figures.copy, measure_copy(options.repeats, watch));
  TRY(figures.fp32_ms, measure_pass<float>(padded, options.repeats, watch));
  TRY(figures.bf16_ms, measure_pass<Bf16>(padded, options.repeats, watch));
  return figures;
}

Result<DeviceCodecFigures> bench_codec(const gossip::Layout& layout, gossip::Level level,
                                       const DeviceBenchOptions& options) {
  TRY_VOID(describe_device(options.device));
  TRY(DeviceCodec codec, DeviceCodec::make(layout));
  Rng rng(kSeed);
  TRY(const auto x, random_array<float>(layout.size(), rng, 1e-3));
  TRY(const auto fresh, random_array<float>(layout.size(), rng, 1e-3));
  TRY(const auto r, DeviceArray<float>::make(layout.size(), Doing::training));
  const SteadyClock clock;
  DeviceCodecFigures figures;
  gossip::Carry carry;
  for (int repeat = -3; repeat < options.repeats; ++repeat) {
    // As far apart every time.
    TRY_VOID(codec.copy(fresh.get(), r.get(), layout.size()));
    const TimePoint begin = clock.now();
    TRY(const gossip::Encoded own, codec.encode({x.get()}, r.get(), level, carry));
    const TimePoint encoded = clock.now();
    TRY(const gossip::DeltaView view, gossip::parse_delta(layout, level, own.bytes));
    const TimePoint parsed = clock.now();
    TRY_VOID(codec.apply({view, view, gossip::Side::lower}, 0.5F, {x.get()}, r.get()));
    if (repeat < 0) continue;
    figures.bytes = own.bytes.size();
    figures.encoded_ms.push_back(1e3 * seconds(encoded - begin));
    figures.exchange_ms.push_back(1e3 * seconds(clock.now() - parsed));
  }
  TRY(Stopwatch watch, Stopwatch::make());
  TRY(figures.encode_ms, watch.repeat(codec.stream(), options.repeats, [&] {
    return codec.launch_encode_only({x.get()}, fresh.get(), level);
  }));
  return figures;
}

}  // namespace starling::training::cuda
