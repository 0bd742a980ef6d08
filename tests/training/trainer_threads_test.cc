// How many threads a trainer makes LibTorch use: a container may allow it no others.
#include "torch_support.h"
#include "training/trainer.h"

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <utility>

using namespace starling;
using namespace starling::training;

namespace {

// Says how many threads an operation would use on the thread that asks for the first batch.
class AskedSource final : public BatchSource {
 public:
  explicit AskedSource(Promise<int>& threads) : threads_(threads) {}

  Result<std::optional<Batch>> next() override {
    if (!std::exchange(asked_, true)) threads_.set(at::get_num_threads());
    return batches_.next();
  }
  void stop() override { batches_.stop(); }

 private:
  Promise<int>& threads_;
  QuarterSource batches_{{}};
  bool asked_ = false;
};

}  // namespace

TEST_SUITE("training/trainer") {
  TEST_CASE("operations before the first step use one thread, whatever LibTorch's default is") {
    Promise<int> before_first_step;
    int building = 0;
    // On a thread of its own, which has LibTorch's default: one for each core.
    std::thread([&] {
      NullLog log;
      const Model model = tiny_model();
      TrainerOptions options = tiny_options();
      options.device.threads = 3;
      auto trainer = Trainer::create(model, options, start_of(model),
                                     {std::make_unique<AskedSource>(before_first_step), {}, log});
      building = at::get_num_threads();
      REQUIRE(trainer);
      REQUIRE((*trainer)->start());
      CHECK(before_first_step.wait() == 1);
      (*trainer)->stop();
    }).join();

    CHECK(building == 1);
  }
}
