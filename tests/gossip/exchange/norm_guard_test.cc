#include "gossip/exchange/norm_guard.h"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("gossip/exchange/norm_guard");

namespace starling::gossip {
namespace {

TEST_CASE("the guard says nothing before eight exchanges") {
  NormGuard guard;
  for (int i = 0; i < 7; ++i) guard.on_exchange(1, 1);
  CHECK(guard.limit(1) == 0);

  guard.on_exchange(1, 1);

  CHECK(guard.limit(1) == doctest::Approx(3));
}

TEST_CASE("the limit grows with the square root of the samples") {
  NormGuard guard;
  for (int i = 0; i < 8; ++i) guard.on_exchange(8, 64);

  CHECK(guard.limit(64) == doctest::Approx(24));
  CHECK(guard.limit(256) == doctest::Approx(48));
}

TEST_CASE("one outlier does not move the median") {
  NormGuard guard;
  for (int i = 0; i < 15; ++i) guard.on_exchange(1, 1);
  guard.on_exchange(1e9, 1);

  CHECK(guard.limit(1) == doctest::Approx(3));
}

TEST_CASE("only the last sixteen count") {
  NormGuard guard;
  for (int i = 0; i < 16; ++i) guard.on_exchange(100, 1);
  for (int i = 0; i < 16; ++i) guard.on_exchange(2, 1);

  CHECK(guard.limit(1) == doctest::Approx(6));
}

TEST_CASE("equal replicas set no limit") {
  NormGuard guard;
  for (int i = 0; i < 16; ++i) guard.on_exchange(0, 1);

  CHECK(guard.limit(1) == 0);
}

TEST_CASE("what is usual is the median, from the first exchange on") {
  NormGuard guard;
  CHECK(guard.usual() == 0);
  guard.on_exchange(8, 4);
  CHECK(guard.usual() == doctest::Approx(4));
  guard.on_exchange(2, 1);
  guard.on_exchange(100, 1);
  CHECK(guard.usual() == doctest::Approx(4));
}

TEST_CASE("the guard forgets when it is told to") {
  NormGuard guard;
  for (int i = 0; i < 16; ++i) guard.on_exchange(1, 1);

  guard.clear();

  CHECK(guard.limit(1) == 0);
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
