// Whom a mixer offers to, which edges it keeps, and what it does with neighbours that play for
// time.
#include "gossip/exchange/mixer.h"
#include "tests/gossip/exchange/mixer_bench.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

TEST_SUITE_BEGIN("gossip/exchange/mixer_choice");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

constexpr std::uint8_t kBusyPeer = 20;

void open_four(Bench& bench) {
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22, 23})
    bench.open(peer);
}

// The own offer that is out is void: its peer has no time for it.
void say_busy(Bench& bench, std::uint8_t peer, Duration retry) {
  const Offer offer = *bench.to<Offer>(peer);
  bench.message(peer, Busy{offer.generation, offer.seq, name_of_offer(offer), retry});
  bench.finish_jobs();
}

TEST_CASE("a neighbour that says Busy gets no larger share of the offers than the others") {
  for (const bool sometimes : {false, true}) {
    for (const auto& [retry, step] : {std::pair{0ms, 100ms}, std::pair{250ms, 300ms},
                                      std::pair{250ms, 100ms}, std::pair{100ms, 100ms}}) {
      CAPTURE(sometimes);
      CAPTURE(retry.count());
      CAPTURE(step.count());
      Bench bench;
      open_four(bench);
      std::map<std::uint8_t, int> offers;
      for (int i = 0; i < 600; ++i) {
        bench.now += step - 100ms;
        bench.steps(1);
        bench.finish_jobs();
        const auto peer = bench.offered_to();
        if (peer == 0) continue;
        ++offers[peer];
        const bool busy = !sometimes || offers[peer] % 3 != 0;
        if (peer == kBusyPeer && busy) {
          say_busy(bench, peer, retry);
        } else {
          bench.answer(peer);
        }
      }
      REQUIRE(offers.contains(kBusyPeer));
      for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{21, 22, 23}) {
        CHECK(offers[peer] >= 70);  // 300 offers between four
        CHECK(offers[peer] >= offers[kBusyPeer]);
      }
    }
  }
}

TEST_CASE("a neighbour that says Busy again and again is asked less and less often") {
  Bench bench;
  bench.open(kBusyPeer);
  std::vector<Duration> waits;
  const auto next_offer = [&] {
    const TimePoint before = bench.now;
    while (bench.offered_to() == 0) {
      bench.steps(1);
      bench.finish_jobs();
    }
    return bench.now - before;
  };
  (void)next_offer();
  for (int i = 0; i < 10; ++i) {
    say_busy(bench, kBusyPeer, 0ms);
    waits.push_back(next_offer());
  }

  CHECK(waits.front() <= 300ms);
  CHECK(std::is_sorted(waits.begin(), waits.end()));
  CHECK(waits.back() == 4s);

  bench.answer(kBusyPeer);
  (void)next_offer();
  say_busy(bench, kBusyPeer, 0ms);
  CHECK(next_offer() <= 300ms);
}

TEST_CASE("a neighbour that opens and closes edges gets the next snapshot later and later") {
  for (const auto reason : {CloseReason::replica_changed, CloseReason::unknown_edge,
                            CloseReason::stale_generation, CloseReason::full}) {
    CAPTURE(name_of(reason));
    Bench bench;
    bench.steps(200);  // too old for the genesis
    bench.wanted = {node_named(20)};
    bench.take(bench.mixer.on_neighbours(bench.now, bench.wanted));
    bench.take(bench.mixer.on_session_up(bench.now, node_named(20), {20}));
    const TimePoint end = bench.now + 10min;
    std::size_t proposals = 0;
    while (bench.now < end) {
      bench.finish_jobs();
      if (bench.count<EdgeOpen>() > 0) {
        ++proposals;
        const EdgeOpen proposal = *bench.to<EdgeOpen>(20);
        bench.sent.clear();
        bench.message(20, EdgeOpenAck{proposal.generation, proposal.reference, 200});
        bench.message(20, EdgeClose{proposal.generation, reason});
      }
      bench.now += 100ms;
      bench.take(bench.mixer.on_tick(bench.now));
    }

    CHECK(proposals >= 2);
    CHECK(proposals <= 12);  // at once, after 2 s, 4 s, ...: doubling up to five minutes
  }
}

