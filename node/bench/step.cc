// `starling bench step`: training steps on random pixels, through the code of a run; no data is
// loaded, no neighbour is there.
#include "node/bench/torch_bench.h"
#include "node/options.h"
#include "node/training_settings.h"
#include "training/models/tensor_table.h"
#include "training/step_bench.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace starling::node::bench {

namespace {

constexpr int kDeviceWarmUp = 30;

Result<training::StepBenchOptions> options_of(const Arguments& arguments) {
  const Config& config = arguments.config;
  TRY(const auto classes, count_of(arguments, {"--classes", 1'000, 1, 100'000}));
  // A GPU's steps are short, and its clocks and algorithms settle late.
  TRY(const auto device, training::resolve_device(device_options(config)));
  const std::uint64_t usual_steps = device.cuda ? 20 : 3;
  TRY(const auto steps, count_of(arguments, {"--steps", usual_steps, 1, 10'000}));
  TRY(const auto repeats, count_of(arguments, {"--repeats", 5, 1, 1'000}));
  training::StepBenchOptions options;
  options.model.name = config.train.model;
  options.model.classes = static_cast<std::int64_t>(classes);
  options.model.image_size = config.train.img.value_or(224);
  options.batch = batch_of(config, options.model);
  options.device = device_options(config);
  if (device.cuda) options.warmup = kDeviceWarmUp;
  options.steps = static_cast<int>(steps);
  options.blocks = static_cast<int>(repeats);
  return options;
}

Json of_repeats(const std::vector<double>& values) {
  Repeats repeats;
  for (const double value : values) repeats.add(value);
  return repeats.json();
}

// What only a GPU has; `images_per_s` again, by the device's clock.
Json device_json(const training::DeviceStepFigures& figures, std::size_t batch) {
  Repeats images_per_s;
  for (const double ms : figures.step_ms) images_per_s.add(1e3 * static_cast<double>(batch) / ms);
  return Json{{"name", figures.gpu},
              {"clocks", figures.clocks},
              {"step_ms", of_repeats(figures.step_ms)},
              {"images_per_s", images_per_s.json()},
              {"peak_bytes", figures.peak_bytes},
              {"product_tflop_per_s", of_repeats(figures.product_tflop_per_s)},
              {"copy_gb_per_s", of_repeats(figures.copy_gb_per_s)},
              {"copy_bytes", figures.copy_bytes}};
}

Result<Json> measure_step(const Arguments& arguments, const Terminal& /*terminal*/) {
  TRY(const auto options, options_of(arguments));
  TRY(const auto model, training::make_model(options.model));
  TRY(const auto report, training::bench_steps(options));
  if (!std::isfinite(report.loss))
    return fail(Errc::diverged, Doing::training,
                "the loss is not finite after the last step: the figures mean nothing");
  Repeats images_per_s, step_ms, cpu_ms, optimizer_ms, faults;
  for (const training::StepBlock& block : report.blocks) {
    images_per_s.add(block.images_per_second);
    step_ms.add(1e3 * static_cast<double>(options.batch) / block.images_per_second);
    cpu_ms.add(1e3 * block.cpu_seconds_per_step);
    optimizer_ms.add(1e3 * block.optimizer_seconds);
    faults.add(block.faults_per_step);
  }
  const auto precision = report.device.precision;
  const std::size_t type_bytes = precision == training::Precision::bf16 ? 2 : 4;
  Json found{{"params",
              {{"model", options.model.name},
               {"img", options.model.image_size},
               {"classes", options.model.classes},
               {"batch", options.batch},
               {"device", training::name_of(report.device)},
               {"precision", training::name_of(precision)},
               {"threads", report.device.threads},
               {"slices", report.slices},
               {"steps", options.steps},
               {"repeats", options.blocks}}},
             {"n", model.layout.parameters()},
             {"images_per_s", images_per_s.json()},
             {"step_ms", step_ms.json()},
             {"cpu_ms", cpu_ms.json()},
             {"optimizer_ms", optimizer_ms.json()},
             {"optimizer_bytes",
              optimizer_pass_bytes(model.layout.parameters(), type_bytes, report.slices)},
             {"faults", faults.json()},
             {"first_step_ms", rounded(1e3 * report.first_step_seconds)},
             {"loss", rounded(report.loss)}};
  if (report.gpu) found["gpu"] = device_json(*report.gpu, options.batch);
  return found;
}

constexpr std::array<std::string_view, 3> kStepFlags{"--classes", "--steps", "--repeats"};
constexpr std::array<std::string_view, 6> kStepKeys{
    "train.model", "train.img", "train.batch", "train.precision", "train.device", "node.threads"};

}  // namespace

constinit const Bench kStepBench{"step", "Training steps on random pixels: images a second.",
                                 kStepFlags, kStepKeys, &measure_step};

}  // namespace starling::node::bench
