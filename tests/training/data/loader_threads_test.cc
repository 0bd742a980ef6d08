// A machine that allows the loader fewer threads than it was told to start.
#include "node/base/fault.h"
#include "tests/support/counting_log.h"
#include "tests/training/data/fixtures.h"
#include "training/data/loader.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string_view>

using namespace starling;
using namespace starling::training;

#ifdef STARLING_FAULTS

TEST_SUITE("training/data/loader_threads") {
  TEST_CASE("where the machine allows fewer threads than were asked for, those do all the work") {
    const auto sets = open_sets("synthetic:classes=3,size=8,train=23,val=6");
    REQUIRE(sets);
    auto options = loader_options_for(*sets->train, Pass::evaluation, 8, 3);
    options.batch = 10;
    options.threads = 5;
    const fault::Armed armed(*fault::find_point("loader.thread"), {.after = 2});
    CountingLog log("data.few_threads");

    Loader loader(*sets->train, options, log);

    CHECK(log.count() == 1);
    for (const std::size_t size : {10U, 10U, 3U}) {
      const auto batch = loader.next();
      REQUIRE(batch);
      REQUIRE(*batch);
      CHECK((*batch)->size == size);
    }
    const auto end = loader.next();
    REQUIRE(end);
    CHECK_FALSE(*end);
  }

  TEST_CASE("where the machine allows not one thread, the first batch is an error with a remedy") {
    const auto sets = open_sets("synthetic:classes=3,size=8,train=23,val=6");
    REQUIRE(sets);
    const fault::Armed armed(*fault::find_point("loader.thread"));
    CountingLog log("data.few_threads");

    Loader loader(*sets->train, loader_options_for(*sets->train, Pass::training, 8, 3), log);

    const auto batch = loader.next();
    REQUIRE_FALSE(batch);
    CHECK(batch.error().code == Errc::no_memory);
    CHECK(mentions(batch.error().detail, "ulimit -u"));
    CHECK(log.count() == 0);
  }
}

#endif
