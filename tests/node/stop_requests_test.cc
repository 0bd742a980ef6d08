#include "node/stop_requests.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

TEST_SUITE("node/stop_requests") {
  TEST_CASE("signals that come together ask to leave once, and a later one to end") {
    const TimePoint begin{10s};
    StopRequests requests;
    CHECK(requests.on_signal(begin) == StopWish::leave);
    CHECK(requests.on_signal(begin) == StopWish::same_again);
    CHECK(requests.on_signal(begin + kOneWish - 1us) == StopWish::same_again);
    CHECK(requests.on_signal(begin + kOneWish) == StopWish::end);
    CHECK(requests.on_signal(begin + 1h) == StopWish::end);
  }
}
