// `starling bench data`: what the loader prepares when nothing else wants the machine.
//
// A training pass over --data, read, decoded, cropped, mirrored and normalised by the loader's own
// threads; the caller only waits for batches and gives their memory back.
#include "node/base/clock.h"
#include "node/bench/bench.h"
#include "training/data/dataset.h"
#include "training/data/loader.h"
#include "training/data/spec.h"

#include <algorithm>
#include <array>

namespace starling::node::bench {

namespace {

struct Plan {
  training::LoaderOptions loader;
  std::uint64_t steps = 0;
  std::uint64_t repeats = 0;
};

Result<training::DataSets> open(const Config& config, Log& log) {
  if (config.data.train.empty())
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                "bench data reads no data without --data SPEC");
  return training::open_data(config.data.train, {}, log);
}

Result<Plan> plan_of(const Arguments& arguments, const training::Dataset& data) {
  TRY(const auto steps, count_of(arguments, {"--steps", 16, 1, 100'000}));
  TRY(const auto repeats, count_of(arguments, {"--repeats", 7, 1, 10'000}));
  const Config& config = arguments.config;
  const std::uint32_t target =
      config.train.img.value_or(training::default_image_size(data.uniform_size()));
  auto loader =
      training::loader_options_for(data, training::Pass::training, target, data.channels());
  loader.batch = config.train.batch.value_or(64);
  loader.threads = config.data.threads.value_or(1);
  loader.max_bad = config.data.max_bad;
  return Plan{std::move(loader), steps, repeats};
}

// Takes so many batches; the images in them.
Result<std::size_t> take(training::Loader& loader, std::uint64_t batches) {
  std::size_t images = 0;
  for (std::uint64_t i = 0; i < batches; ++i) {
    TRY(auto batch, loader.next());
    images += batch->size;  // a training pass never ends
    loader.recycle(std::move(*batch));
  }
  return images;
}

Result<Json> measure_data(const Arguments& arguments, const Terminal& /*terminal*/) {
  NullLog log;
  TRY(const auto sets, open(arguments.config, log));
  const training::Dataset& data = *sets.train;
  TRY(const Plan plan, plan_of(arguments, data));
  training::Loader loader(data, plan.loader, log);
  // Batches that lay ready before the clock started would count as free.
  TRY_VOID(take(loader, plan.loader.prefetch + 1));

  Repeats per_s, per_cpu_s, cpu_ms;
  for (std::uint64_t i = 0; i < plan.repeats; ++i) {
    const Cost before = process_cost();
    TRY(const auto taken, take(loader, plan.steps));
    const Cost after = process_cost();
    const auto images = static_cast<double>(taken);
    const double cpu_s = after.cpu_s - before.cpu_s;
    // A few small batches that lay ready take less than the clock can tell: as much as it can,
    // then.
    per_s.add(images / std::max(after.wall_s - before.wall_s, seconds(Duration{1})));
    per_cpu_s.add(cpu_s > 0 ? images / cpu_s : 0);
    cpu_ms.add(1e3 * cpu_s / images);
  }
  return Json{{"params",
               {{"data", data.name()},
                {"samples", data.size()},
                {"img", plan.loader.target},
                {"channels", plan.loader.channels},
                {"batch", plan.loader.batch},
                {"threads", plan.loader.threads},
                {"steps", plan.steps},
                {"repeats", plan.repeats}}},
              {"images_per_s", per_s.json()},
              {"images_per_cpu_s", per_cpu_s.json()},
              {"image_cpu_ms", cpu_ms.json()},
              {"batch_bytes", plan.loader.batch * plan.loader.target * plan.loader.target *
                                  plan.loader.channels * sizeof(float)},
              {"bad_samples", loader.bad_samples()}};
}

constexpr std::array<std::string_view, 2> kDataFlags{"--steps", "--repeats"};
constexpr std::array<std::string_view, 5> kDataKeys{"data.train", "data.threads", "data.max_bad",
                                                    "train.img", "train.batch"};

}  // namespace

constinit const Bench kDataBench{
    "data", "The loader: read, decode, crop, mirror, normalise; images a second.", kDataFlags,
    kDataKeys, &measure_data};

}  // namespace starling::node::bench
