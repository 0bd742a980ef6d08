// A trainer whose data does not come: a disk that hangs, a file server that is away.
#include "tests/support/temp_folder.h"
#include "torch_support.h"
#include "training/trainer.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <utility>

using namespace starling;
using namespace starling::training;

namespace {

// Whether somebody waits for a batch, as the test and the source see it.
struct Stall {
  Mutex mutex;
  CondVar changed;
  bool waited_for STARLING_GUARDED_BY(mutex) = false;

  void await() {
    const MutexLock lock(mutex);
    while (!waited_for) changed.wait(mutex);
  }
};

// So many batches, and then none ever.
class StalledSource final : public BatchSource {
 public:
  StalledSource(Stall& stall, int batches) : stall_(stall), left_(batches) {}

  Result<std::optional<Batch>> next() override {
    if (left_ > 0) {
      --left_;
      return batches_.next();
    }
    const MutexLock lock(stall_.mutex);
    stall_.waited_for = true;
    stall_.changed.notify_all();
    while (!woken_ && !stopped_) stall_.changed.wait(stall_.mutex);
    woken_ = false;
    return fail(Errc::cancelled, Doing::loading_data, "woken");
  }
  void wake() override { set(woken_); }
  void stop() override { set(stopped_); }

 private:
  void set(bool& flag) {
    const MutexLock lock(stall_.mutex);
    flag = true;
    stall_.changed.notify_all();
  }

  Stall& stall_;
  int left_;
  bool woken_ = false;
  bool stopped_ = false;
  QuarterSource batches_{{}};
};

std::unique_ptr<Trainer> trainer_of(const Model& model, std::unique_ptr<BatchSource> source,
                                    Log& log) {
  auto made = Trainer::create(model, tiny_options(), start_of(model), {std::move(source), {}, log});
  REQUIRE(made.has_value());
  return *std::move(made);
}

Result<std::filesystem::path> save(Trainer& trainer, const TempFolder& folder) {
  Promise<Result<std::filesystem::path>> saved;
  CheckpointRequest request;
  request.where = {.folder = folder.path()};
  trainer.request_checkpoint(std::move(request),
                             [&](auto result) { saved.set(std::move(result)); });
  return saved.wait();
}

}  // namespace

TEST_SUITE("training/trainer_wait") {
  TEST_CASE("whoever pauses or saves does not wait for data, and training goes on after it") {
    const TempFolder folder;
    const Model model = tiny_model();
    NullLog log;
    Stall stall;
    const auto trainer = trainer_of(model, std::make_unique<StalledSource>(stall, 3), log);
    REQUIRE(trainer->start());
    stall.await();

    CHECK(save(*trainer, folder).has_value());
    Promise<Result<void>> paused;
    trainer->pause([&](Result<void> result) { paused.set(std::move(result)); });
    CHECK(paused.wait().has_value());
    CHECK(trainer->state().step == 3);
    trainer->resume();
    CHECK(save(*trainer, folder).has_value());
    trainer->stop();
  }

  TEST_CASE("whoever pauses, saves or stops does not wait for the data of an evaluation") {
    const TempFolder folder;
    const Model model = tiny_model();
    NullLog log;
    Stall stall;
    const auto trainer = trainer_of(model, quarters(), log);
    REQUIRE(trainer->start());
    Promise<Result<EvaluationReport>> evaluated;
    trainer->request_evaluation([&] { return std::make_unique<StalledSource>(stall, 2); },
                                [&](auto report) { evaluated.set(std::move(report)); });
    stall.await();

    CHECK(save(*trainer, folder).has_value());
    Promise<Result<void>> paused;
    trainer->pause([&](Result<void> result) { paused.set(std::move(result)); });
    CHECK(paused.wait().has_value());
    CHECK(save(*trainer, folder).has_value());
    trainer->stop();

    CHECK(evaluated.wait().error().code == Errc::cancelled);
  }

  TEST_CASE("an evaluation that a pause found running keeps no other one waiting") {
    const Model model = tiny_model();
    NullLog log;
    Stall stall;
    const auto trainer = trainer_of(model, quarters(), log);
    REQUIRE(trainer->start());
    Promise<Result<EvaluationReport>> stalled;
    Promise<Result<EvaluationReport>> last;
    trainer->request_evaluation([&] { return std::make_unique<StalledSource>(stall, 2); },
                                [&](auto report) { stalled.set(std::move(report)); });
    stall.await();

    trainer->pause({});
    trainer->request_evaluation([] { return quarters({.seed = 9, .size = 32, .batches = 2}); },
                                [&](auto report) { last.set(std::move(report)); });

    CHECK(stalled.wait().error().code == Errc::cancelled);
    CHECK(last.wait()->images == 64);
    trainer->stop();
  }
}
