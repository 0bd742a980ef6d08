// `starling bench optim`: the optimizer pass over a flat arena, working copy included, one thread;
// with --device cuda a GPU's, beside a copy on the device.
#include "gossip/delta/flat_vector.h"
#include "node/base/random.h"
#include "node/bench/bench.h"
#include "node/bench/device.h"
#include "training/optimizer.h"

#include <array>
#include <vector>

namespace starling::node::bench {

namespace {

using gossip::FlatVector;
using training::Bf16;

// Gradients and working copy in the type that the network computes with, on the memory of a
// FlatVector, which has huge pages.
template <class T>
std::span<T> as(FlatVector& vector, std::size_t n) {
  return {reinterpret_cast<T*>(vector.values().data()), n};
}

float uniform(Rng& rng) { return static_cast<float>(rng.unit()) - 0.5F; }
void set(float& out, float value) { out = value; }
void set(Bf16& out, float value) { out = training::to_bf16(value); }

template <class T>
Result<Json> measure_type(std::size_t n, std::uint64_t repeats) {
  TRY(FlatVector x, FlatVector::make(n));
  TRY(FlatVector v, FlatVector::make(n));
  TRY(FlatVector g_memory, FlatVector::make(n));
  TRY(FlatVector w_memory, FlatVector::make(n));
  const auto g = as<T>(g_memory, n);
  const auto w = as<T>(w_memory, n);
  Rng rng(20'260'102);
  for (float& value : x.values()) value = uniform(rng);
  for (T& value : g) set(value, uniform(rng));

  const auto bytes = static_cast<double>(optimizer_pass_bytes(n, sizeof(T)));
  const training::SgdStep step{.learning_rate = 1e-3F, .momentum = 0.9F, .weight_decay = 5e-5F};
  Repeats pass_ms, pass_cpu_ms, floor_ms, over_floor;
  for (int i = -kWarmUps; i < static_cast<int>(repeats); ++i) {
    // A triad moves 12 bytes a value; the floor is the time in which it would move what the pass
    // does.
    const Cost moving = cost_of([&] { triad(v.values(), x.values()); });
    const double floor_s = moving.cpu_s * bytes / (12.0 * static_cast<double>(n));
    const Cost pass = cost_of(
        [&] { training::sgd_pass(training::SgdRange<T>{x.values(), g, v.values(), w}, step); });
    if (i < 0) continue;
    pass_ms.add(1e3 * pass.wall_s);
    pass_cpu_ms.add(1e3 * pass.cpu_s);
    floor_ms.add(1e3 * floor_s);
    over_floor.add(floor_s > 0 ? pass.cpu_s / floor_s : 0);
  }
  return Json{{"step_ms", pass_ms.json()},
              {"cpu_ms", pass_cpu_ms.json()},
              {"floor_cpu_ms", floor_ms.json()},
              {"over_floor", over_floor.json()},
              {"bytes", static_cast<std::uint64_t>(bytes)},
              {"gb_per_s", rounded(bytes / (1e6 * pass_ms.median()))}};
}

Result<Json> measure_optim(const Arguments& arguments, const Terminal& /*terminal*/) {
  TRY(const auto n, count_of(arguments, {"--n", kResnet50Parameters, 1, std::uint64_t{1} << 30}));
  TRY(const auto repeats, count_of(arguments, {"--repeats", 21, 1, 10'000}));
  if (const auto device = device_asked_for(arguments))
    return measure_device_optim(*device, n, repeats);
  Json report{{"params", {{"n", n}, {"repeats", repeats}, {"threads", 1}}}};
  TRY(report["bf16"], measure_type<Bf16>(n, repeats));
  TRY(report["fp32"], measure_type<float>(n, repeats));
  return report;
}

constexpr std::array<std::string_view, 2> kOptimFlags{"--n", "--repeats"};
constexpr std::array<std::string_view, 1> kOptimKeys{"train.device"};

}  // namespace

constinit const Bench kOptimBench{
    "optim", "Optimizer pass with its working copy, against a triad; one thread, or a GPU.",
    kOptimFlags, kOptimKeys, &measure_optim};

}  // namespace starling::node::bench
