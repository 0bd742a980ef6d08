#include "node/bench/device.h"

#include <charconv>
#include <string>

#ifdef STARLING_CUDA
#include "training/cuda/device_bench.h"
#endif

namespace starling::node::bench {

std::optional<int> device_asked_for(const Arguments& arguments) {
  const std::string& text = arguments.config.train.device;
  if (!text.starts_with("cuda")) return std::nullopt;
  int index = 0;
  // The configuration has checked what stands behind the colon.
  if (text.size() > 5) (void)std::from_chars(text.data() + 5, text.data() + text.size(), index);
  return index;
}

#ifdef STARLING_CUDA

namespace {

Json of_repeats(const std::vector<double>& values) {
  Repeats repeats;
  for (const double value : values) repeats.add(value);
  return repeats.json();
}

training::cuda::DeviceBenchOptions options_of(int device, std::uint64_t repeats) {
  return {.device = device, .repeats = static_cast<int>(repeats)};
}

Result<Json> params_of(int device, std::uint64_t n, std::uint64_t repeats) {
  TRY(const auto names, training::cuda::describe_device(device));
  return Json{{"n", n},
              {"repeats", repeats},
              {"device", "cuda:" + std::to_string(device)},
              {"gpu", names.name},
              {"clocks", names.clocks}};
}

}  // namespace

Result<Json> measure_device_optim(int device, std::uint64_t n, std::uint64_t repeats) {
  Json report;
  TRY(report["params"], params_of(device, n, repeats));
  TRY(const auto figures, training::cuda::bench_optimizer(n, options_of(device, repeats)));
  report["copy_gb_per_s"] = of_repeats(figures.copy.gb_per_s);
  report["copy_bytes"] = figures.copy.bytes;
  report["bf16"] = {{"step_ms", of_repeats(figures.bf16_ms)},
                    {"bytes", optimizer_pass_bytes(n, 2)}};
  report["fp32"] = {{"step_ms", of_repeats(figures.fp32_ms)},
                    {"bytes", optimizer_pass_bytes(n, 4)}};
  return report;
}

Result<Json> measure_device_codec(int device, const gossip::Layout& layout,
                                  const std::vector<gossip::Level>& levels, std::uint64_t repeats) {
  Json report;
  TRY(report["params"], params_of(device, layout.parameters(), repeats));
  Json rows = Json::array();
  for (const gossip::Level level : levels) {
    TRY(const auto figures,
        training::cuda::bench_codec(layout, level, options_of(device, repeats)));
    rows.push_back({{"level", gossip::name_of(level)},
                    {"bytes", figures.bytes},
                    {"encode_ms", of_repeats(figures.encode_ms)},
                    {"encoded_on_host_ms", of_repeats(figures.encoded_ms)},
                    {"apply_ms", of_repeats(figures.exchange_ms)}});
  }
  report["levels"] = rows;
  return report;
}

#else

namespace {

std::unexpected<Error> no_cuda() {
  return fail(
      Errc::unsupported, Doing::parsing_arguments,
      "this build has no CUDA: configure with -DSTARLING_CUDA=ON after deploy/setup --cuda, "
      "or leave out --device");
}

}  // namespace

Result<Json> measure_device_optim(int, std::uint64_t, std::uint64_t) { return no_cuda(); }
Result<Json> measure_device_codec(int, const gossip::Layout&, const std::vector<gossip::Level>&,
                                  std::uint64_t) {
  return no_cuda();
}

#endif

}  // namespace starling::node::bench
