#include "training/saver.h"

#include "node/base/fault.h"
#include "node/base/thread.h"
#include "tests/support/temp_folder.h"
#include "torch_support.h"
#include "training/stepper.h"

#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <thread>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/saver") {
  TEST_CASE("a checkpoint is written beside its caller, or by it where no thread starts") {
    assert_train_thread();
    const Model model = tiny_model();
    Stepper stepper(model, {}, tiny_options(), start_of(model));
    for (const bool threads : {true, false}) {
      CAPTURE(threads);
      std::optional<fault::Armed> armed;
      if (!threads) armed.emplace(*fault::find_point("checkpoint.thread"), fault::Arming{});
      const TempFolder folder;
      std::atomic<int> done = 0;
      std::atomic<bool> here = false;
      Saver saver(model, [&] { ++done; });
      for (int i = 0; i < 2; ++i) {
        saver.start(stepper.checkpoint(), {folder.path(), 3},
                    [&, caller = std::this_thread::get_id()](const auto& saved) {
                      CHECK(saved.has_value());
                      here = std::this_thread::get_id() == caller;
                    });
        saver.join();
        CHECK_FALSE(saver.busy());
      }
      CHECK(done == 2);
      CHECK(here == !threads);
      NullLog log;
      CHECK(load_checkpoint({folder.path(), 3}, model, log).has_value());
    }
  }
}
