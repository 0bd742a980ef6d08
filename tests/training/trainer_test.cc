#include "training/trainer.h"

#include "node/base/fault.h"
#include "tests/support/temp_folder.h"
#include "torch_support.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

// A trainer on made-up data that tells a test when it has come so far.
struct Fixture {
  explicit Fixture(QuarterSource::Options data = {}, TrainerOptions options = tiny_options(),
                   std::optional<Trainer::Start> start = std::nullopt)
      : model(tiny_model()) {
    TrainerHooks hooks;
    hooks.on_step = [this](const StepReport& report) {
      const MutexLock lock(mutex);
      reports.push_back(report);
      changed.notify_all();
    };
    hooks.on_failed = [this](const Error& error) { failed.set(error); };
    auto made =
        Trainer::create(model, std::move(options), start ? *std::move(start) : start_of(model),
                        {quarters(data), std::move(hooks), log});
    REQUIRE(made.has_value());
    trainer = *std::move(made);
  }
  ~Fixture() { trainer->stop(); }

  std::vector<StepReport> wait_for_steps(std::size_t count) {
    const MutexLock lock(mutex);
    while (reports.size() < count) changed.wait(mutex);
    return reports;
  }

  NullLog log;
  Model model;
  Mutex mutex;
  CondVar changed;
  std::vector<StepReport> reports STARLING_GUARDED_BY(mutex);
  Promise<Error> failed;
  std::unique_ptr<Trainer> trainer;
};

// Tells somebody, on the train thread, which batch it gives next, counted from 1.
class TellingSource final : public BatchSource {
 public:
  explicit TellingSource(std::function<void(int)> tell) : tell_(std::move(tell)) {}

  Result<std::optional<Batch>> next() override {
    tell_(++asked_);
    return batches_.next();
  }
  void stop() override { batches_.stop(); }

 private:
  std::function<void(int)> tell_;
  QuarterSource batches_{{}};
  int asked_ = 0;
};

Result<void> pause_and_wait(Trainer& trainer) {
  Promise<Result<void>> paused;
  trainer.pause([&](Result<void> result) { paused.set(std::move(result)); });
  return paused.wait();
}

}  // namespace

