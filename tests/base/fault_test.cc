#include "node/base/fault.h"

#include <doctest/doctest.h>

using namespace starling;

#ifdef STARLING_FAULTS

TEST_SUITE("base/fault") {
  TEST_CASE("a bug is there while it is planted, and no other one") {
    CHECK_FALSE(fault::planted("edge.some_bug"));
    {
      const fault::Planted bug("edge.some_bug");
      CHECK(bug.reached() == 0);
      CHECK_FALSE(fault::planted("edge.some"));
      CHECK_FALSE(fault::planted("edge.some_bug_else"));
      CHECK(bug.reached() == 0);
      CHECK(fault::planted("edge.some_bug"));
      CHECK(fault::planted("edge.some_bug"));
      CHECK(bug.reached() == 2);
    }
    CHECK_FALSE(fault::planted("edge.some_bug"));
  }

  TEST_CASE("an armed point lets the first passings go and fails from then on") {
    CHECK_FALSE(fault::maybe("checkpoint.some_point"));
    {
      const fault::Armed point("checkpoint.some_point", 2);
      CHECK_FALSE(fault::maybe("checkpoint.some_point"));
      CHECK_FALSE(fault::maybe("checkpoint.other_point"));
      CHECK_FALSE(fault::maybe("checkpoint.some_point"));
      CHECK(fault::maybe("checkpoint.some_point"));
      CHECK(fault::maybe("checkpoint.some_point"));
      CHECK(point.reached() == 4);
      CHECK_FALSE(fault::planted("checkpoint.some_point"));
    }
    CHECK_FALSE(fault::maybe("checkpoint.some_point"));
  }
}

#else

// What the release build has in their place.
static_assert(!fault::planted("edge.some_bug"));
static_assert(!fault::maybe("checkpoint.some_point"));

#endif
