#include "node/base/fault.h"

#include <doctest/doctest.h>

using namespace starling;

#ifdef STARLING_FAULTS

namespace {

// What a point that can fail does at its next passings.
std::string passings(int count) {
  std::string seen;
  for (int i = 0; i < count; ++i) seen += fault::maybe("checkpoint.before_rename") ? 'F' : '.';
  return seen;
}

}  // namespace

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
    const auto& point = *fault::find_point("checkpoint.before_rename");
    CHECK(passings(3) == "...");
    {
      const fault::Armed armed(point, {.after = 2});
      CHECK(passings(2) == "..");
      CHECK_FALSE(fault::maybe("final.before_rename"));
      CHECK(passings(2) == "FF");
      CHECK(armed.reached() == 4);
      CHECK_FALSE(fault::planted("checkpoint.before_rename"));
    }
    CHECK(passings(1) == ".");
    {
      const fault::Armed armed(point, {.after = 1, .times = 2});
      CHECK(passings(5) == ".FF..");
    }
  }

  TEST_CASE("a text arms a point, and a wrong one says why") {
    CHECK(fault::arm("checkpoint.before_rename@2:once") == "");
    CHECK(passings(4) == ".F..");
    CHECK(fault::arm("checkpoint.before_rename@2:fail") == "");
    CHECK(passings(4) == ".FFF");
    CHECK(fault::arm("checkpoint.after_rename@1000000:kill") == "");
    CHECK(passings(2) == "..");
    for (const char* wrong :
         {"", "checkpoint.before_rename", "checkpoint.before_rename@1", "no.such_point@1:fail",
          "checkpoint.before_rename@0:fail", "checkpoint.before_rename@-1:fail",
          "checkpoint.before_rename@1000001:fail", "checkpoint.before_rename@1x:fail",
          "checkpoint.before_rename@1:explode", "checkpoint.before_rename@:fail",
          "checkpoint.after_rename@1:fail", "@1:fail", ":@"}) {
      CAPTURE(wrong);
      CHECK(fault::arm(wrong) != "");
    }
    CHECK(passings(2) == "..");  // what was refused armed nothing
    {
      const fault::Armed off(*fault::find_point("file.write"));
    }
  }

  TEST_CASE("there are thirty points and more") { CHECK(fault::kPoints.size() >= 30); }
}

#else

// What the release build has in their place.
static_assert(!fault::planted("edge.some_bug"));
static_assert(!fault::maybe("checkpoint.before_rename"));

#endif
