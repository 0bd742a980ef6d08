#include "node/bench/torch_bench.h"
#include "tests/node/bench_support.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace starling::node;
using namespace starling::node::testing;

namespace {

int measure(const Arguments& arguments, const Terminal& terminal) {
  const std::array table{bench::kStepBench};
  return bench::carry_out(table, arguments, terminal);
}

}  // namespace

TEST_SUITE("node/bench_step") {
  TEST_CASE("step reports every figure of the model and the batch that were asked for") {
    const Words words{"bench",   "step",        "--model",   "small",     "--img",
                      "12",      "--batch",     "16",        "--threads", "2",
                      "--steps", "2",           "--repeats", "3",         "--classes",
                      "5",       "--precision", "fp32",      "--json"};
    const auto json = figures_of(&measure, words);
    CHECK(json.at("params").at("model") == "small");
    CHECK(json.at("params").at("batch") == 16);
    CHECK(json.at("params").at("slices") == 2);
    CHECK(json.at("params").at("precision") == "fp32");
    CHECK(json.at("optimizer_bytes") == 28 * json.at("n").get<std::uint64_t>());
    for (const auto* figure : {"images_per_s", "step_ms", "cpu_ms", "optimizer_ms"})
      check_spread(json.at(figure));
    check_order(json.at("faults"));
    CHECK(json.at("loss") > 0);
  }

  TEST_CASE("images a second times the time of a step is the batch") {
    const auto json = figures_of(&measure, {"bench", "step", "--model", "small", "--img", "12",
                                            "--batch", "4", "--repeats", "1", "--json"});
    const double images = json.at("images_per_s").at("median").get<double>() *
                          json.at("step_ms").at("median").get<double>() / 1e3;
    CHECK(images == doctest::Approx(4).epsilon(1e-3));
  }

  TEST_CASE("a model, a size or a flag that step cannot use is refused") {
    for (const auto& words :
         std::vector<Words>{{"bench", "step", "--model", "resnet5"},
                            {"bench", "step", "--model", "small", "--steps", "0"},
                            {"bench", "step", "--classes", "0"},
                            {"bench", "step", "--data", "synthetic"},
                            {"bench", "step", "--level", "L2"}})
      (void)refusal_of(&measure, words);
  }
}
