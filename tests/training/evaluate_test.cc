#include "training/evaluate.h"

#include "torch_support.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>

using namespace starling;
using namespace starling::training;

namespace {

DeviceOptions cpu() { return {.device = "cpu"}; }

// Batches beside which three images could not be read.
class GappySource final : public BatchSource {
 public:
  Result<std::optional<Batch>> next() override { return batches_.next(); }
  [[nodiscard]] std::size_t left_out() const override { return 3; }
  void stop() override { batches_.stop(); }

 private:
  QuarterSource batches_{{.size = 5, .batches = 2}};
};

}  // namespace

TEST_SUITE("training/evaluate") {
  TEST_CASE("a model that always says the same is right once in as many classes") {
    const Model model = tiny_model();
    Replica constant = make_genesis(model, 1).replica;
    const gossip::TensorPlace* weight = model.layout.find("fc.weight");
    const gossip::TensorPlace* bias = model.layout.find("fc.bias");
    for (std::size_t i = 0; i < weight->count; ++i) constant.parameters[weight->offset + i] = 0;
    constant.parameters[bias->offset + 2] = 1;  // class 2 always wins

    const auto report = evaluate(model, constant, cpu(), quarters({.size = 50, .batches = 8}));

    REQUIRE(report.has_value());
    CHECK(report->images == 400);
    // 400 draws of 1 in 4: 100 +- 8.7, five sigma.
    CHECK(report->top1 == doctest::Approx(0.25).epsilon(0.44));
    CHECK(report->top5 == 1.0);  // four classes only
    // Cross-entropy of logits {0, 0, 1, 0} in closed form.
    const double partition = std::log(3 + std::exp(1.0));
    CHECK(report->loss == doctest::Approx(partition - report->top1).epsilon(1e-5));
  }

  TEST_CASE("an evaluation comes to the same however many threads share its batches") {
    const Model model = tiny_model();
    const Replica replica = make_genesis(model, 7).replica;
    DeviceOptions options = cpu();
    options.precision = Precision::fp32;
    const auto by = [&](int threads) {
      options.threads = threads;
      return evaluate(model, replica, options, quarters({.size = 50, .batches = 4}));
    };
    const auto alone = by(1);
    REQUIRE(alone.has_value());
    for (const int threads : {2, 3, 16}) {
      CAPTURE(threads);
      const auto shared = by(threads);
      REQUIRE(shared.has_value());
      CHECK(shared->images == 200);
      CHECK(shared->loss == doctest::Approx(alone->loss).epsilon(1e-5));
      CHECK(shared->top1 == doctest::Approx(alone->top1).epsilon(0.02));
      CHECK(shared->top5 == alone->top5);
    }
  }

  TEST_CASE("an evaluation says how many images it counted and how many it could not") {
    const Model model = tiny_model();

    const auto report =
        evaluate(model, make_genesis(model, 1).replica, cpu(), std::make_unique<GappySource>());

    REQUIRE(report.has_value());
    CHECK(report->images == 10);
    CHECK(report->left_out == 3);
  }

  TEST_CASE("an evaluation of no images is an error, not an accuracy of zero") {
    const Model model = tiny_model();

    const auto report =
        evaluate(model, make_genesis(model, 1).replica, cpu(), quarters({.size = 4, .batches = 0}));

    REQUIRE_FALSE(report.has_value());
    CHECK(report.error().code == Errc::data_failed);
  }

  TEST_CASE("a device that this build or machine lacks is refused with the reason") {
    const Model model = tiny_model();
    for (const char* device : {"cuda:99", "tpu", "cuda:-1", "cuda:x"}) {
      CAPTURE(device);
      const auto report =
          evaluate(model, make_genesis(model, 1).replica, {.device = device}, quarters());
      REQUIRE_FALSE(report.has_value());
      CHECK(fault_of(report.error().code) != Fault::peer);
    }
  }

  TEST_CASE("precision follows the machine unless it was asked for") {
    DeviceOptions options = cpu();
    const auto chosen = resolve_device(options);
    REQUIRE(chosen.has_value());
    CHECK(chosen->precision != Precision::automatic);
    options.precision = Precision::fp32;
    CHECK(resolve_device(options)->precision == Precision::fp32);
    options.precision = Precision::bf16;
    CHECK(resolve_device(options)->precision == Precision::bf16);
    options.threads = 0;
    CHECK_FALSE(resolve_device(options).has_value());
  }
}