TEST_CASE("an edge that was of use is opened again at once after its peer took another replica") {
  Bench bench;
  bench.open(20);
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    bench.steps(2);
    bench.finish_jobs();
    bench.answer(20);
    bench.sent.clear();
    bench.message(20, EdgeClose{bench.mixer.find_edge(node_named(20))->generation(),
                                CloseReason::replica_changed});
    bench.finish_jobs();

    const auto* proposal = bench.to<EdgeOpen>(20);
    REQUIRE(proposal != nullptr);
    bench.message(20, EdgeOpenAck{proposal->generation, proposal->reference, 0});
    REQUIRE(bench.mixer.find_edge(node_named(20))->state() == EdgeState::open);
  }
}

TEST_CASE("who opened edges too often has not been forgotten when it comes back") {
  Bench bench({}, 200);
  Generation generation{1};
  std::size_t accepted = 0;
  for (int i = 0; i < 20; ++i) {
    bench.sent.clear();
    bench.accept(20, generation);
    if (bench.count<EdgeOpenAck>() > 0) ++accepted;
    bench.take(bench.mixer.on_session_down(bench.now, node_named(20)));
    bench.now += 1s;
    // As another process: nothing of the edge is resumed.
    bench.take(bench.mixer.on_session_up(bench.now, node_named(20), {1'000 + generation.value}));
    bench.take(bench.mixer.on_session_down(bench.now, node_named(20)));
    bench.finish_jobs();
    generation = generation.next();
  }

  CHECK(accepted == 8);
}

TEST_CASE("an edge outside the topology whose peer has fallen silent is closed after a minute") {
  Bench bench;
  bench.open(20);
  bench.open(21);
  bench.wanted = {node_named(21)};
  bench.take(bench.mixer.on_neighbours(bench.now, bench.wanted));
  const auto exchange_for = [&](Duration time) {
    for (const TimePoint end = bench.now + time; bench.now < end;) {
      bench.steps(1);
      bench.finish_jobs();
      if (bench.offered_to() == 21) bench.answer(21);
      bench.take(bench.mixer.on_tick(bench.now));
    }
  };
  exchange_for(50s);
  REQUIRE(bench.mixer.find_edge(node_named(20))->parked());
  exchange_for(20s);

  CHECK(bench.mixer.find_edge(node_named(20))->state() == EdgeState::closed);
  REQUIRE(bench.to<EdgeClose>(20) != nullptr);
  CHECK(bench.to<EdgeClose>(20)->reason == CloseReason::not_wanted);
  CHECK(bench.mixer.find_edge(node_named(21))->state() == EdgeState::open);
}

TEST_CASE("a neighbour of the topology that has fallen silent keeps its edge") {
  Bench bench;
  bench.open(20);
  bench.steps(2);
  bench.finish_jobs();
  for (int i = 0; i < 100; ++i) {
    bench.steps(10);
    bench.take(bench.mixer.on_tick(bench.now));
  }

  CHECK(bench.mixer.find_edge(node_named(20))->parked());
}

TEST_CASE("a goodput that nothing confirms any more does not hold the period for ever") {
  Bench bench;
  bench.open(20);
  bench.open(21);
  const auto exchange = [&](int times) {
    for (int i = 0; i < times; ++i) {
      bench.steps(bench.mixer.tau());
      bench.finish_jobs();
      bench.answer(bench.offered_to());
      // What the shell knows of the sessions it says every second, new or not.
      for (const std::uint8_t peer : {std::uint8_t{20}, std::uint8_t{21}})
        bench.mixer.on_goodput(node_named(peer), 1e-3);
      bench.sent.clear();
      bench.events.clear();
    }
  };
  exchange(30);
  CHECK(bench.mixer.tau() == LevelOptions{}.max_tau);
  exchange(350);
  CHECK(bench.mixer.tau() == LevelOptions{}.start_tau);
}

TEST_CASE("a goodput that is measured again and again holds the period") {
  Bench bench;
  bench.open(20);
  double measured = 1e-3;
  for (int i = 0; i < 400; ++i) {
    bench.steps(bench.mixer.tau());
    bench.finish_jobs();
    bench.answer(20);
    bench.mixer.on_goodput(node_named(20), measured);
    measured = i % 2 == 0 ? 1.1e-3 : 1e-3;
    bench.sent.clear();
    bench.events.clear();
  }
  CHECK(bench.mixer.tau() == LevelOptions{}.max_tau);
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
