#include "node/options.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

TEST_SUITE("node/options") {
  TEST_CASE("an interval of nothing means never") {
    const TimePoint now{1h};
    CHECK(next_due(now, 5s) == now + 5s);
    CHECK(next_due(now, 0s) == kNever);
  }

  TEST_CASE("threads that read are chosen by hand, or by the cores, one to four") {
    Config config;
    CHECK(data_threads(config) >= 1);
    CHECK(data_threads(config) <= 4);
    config.data.threads = 9;
    CHECK(data_threads(config) == 9);
  }
}
