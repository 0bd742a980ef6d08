#include "node/base/error.h"

#include "node/base/result.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace starling;

namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return fail(Errc::bad_argument, Doing::starting, std::to_string(n) + " is odd");
  return n / 2;
}

Result<int> quarter(int n) {
  TRY(const int h, half(n));
  return half(h);
}

}  // namespace

TEST_SUITE("base/error") {
  TEST_CASE("every code has a name of its own") {
    std::set<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(Errc::internal); ++i)
      names.insert(name_of(static_cast<Errc>(i)));

    CHECK(names.size() == static_cast<std::size_t>(Errc::internal) + 1);
    CHECK_FALSE(names.contains(""));
  }

  TEST_CASE("an error says what was being done, what happened and its code") {
    const Error error{Errc::too_large, Doing::reading_record, "70000 bytes"};

    CHECK(to_string(error) == "while reading a record: 70000 bytes (too_large)");
  }

  TEST_CASE("our own stopping is nobody's fault and a peer's bad bytes are the peer's") {
    CHECK(fault_of(Errc::cancelled) == Fault::stopping);
    CHECK(fault_of(Errc::bad_message) == Fault::peer);
    CHECK(fault_of(Errc::bad_config) == Fault::config);
    CHECK(fault_of(Errc::disk_full) == Fault::self);
  }

  TEST_CASE("TRY passes values on and errors up") {
    CHECK(quarter(12) == 3);
    REQUIRE_FALSE(quarter(6).has_value());
    CHECK(quarter(6).error().detail == "3 is odd");
  }
}
