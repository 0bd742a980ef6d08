#include "gossip/exchange/mixer.h"
#include "tests/gossip/exchange/mixer_bench.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

TEST_SUITE_BEGIN("gossip/exchange/mixer");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a drain without anything under way drops every reference, and then it is over") {
  Bench bench;
  bench.open(20);
  bench.open(21);

  bench.take(bench.mixer.begin_drain(bench.now, bench.now + 5s));
  REQUIRE(bench.jobs.size() == 2);
  for (const auto& job : bench.jobs) CHECK(std::holds_alternative<DropJob>(job));
  CHECK_FALSE(bench.mixer.drained());
  bench.finish_jobs();
  CHECK(bench.mixer.drained());
  CHECK(bench.to<EdgeClose>(20)->reason == CloseReason::finishing);
  CHECK(bench.to<EdgeClose>(21)->reason == CloseReason::finishing);

  bench.steps(10);
  CHECK(bench.jobs.empty());
}

TEST_CASE("a drain gives up an unanswered offer at its deadline") {
  Bench bench;
  bench.open(20);
  bench.steps(2);
  bench.finish_jobs();

  bench.take(bench.mixer.begin_drain(bench.now, bench.now + 5s));
  CHECK_FALSE(bench.mixer.drained());
  CHECK(bench.mixer.next_deadline() <= bench.now + 5s);
  bench.now += 5s;
  bench.take(bench.mixer.on_tick(bench.now));
  bench.finish_jobs();

  CHECK(bench.mixer.drained());
}

TEST_CASE("a drained node lets nobody in and answers no offer") {
  Bench bench;
  bench.open(20);
  bench.take(bench.mixer.begin_drain(bench.now, bench.now + 5s));
  bench.finish_jobs();
  REQUIRE(bench.mixer.drained());

  Offer late;
  late.generation = bench.mixer.find_edge(node_named(20))->generation();
  bench.message(20, late);
  bench.accept(20, late.generation.next());
  bench.accept(21);

  CHECK(bench.mixer.drained());
  CHECK(bench.count<EdgeOpenAck>() == 0);
  CHECK(bench.count<Answer>() == 0);
  CHECK(bench.to<EdgeClose>(20)->reason == CloseReason::finishing);
  CHECK(bench.to<EdgeClose>(21)->reason == CloseReason::finishing);
}

TEST_CASE("a drain gives up an offer whose session is gone at once") {
  Bench bench;
  bench.open(20);
  bench.steps(2);
  bench.finish_jobs();
  bench.take(bench.mixer.on_session_down(bench.now, node_named(20)));

  bench.take(bench.mixer.begin_drain(bench.now, bench.now + 5s));
  bench.finish_jobs();

  CHECK(bench.mixer.drained());
}

TEST_CASE("a leave pushes once to the fastest neighbour and closes every edge") {
  Bench bench;
  bench.open(20);
  bench.open(21);
  bench.mixer.on_goodput(node_named(20), 1e5);
  bench.mixer.on_goodput(node_named(21), 1e8);

  bench.take(bench.mixer.begin_leave(bench.now, bench.now + 8s));
  REQUIRE(bench.jobs.size() == 1);
  CHECK(std::get<OfferJob>(bench.jobs.front()).level == Level::l5);
  bench.finish_jobs();
  REQUIRE(bench.to<Offer>(21) != nullptr);
  CHECK(bench.to<Offer>(21)->purpose == Purpose::leave);
  CHECK_FALSE(bench.mixer.drained());
  bench.answer(21);

  CHECK(bench.mixer.drained());
  CHECK(bench.to<EdgeClose>(20)->reason == CloseReason::leaving);
  CHECK(bench.to<EdgeClose>(21)->reason == CloseReason::leaving);
}

TEST_CASE("a leave is over at its deadline although nobody answers") {
  Bench bench;
  bench.open(20);
  bench.take(bench.mixer.begin_leave(bench.now, bench.now + 8s));
  bench.finish_jobs();

  bench.now += 8s;
  bench.take(bench.mixer.on_tick(bench.now));
  bench.finish_jobs();

  CHECK(bench.mixer.drained());
}

TEST_CASE("a leave without neighbours is over at once") {
  Bench bench;
  bench.take(bench.mixer.begin_leave(bench.now, bench.now + 8s));
  CHECK(bench.mixer.drained());
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
