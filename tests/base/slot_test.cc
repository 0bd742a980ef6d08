#include "node/base/slot.h"

#include <doctest/doctest.h>

using namespace starling;

TEST_SUITE("base/slot") {
  TEST_CASE("the newest value wins and is taken once") {
    Slot<int> slot;
    slot.put(1);
    slot.put(2);

    CHECK(slot.take() == 2);
    CHECK_FALSE(slot.take().has_value());
  }
}
