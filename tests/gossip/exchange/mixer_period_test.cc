#include "gossip/exchange/mixer.h"
#include "tests/gossip/exchange/mixer_bench.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

TEST_SUITE_BEGIN("gossip/exchange/mixer_period");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a line that carries nothing makes the period longer") {
  Bench bench;
  bench.open(20);
  bench.mixer.on_goodput(node_named(20), 100);
  for (int i = 0; i < 3; ++i) {
    bench.steps(64);
    bench.finish_jobs();
    // The made-up payloads are tiny: the sizes of the table are put back by a large one.
    bench.answer(20);
  }

  CHECK(bench.mixer.tau() == 2);
  bench.mixer.on_goodput(node_named(20), 1e-3);
  for (int i = 0; i < 3; ++i) {
    bench.steps(64);
    bench.finish_jobs();
    bench.answer(20);
  }
  CHECK(bench.mixer.tau() == 16);
  CHECK(bench.mixer.period().reason == PeriodReason::nothing_fits);
}

// Edges with peers 20 to 23, of which the first `slow` carry nothing.
void exchange_on_four_lines(Bench& bench, std::uint8_t slow, int exchanges) {
  const auto peers = {std::uint8_t{20}, std::uint8_t{21}, std::uint8_t{22}, std::uint8_t{23}};
  for (const std::uint8_t peer : peers)
    if (bench.mixer.find_edge(node_named(peer)) == nullptr) bench.open(peer);
  for (const std::uint8_t peer : peers)
    bench.mixer.on_goodput(node_named(peer), peer < 20 + slow ? 1e-3 : 1e9);
  for (int i = 0; i < exchanges; ++i) {
    bench.steps(64);
    bench.finish_jobs();
    bench.answer(bench.offered_to());
  }
}

TEST_CASE("who answers at the last moment takes no offers of the others") {
  Bench bench;
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22}) bench.open(peer);
  int prompt = 0;
  Duration blocked{};
  for (int turn = 0; turn < 60; ++turn) {
    while (bench.offered_to() == 0) {
      bench.steps(1);
      bench.finish_jobs();
    }
    const std::uint8_t peer = bench.offered_to();
    const TimePoint sent = bench.now;
    bench.now = peer == 22 ? bench.mixer.next_deadline() - 10ms : bench.now + 50ms;
    if (peer == 22)
      blocked = std::max(blocked, bench.now - sent);
    else
      ++prompt;
    bench.answer(peer);
  }

  CHECK(blocked <= 2s);
  CHECK(prompt >= 54);
}

TEST_CASE("a short step among longer ones does not make the period longer") {
  Bench bench;
  bench.job_cost = 2ms;  // half of the codec's share of a usual step
  bench.open(20);
  for (int step = 0; step < 400; ++step) {
    bench.step_time = step % 5 == 0 ? 40ms : 115ms;
    bench.steps(1);
    bench.finish_jobs();
    if (bench.offered_to() == 20) bench.answer(20);
  }

  CHECK(bench.mixer.exchanges() > 100);
  CHECK(bench.mixer.tau() == 2);
}

TEST_CASE("lines that carry nothing make the period longer where they are most") {
  const auto tau_with = [](std::uint8_t slow) {
    Bench bench;
    exchange_on_four_lines(bench, slow, 20);
    return bench.mixer.tau();
  };
  CHECK(tau_with(1) == 2);
  CHECK(tau_with(2) == 2);
  CHECK(tau_with(3) == 64);
  CHECK(tau_with(4) == 64);
}

TEST_CASE("a slow line does not keep the period long that others made long") {
  Bench bench;
  exchange_on_four_lines(bench, 4, 5);
  REQUIRE(bench.mixer.tau() == 64);

  exchange_on_four_lines(bench, 1, 40);
  CHECK(bench.mixer.period().reason == PeriodReason::left_before);
  for (int i = 0; i < 20; ++i) exchange_on_four_lines(bench, 1, 40);
  CHECK(bench.mixer.tau() == 2);
}

TEST_CASE("who answers before its own first step goes on with the first period") {
  Bench bench;
  bench.job_cost = 10ms;
  bench.open(20);
  bench.mixer.on_goodput(node_named(20), 1e9);

  for (std::uint64_t seq = 0; seq < 10; ++seq) {
    const Edge& edge = *bench.mixer.find_edge(node_named(20));
    Offer offer;
    offer.generation = edge.generation();
    offer.seq = edge.seq();
    offer.chain8 = first_u64(edge.chain());
    offer.payload = {Level::l2, statistics_of(offer.seq), some_bytes("q")};
    bench.message(20, offer);
    bench.finish_jobs();
  }

  CHECK(bench.mixer.exchanges() == 10);
  CHECK(bench.mixer.tau() == 2);
  CHECK(bench.mixer.neighbours().front().level_reason != LevelReason::nothing_fits);
}

TEST_CASE("codec jobs that take a large share of a step make the period longer") {
  Bench bench;
  bench.open(20);
  bench.job_cost = std::chrono::milliseconds(20);  // of steps of 100 ms
  const auto exchange = [&] {
    bench.steps(bench.mixer.tau());
    bench.finish_jobs();
    bench.answer(20);
  };
  // An exchange has two jobs here, and eight are believed.
  for (int i = 0; i < 3; ++i) exchange();
  CHECK(bench.mixer.tau() == 2);
  for (int i = 0; i < 5; ++i) exchange();
  CHECK(bench.mixer.tau() == 16);
  CHECK(bench.mixer.period().reason == PeriodReason::codec_time);

  // Cheaper again: a hundred exchanges before what was left is tried again, then twenty each.
  bench.job_cost = std::chrono::milliseconds(1);
  for (int i = 0; i < 60; ++i) exchange();
  CHECK(bench.mixer.tau() == 16);
  for (int i = 0; i < 120; ++i) exchange();
  CHECK(bench.mixer.tau() == 2);
}
}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
