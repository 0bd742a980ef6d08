#include "torch_support.h"
#include "training/data/dataset.h"
#include "training/data/loader.h"
#include "training/data/spec.h"
#include "training/evaluate.h"
#include "training/trainer.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>

using namespace starling;
using namespace starling::training;

namespace {

std::unique_ptr<LoaderSource> source_of(const Dataset& dataset, Pass pass, Log& log,
                                        BatchForm form = BatchForm::floats) {
  LoaderOptions options = loader_options_for(dataset, pass, 16, 1);
  options.form = form;
  options.batch = 32;
  options.threads = 1;
  return std::make_unique<LoaderSource>(std::make_unique<Loader>(dataset, options, log));
}

// What twelve steps make of a genesis, and where the data stands then.
struct Trained {
  Replica replica;
  DataCursor cursor;
};
Trained train_on(const Dataset& dataset, BatchForm form) {
  NullLog log;
  auto model = make_model({"small", 4, 1, 16});
  REQUIRE(model.has_value());
  Promise<bool> paused;
  Trainer* told = nullptr;
  TrainerHooks hooks;
  hooks.on_step = [&](const StepReport& report) {
    if (report.step == 12)
      told->pause([&](const Result<void>& done) { paused.set(done.has_value()); });
  };
  auto trainer =
      Trainer::create(*model, tiny_options(), start_of(*model),
                      {source_of(dataset, Pass::training, log, form), std::move(hooks), log});
  REQUIRE(trainer.has_value());
  told = trainer->get();
  REQUIRE(told->start());
  CHECK(paused.wait());
  CHECK(told->state().step == 12);
  return {told->snapshot(), told->state().cursor};
}

}  // namespace

TEST_SUITE("training/trainer") {
  TEST_CASE("the ordinary loader, trainer and evaluation learn the synthetic data set") {
    NullLog log;
    constexpr const char* kData = "synthetic:classes=4,size=16,channels=1,train=2000,val=200";
    const auto spec = parse_data_spec(kData);
    REQUIRE(spec.has_value());
    const auto data = open_data(*spec, nullptr, log);
    REQUIRE(data.has_value());
    REQUIRE(data->val != nullptr);
    auto model = make_model({"small", 4, 1, 16});
    REQUIRE(model.has_value());

    Promise<Result<EvaluationReport>> before;
    Promise<Result<EvaluationReport>> after;
    Promise<bool> enough;
    TrainerHooks hooks;
    hooks.on_step = [&](const StepReport& report) {
      if (report.step == 60) enough.set(true);
    };
    auto trainer =
        Trainer::create(*model, tiny_options(), start_of(*model),
                        {source_of(*data->train, Pass::training, log), std::move(hooks), log});
    REQUIRE(trainer.has_value());
    const MakeSource make_source = [&] { return source_of(*data->val, Pass::evaluation, log); };

    (*trainer)->request_evaluation(make_source, [&](auto r) { before.set(std::move(r)); });
    REQUIRE((*trainer)->start());
    (void)enough.wait();
    (*trainer)->pause({});
    (*trainer)->request_evaluation(make_source, [&](auto r) { after.set(std::move(r)); });
    const auto untrained = before.wait();
    const auto trained = after.wait();

    REQUIRE(untrained.has_value());
    REQUIRE(trained.has_value());
    CHECK(untrained->images == 200);
    CHECK(untrained->step == 0);
    CHECK(trained->images == 200);
    CAPTURE(untrained->top1);
    CHECK(trained->top1 > 0.8);
    CHECK(trained->loss < untrained->loss);
  }

  TEST_CASE("pixels that are fetched ahead train what floats train, bit for bit") {
    NullLog log;
    const auto spec = parse_data_spec("synthetic:classes=4,size=16,channels=1,train=2000");
    REQUIRE(spec.has_value());
    const auto data = open_data(*spec, nullptr, log);
    REQUIRE(data.has_value());

    const Trained floats = train_on(*data->train, BatchForm::floats);
    const Trained pixels = train_on(*data->train, BatchForm::pixels);

    CHECK(pixels.replica == floats.replica);
    CHECK(pixels.cursor == floats.cursor);
  }
}
