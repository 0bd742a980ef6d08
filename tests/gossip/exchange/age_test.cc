// The age of a node's replica (rulings 7): what moves it, and when a node is too far behind.
#include "gossip/exchange/message_codec.h"
#include "gossip/exchange/mixer.h"
#include "tests/gossip/exchange/mixer_bench.h"

#include <doctest/doctest.h>

#include <initializer_list>

TEST_SUITE_BEGIN("gossip/exchange/age");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a node far below the median of its neighbours is to join again") {
  Bench bench;
  bench.age = 900;
  bench.open(20);
  CHECK_FALSE(bench.mixer.lag().far_behind);
  bench.age = 5000;
  bench.open(21);
  CHECK_FALSE(bench.mixer.lag().far_behind);  // one of two says so
  bench.open(22);
  CHECK(bench.mixer.lag().median_age == 5000);
  CHECK(bench.mixer.lag().far_behind);
  bench.steps(4);
  CHECK(bench.jobs.empty());  // its exchanges would pull the others back

  bench.take(bench.mixer.adopt_replica(bench.now, 4990));
  CHECK_FALSE(bench.mixer.lag().far_behind);
  CHECK(bench.mixer.age() == 4990);
  CHECK(bench.mixer.newcomer());
  CHECK(bench.to<EdgeClose>(20)->reason == CloseReason::replica_changed);
}

TEST_CASE("of an even number of neighbours no half makes a node far behind") {
  for (const std::size_t honest : {1U, 2U}) {
    CAPTURE(honest);
    Bench bench;
    bench.take(bench.mixer.adopt_replica(bench.now, 10'000));
    std::uint8_t peer = 20;
    for (std::size_t i = 0; i < honest; ++i) {
      bench.age = 10'000;
      bench.open(peer++);
    }
    for (std::size_t i = 0; i < honest; ++i) {
      bench.age = exchange_limits::kMaxAge;
      bench.open(peer++);
    }

    CHECK(bench.mixer.lag().median_age == 10'000);
    CHECK_FALSE(bench.mixer.lag().far_behind);
    bench.steps(2);
    CHECK(bench.jobs.size() == 1);  // nor does it hold back
  }
}

TEST_CASE("a node at the bound of what heals holds back once, and again after it caught up") {
  Bench bench;
  bench.age = 3'000;
  bench.open(20);
  bench.now += 60s;
  // Ends that far behind a neighbour that stated to be so far ahead before the exchange; an
  // exchange brings it nearer by 500.
  const auto exchange = [&](double ahead) {
    bench.steps(2);
    REQUIRE(bench.jobs.size() == 1);
    bench.finish_jobs();
    bench.age = bench.mixer.age() + ahead;
    bench.answer(20);
  };
  exchange(1'400);
  CHECK_FALSE(bench.mixer.lag().far_behind);
  exchange(1'600);
  CHECK(bench.mixer.lag().far_behind);
  exchange(1'400);  // it does not hold back again
  CHECK_FALSE(bench.mixer.lag().far_behind);
  CHECK_FALSE(bench.mixer.lag().caught_up);
  exchange(900);
  CHECK(bench.mixer.lag().caught_up);
  exchange(1'600);
  CHECK(bench.mixer.lag().far_behind);

  bench.steps(2);
  CHECK(bench.jobs.empty());
}

TEST_CASE("a thousand steps of lag heal by averaging") {
  Bench bench;
  bench.age = 1000;
  bench.open(20);
  bench.open(21);

  CHECK_FALSE(bench.mixer.lag().far_behind);
}

TEST_CASE("a node that nobody takes in again averages after its patience") {
  Bench bench;
  bench.age = 3000;
  bench.open(20);
  bench.steps(4);
  CHECK(bench.jobs.empty());

  bench.now += 60s;
  bench.take(bench.mixer.on_tick(bench.now));

  CHECK(bench.jobs.size() == 1);
}

TEST_CASE("a node that nobody takes in again catches up by averaging") {
  Bench bench;
  bench.age = 10'000;
  bench.open(20);
  CHECK(bench.mixer.lag().far_behind);
  bench.now += 60s;
  for (int i = 0; i < 30; ++i) {
    bench.steps(2);
    bench.finish_jobs();
    bench.answer(20);
  }

  CHECK_FALSE(bench.mixer.lag().far_behind);
}

TEST_CASE("one exchange with a neighbour that states another age moves the own one a little") {
  for (const double lie : {0.0, exchange_limits::kMaxAge}) {
    CAPTURE(lie);
    Bench bench;
    bench.take(bench.mixer.adopt_replica(bench.now, 10'000));
    bench.age = 10'000;
    for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22, 23})
      bench.open(peer);
    for (int i = 0; i < 4; ++i) {
      bench.steps(2);
      bench.finish_jobs();
      const auto peer = bench.offered_to();
      bench.age = peer == 23 ? lie : 10'000;
      bench.answer(peer);

      CHECK(bench.mixer.age() > 9'400);
      CHECK(bench.mixer.age() < 11'600);
      CHECK_FALSE(bench.mixer.lag().far_behind);
    }
  }
}

TEST_CASE("a neighbour that states the largest age leaves the own offers well-formed") {
  Bench bench;
  bench.open(20);
  bench.age = exchange_limits::kMaxAge;
  bench.steps(2);
  bench.finish_jobs();
  bench.answer(20);
  bench.now += 60s;  // far behind, as it seems: nothing before its patience is over
  for (int i = 0; i < 400; ++i) {
    CAPTURE(i);
    bench.steps(2);
    bench.finish_jobs();
    REQUIRE(bench.offered_to() == 20);
    CHECK(decode_exchange(encode_exchange(*bench.to<Offer>(20))).has_value());
    bench.answer(20);
  }

  bench.take(bench.mixer.adopt_replica(bench.now, exchange_limits::kMaxAge));
  bench.steps(2);
  CHECK(bench.mixer.age() < exchange_limits::kMaxAge);
}

TEST_CASE("a loaded checkpoint ages the replica by the steps since then only") {
  Bench bench;
  bench.take(bench.mixer.adopt_replica(bench.now, 4000));
  bench.training.steps = 50'000;
  bench.training.samples = 1'600'000;
  bench.mixer.continue_from(bench.training);

  bench.steps(3);

  CHECK(bench.mixer.age() == 4003);
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