TEST_SUITE("training/trainer") {
  TEST_CASE("a started trainer reports step after step with times and counts") {
    Fixture fixture({.size = 8});
    REQUIRE(fixture.trainer->start());

    const auto reports = fixture.wait_for_steps(5);

    for (std::size_t i = 0; i < 5; ++i) {
      CAPTURE(i);
      CHECK(reports[i].step == static_cast<std::int64_t>(i) + 1);
      CHECK(reports[i].samples == (i + 1) * 8);
      CHECK(reports[i].images_per_second > 0);
      CHECK(reports[i].compute_s > 0);
      CHECK(reports[i].learning_rate > 0);
    }
    fixture.trainer->stop();
    CHECK(fixture.trainer->state().step >= 5);
    CHECK(fixture.trainer->state().cursor.position == fixture.trainer->state().samples);
  }

  TEST_CASE("images are as small as the schedule says, and training goes on when they grow") {
    // Images of the side that it was told.
    class Sized final : public BatchSource {
     public:
      explicit Sized(std::atomic<std::uint32_t>& side) : side_(side) {}
      Result<std::optional<Batch>> next() override {
        if (stopped_) return fail(Errc::cancelled, Doing::loading_data, "stopped");
        Batch batch = quarter_batch(rng_, 8, side_);
        batch.side = side_;
        return batch;
      }
      void set_side(std::uint32_t side) override { side_ = side; }
      void stop() override { stopped_ = true; }

     private:
      Rng rng_{1};
      std::atomic<std::uint32_t>& side_;
      std::atomic<bool> stopped_ = false;
    };
    NullLog log;
    const Model model = tiny_model();
    TrainerOptions options = tiny_options();
    options.resize = {{8, 0.5}};
    auto start = start_of(model);
    start.state.progress_share = 0.25;
    std::atomic<std::uint32_t> side = 0;
    Promise<std::uint32_t> third;
    Promise<double> large;
    TrainerHooks hooks;
    hooks.on_step = [&](const StepReport& report) {
      if (report.step == 3) third.set(side);
      if (side == 12) large.set(report.loss);
    };
    auto trainer = Trainer::create(model, options, start,
                                   {std::make_unique<Sized>(side), std::move(hooks), log});
    REQUIRE(trainer.has_value());
    REQUIRE((*trainer)->start());
    CHECK(third.wait() == 8);

    (*trainer)->set_progress(0.75);

    CHECK(std::isfinite(large.wait()));
    (*trainer)->stop();
  }

  TEST_CASE("a batch that is too large for the device is halved until it fits, if that is wanted") {
    class Halved final : public BatchSource {
     public:
      Result<std::optional<Batch>> next() override {
        if (stopped_) return fail(Errc::cancelled, Doing::loading_data, "stopped");
        return quarter_batch(rng_, size_, 12);
      }
      void set_batch(std::size_t images) override { size_ = images; }
      void stop() override { stopped_ = true; }

     private:
      Rng rng_{7};
      std::size_t size_ = 16;
      std::atomic<bool> stopped_ = false;
    };
    for (const bool halve : {false, true}) {
      CAPTURE(halve);
      // The third step fails, and the first one after it.
      const fault::Armed armed(*fault::find_point("train.no_memory"), {.after = 2, .times = 2});
      NullLog log;
      const Model model = tiny_model();
      TrainerOptions options = tiny_options();
      options.halve_batch = halve;
      Promise<std::vector<std::size_t>> trained;
      Promise<Error> failed;
      std::vector<std::size_t> sizes;
      TrainerHooks hooks;
      hooks.on_step = [&](const StepReport& report) {
        sizes.push_back(report.batch);
        if (report.step == 4) trained.set(sizes);
      };
      hooks.on_failed = [&](const Error& error) { failed.set(error); };
      auto trainer = Trainer::create(model, options, start_of(model),
                                     {std::make_unique<Halved>(), std::move(hooks), log});
      REQUIRE(trainer.has_value());
      REQUIRE((*trainer)->start());

      if (halve) {
        CHECK(trained.wait() == std::vector<std::size_t>{16, 16, 4, 4});
      } else {
        const Error error = failed.wait();
        CHECK(error.code == Errc::no_memory);
        CHECK(error.detail.find("choose a smaller --batch") != std::string::npos);
      }
      (*trainer)->stop();
    }
  }

  TEST_CASE("while paused no step runs and the replica stands still, and resume goes on") {
    Fixture fixture;
    REQUIRE(fixture.trainer->start());
    (void)fixture.wait_for_steps(2);

    REQUIRE(pause_and_wait(*fixture.trainer).has_value());
    const Replica before = fixture.trainer->snapshot();
    const std::int64_t step = fixture.trainer->state().step;
    REQUIRE(pause_and_wait(*fixture.trainer).has_value());  // paused already: answered at once
    CHECK(fixture.trainer->snapshot() == before);
    CHECK(fixture.trainer->state().step == step);

    fixture.trainer->resume();
    (void)fixture.wait_for_steps(static_cast<std::size_t>(step) + 2);
    CHECK(fixture.trainer->snapshot() != before);
  }

  TEST_CASE("a pause does not wait for the step under way, and the resumed training goes on") {
    NullLog log;
    const Model model = tiny_model();
    Promise<bool> paused;
    Promise<bool> went_on;
    TrainerHooks hooks;
    hooks.on_step = [&](const StepReport& report) {
      CHECK(report.outcome == StepOutcome::trained);
      if (report.step == 3) went_on.set(true);
    };
    Trainer* told = nullptr;
    // Where the third step begins, so that only dropping it can leave two.
    const auto pause = [&](int batch) {
      if (batch != 3) return;
      told->pause([&](const Result<void>& done) { paused.set(done.has_value()); });
    };
    auto trainer = Trainer::create(model, tiny_options(), start_of(model),
                                   {std::make_unique<TellingSource>(pause), std::move(hooks), log});
    REQUIRE(trainer.has_value());
    told = trainer->get();
    REQUIRE(told->start());

    CHECK(paused.wait());
    CHECK(told->state().step == 2);
    CHECK(told->state().cursor.position == 32);
    told->resume();
    CHECK(went_on.wait());
    told->stop();
  }

  TEST_CASE("increments from another thread are all in the replica, and training goes on") {
    Fixture fixture;
    REQUIRE(fixture.trainer->start());
    (void)fixture.wait_for_steps(1);
    const std::size_t bias = fixture.model.layout.find("fc.bias")->offset;

    // 1,024 increments of 1/16 are exact; what training moves meanwhile is far below their sum.
    for (int i = 0; i < 1'024; ++i) {
      fixture.trainer->with_master(
          [&](const gossip::MasterView& master) { master.parameters[bias] += 0.0625F; });
    }
    REQUIRE(pause_and_wait(*fixture.trainer).has_value());

    CHECK(fixture.trainer->snapshot().parameters[bias] == doctest::Approx(64.0).epsilon(0.2));
  }

  TEST_CASE("an evaluation between steps reports the replica of its step, and steps go on") {
    Fixture fixture;
    REQUIRE(fixture.trainer->start());
    (void)fixture.wait_for_steps(3);
    Promise<Result<EvaluationReport>> evaluated;

    fixture.trainer->request_evaluation([] { return quarters({.seed = 9, .batches = 4}); },
                                        [&](auto report) { evaluated.set(std::move(report)); });
    const auto report = evaluated.wait();

    REQUIRE(report.has_value());
    CHECK(report->images == 64);
    CHECK(report->step >= 3);
    CHECK(fixture.trainer->state().step > report->step);
  }

  TEST_CASE("an evaluation takes the share of the time that it may, a tenth unless it is said") {
    struct Share {
      double given, least, most;
    };
    Share share{.given = TrainerOptions{}.evaluation_share, .least = 0, .most = 0.25};
    SUBCASE("a tenth") {}
    SUBCASE("most of it") { share = {.given = 0.8, .least = 0.4, .most = 1}; }
    TrainerOptions options = tiny_options();
    options.evaluation_share = share.given;
    Fixture fixture({}, options);
    REQUIRE(fixture.trainer->start());
    (void)fixture.wait_for_steps(20);  // allocations of the first steps are behind us
    Promise<Result<EvaluationReport>> evaluated;
    const SteadyClock clock;
    const TimePoint begin = clock.now();

    fixture.trainer->request_evaluation([] { return quarters({.seed = 9, .batches = 40}); },
                                        [&](auto report) { evaluated.set(std::move(report)); });
    const auto report = evaluated.wait();
    const double total = seconds(clock.now() - begin);

    REQUIRE(report.has_value());
    // The first slice may overdraw by one batch, and a busy machine stretches either side.
    CHECK(report->seconds / total >= share.least);
    CHECK(report->seconds / total < share.most);
  }

  TEST_CASE("a pause that comes at the end of a step waits for no slice of an evaluation") {
    const Model model = tiny_model();
    NullLog log;
    TrainerOptions options = tiny_options();
    options.evaluation_share = 0.9;  // nine times the step: a slice is due after each
    std::unique_ptr<Trainer> trainer;
    std::atomic<int> asked = 0;
    Promise<int> evaluated;  // slices between the pause and its answer
    TrainerHooks hooks;
    hooks.on_step = [&](const StepReport& report) {
      if (report.step != 3) return;
      trainer->pause([&, before = asked.load()](auto) { evaluated.set(asked - before); });
    };
    auto made = Trainer::create(model, std::move(options), start_of(model),
                                {quarters(), std::move(hooks), log});
    REQUIRE(made.has_value());
    trainer = *std::move(made);
    trainer->request_evaluation(
        [&] { return std::make_unique<TellingSource>([&](int) { ++asked; }); }, {});

    REQUIRE(trainer->start());

    CHECK(evaluated.wait() == 0);
    trainer->stop();
    CHECK(asked > 0);
  }

  TEST_CASE("evaluations queue, also of other values, and run unsliced while paused") {
    Fixture fixture;
    REQUIRE(fixture.trainer->start());
    REQUIRE(pause_and_wait(*fixture.trainer).has_value());
    Promise<Result<EvaluationReport>> own;
    Promise<Result<EvaluationReport>> other;
    const auto source = [] { return quarters({.seed = 9, .size = 32, .batches = 4}); };
    Replica constant = fixture.trainer->snapshot();
    const gossip::TensorPlace* fc = fixture.model.layout.find("fc.weight");
    for (std::size_t i = 0; i < fc->count; ++i) constant.parameters[fc->offset + i] = 0;
    const gossip::TensorPlace* bias = fixture.model.layout.find("fc.bias");
    for (std::size_t i = 0; i < bias->count; ++i) constant.parameters[bias->offset + i] = 0;

    fixture.trainer->request_evaluation(source, [&](auto r) { own.set(std::move(r)); });
    fixture.trainer->request_evaluation_of(std::make_shared<const Replica>(constant), source,
                                           [&](auto r) { other.set(std::move(r)); });

    CHECK(own.wait()->images == 128);
    CHECK(other.wait()->loss == doctest::Approx(std::log(4.0)).epsilon(1e-5));
  }

  TEST_CASE("a run that is resumed from its checkpoint continues bit for bit") {
    const TempFolder folder;
    const CheckpointOptions where{folder.path(), 3};
    NullLog log;
    // Twenty batches in one go...
    Fixture whole({.batches = 20});
    REQUIRE(whole.trainer->start());
    (void)whole.failed.wait();  // "the stream ended": after exactly 20 steps
    // ...and ten, a checkpoint, and ten more.
    Fixture first({.batches = 10});
    REQUIRE(first.trainer->start());
    (void)first.failed.wait();
    Promise<Result<std::filesystem::path>> saved;
    first.trainer->request_checkpoint({where, "map", "fingerprint"},
                                      [&](auto path) { saved.set(std::move(path)); });
    REQUIRE(saved.wait().has_value());
    auto checkpoint = load_checkpoint(where, first.model, log);
    REQUIRE(checkpoint.has_value());
    CHECK(checkpoint->state.step == 10);
    CHECK(checkpoint->state.progress_map == "map");

    // The data stream goes on where it was: skip what the first half used.
    class Later final : public BatchSource {
     public:
      explicit Later(std::uint64_t samples) : source_({.batches = 20}) {
        for (std::uint64_t used = 0; used < samples; used += 16) (void)source_.next();
      }
      Result<std::optional<Batch>> next() override { return source_.next(); }
      void stop() override { source_.stop(); }

     private:
      QuarterSource source_;
    };
    Promise<Error> ended;
    TrainerHooks hooks;
    hooks.on_failed = [&](const Error& error) { ended.set(error); };
    auto second = Trainer::create(
        first.model, tiny_options(), {checkpoint->replica, checkpoint->momenta, checkpoint->state},
        {std::make_unique<Later>(checkpoint->state.cursor.position), std::move(hooks), log});
    REQUIRE(second.has_value());
    REQUIRE((*second)->start());
    (void)ended.wait();

    CHECK((*second)->state().step == 20);
    CHECK((*second)->snapshot() == whole.trainer->snapshot());
  }

  TEST_CASE("a checkpoint that cannot be written is reported and training goes on") {
    const TempFolder folder;
    std::ofstream(folder.path() / "file") << "not a folder";
    Fixture fixture;
    REQUIRE(fixture.trainer->start());
    Promise<Result<std::filesystem::path>> saved;

    fixture.trainer->request_checkpoint({{folder.path() / "file" / "x", 3}, "", ""},
                                        [&](auto path) { saved.set(std::move(path)); });

    CHECK_FALSE(saved.wait().has_value());
    const auto before = fixture.trainer->state().step;
    (void)fixture.wait_for_steps(static_cast<std::size_t>(before) + 3);
  }

  TEST_CASE("an adopted replica replaces all values at a step boundary") {
    Fixture fixture;
    REQUIRE(fixture.trainer->start());
    REQUIRE(pause_and_wait(*fixture.trainer).has_value());
    const Replica other = make_genesis(fixture.model, 77).replica;
    Promise<Result<void>> adopted;

    fixture.trainer->request_adoption(other, [&](auto result) { adopted.set(std::move(result)); });
    REQUIRE(adopted.wait().has_value());

    CHECK(fixture.trainer->snapshot() == other);
    CHECK(fixture.trainer->state().steps_since_adoption == 0);

    Promise<Result<void>> refused;
    fixture.trainer->request_adoption({}, [&](auto result) { refused.set(std::move(result)); });
    CHECK(refused.wait().error().code == Errc::bad_argument);
  }

  TEST_CASE("a poisoned stream ends the run as diverged with the last good replica") {
    Fixture fixture({.poison_from = 3});
    REQUIRE(fixture.trainer->start());

    const Error error = fixture.failed.wait();

    CHECK(error.code == Errc::diverged);
    CHECK(fixture.trainer->state().step == 3);
    for (const float x : fixture.trainer->snapshot().parameters) REQUIRE(std::isfinite(x));
  }

  TEST_CASE("a few poisoned batches cost their steps and nothing else") {
    Fixture fixture({.batches = 12, .poison_from = 3, .poison_to = 6});
    REQUIRE(fixture.trainer->start());

    CHECK(fixture.failed.wait().code == Errc::data_failed);  // the stream ended

    const auto reports = fixture.wait_for_steps(12);
    CHECK(reports.back().step == 9);
    CHECK(reports.back().bad_steps == 3);
  }

  TEST_CASE("progress sets the learning rate of the steps that follow") {
    Fixture fixture;
    fixture.trainer->set_progress(1.0);
    REQUIRE(fixture.trainer->start());

    CHECK(fixture.wait_for_steps(1)[0].learning_rate == 0);
    fixture.trainer->set_progress(0.5);
    const auto now = static_cast<std::size_t>(fixture.trainer->state().step);
    CHECK(fixture.wait_for_steps(now + 3).back().learning_rate == doctest::Approx(0.025));
  }

  TEST_CASE("stopping answers every open request with cancelled, before and after") {
    Fixture fixture;
    Promise<Result<EvaluationReport>> before;
    fixture.trainer->request_evaluation([] { return quarters(); },  // endless
                                        [&](auto r) { before.set(std::move(r)); });
    REQUIRE(fixture.trainer->start());
    (void)fixture.wait_for_steps(2);

    fixture.trainer->stop();

    CHECK(before.wait().error().code == Errc::cancelled);
    Promise<Result<void>> after;
    fixture.trainer->pause([&](auto r) { after.set(std::move(r)); });
    CHECK(after.wait().error().code == Errc::cancelled);
    fixture.trainer->stop();  // again is harmless
  }

  TEST_CASE("a trainer that was never started stops and still lends its master") {
    Fixture fixture;
    Promise<Result<void>> adopted;
    fixture.trainer->request_adoption({}, [&](auto r) { adopted.set(std::move(r)); });

    fixture.trainer->with_master([](const gossip::MasterView&) {});
    fixture.trainer->stop();

    CHECK(adopted.wait().error().code == Errc::cancelled);
  }
}
