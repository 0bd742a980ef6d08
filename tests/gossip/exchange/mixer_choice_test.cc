// Whom a mixer offers to, which edges it keeps, and what it does with neighbours that play for
// time.
#include "gossip/exchange/mixer.h"
#include "tests/gossip/exchange/mixer_bench.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
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

// Identities that the test makes up: the i-th of many.
NodeId identity(std::uint32_t i) {
  NodeId id = node_named(50);
  for (std::size_t byte = 0; byte < 4; ++byte)
    id.bytes[1 + byte] = static_cast<std::byte>(i >> (8 * byte));
  return id;
}

EdgeOpen opening(OpenMode mode, std::uint64_t generation) {
  EdgeOpen open;
  open.generation = {generation};
  open.mode = mode;
  open.reference = hash_of(as_bytes("genesis"));
  if (mode == OpenMode::snapshot) open.snapshot = some_bytes("x");
  return open;
}

// A session in which a peer opens an edge with a snapshot that does not decode.
void offend(Bench& bench, const NodeId& peer, std::uint64_t generation) {
  bench.take(bench.mixer.on_session_up(bench.now, peer, {1}));
  bench.take(bench.mixer.on_message(bench.now, peer, opening(OpenMode::snapshot, generation)));
  for (const CodecJob& job : std::exchange(bench.jobs, {})) {
    const auto* install = std::get_if<InstallJob>(&job);
    if (install == nullptr) continue;
    bench.take(
        bench.mixer.on_job_done(bench.now, {install->edge, failed_job(Errc::bad_message), {}}));
  }
  bench.finish_jobs();
  bench.take(bench.mixer.on_session_down(bench.now, peer));
}

const EdgeClose* closed_to(const Bench& bench, const NodeId& peer) {
  const EdgeClose* found = nullptr;
  for (const auto& each : bench.sent)
    if (each.to == peer)
      if (const auto* close = std::get_if<EdgeClose>(&each.message)) found = close;
  return found;
}

TEST_CASE("a flood of new identities neither fills the memory nor is an amnesty") {
  MixerOptions options;
  options.strangers_max = 2'000;  // so that their ration does not bound it
  Bench bench(options);
  const NodeId offender = node_named(20);
  for (std::uint64_t i = 1; i <= 3; ++i) offend(bench, offender, i);
  REQUIRE(closed_to(bench, offender)->reason == CloseReason::misbehaved);
  for (std::uint32_t i = 0; i < 1'000; ++i) {
    bench.now += 30ms;
    offend(bench, identity(i), 1);
  }

  CHECK(bench.mixer.neighbours().empty());
  CHECK(bench.mixer.absent().size() == AbsentPeers::kMost);
  bench.sent.clear();
  offend(bench, offender, 4);
  REQUIRE(closed_to(bench, offender) != nullptr);
  CHECK(closed_to(bench, offender)->reason == CloseReason::cooling);
}

TEST_CASE("who was dropped and comes back after that is dropped for twice as long") {
  Bench bench;
  const NodeId offender = node_named(20);
  for (const Duration closed : std::initializer_list<Duration>{1min, 2min, 4min}) {
    CAPTURE(closed.count());
    for (std::uint64_t i = 1; i <= 3; ++i) offend(bench, offender, i);
    bench.sent.clear();
    bench.now += closed - 1s;
    offend(bench, offender, 4);
    REQUIRE(closed_to(bench, offender) != nullptr);
    CHECK(closed_to(bench, offender)->reason == CloseReason::cooling);
    bench.now += 10min;
  }
}

TEST_CASE("who was dropped is shown, with the reason, for as long as it counts") {
  Bench bench;
  const NodeId offender = node_named(20);
  for (std::uint64_t i = 1; i <= 3; ++i) offend(bench, offender, i);

  const auto views = bench.mixer.absent();
  REQUIRE(views.size() == 1);
  CHECK(views.front().peer == offender);
  CHECK(views.front().state == EdgeState::closed);
  CHECK(views.front().refused == 3);
  CHECK(views.front().refused_why == "made up");
  CHECK(views.front().drops == 1);
  CHECK(views.front().closed_until == bench.now + 1min);

  bench.take(bench.mixer.on_session_up(bench.now, offender, {2}));
  CHECK(bench.mixer.absent().empty());
  REQUIRE(bench.mixer.neighbours().size() == 1);
  CHECK(bench.mixer.neighbours().front().refused == 3);
  CHECK(bench.mixer.neighbours().front().drops == 1);

  bench.take(bench.mixer.on_session_down(bench.now, offender));
  bench.now += 61min;
  bench.take(bench.mixer.on_tick(bench.now));
  CHECK(bench.mixer.absent().empty());
  CHECK(bench.mixer.neighbours().empty());
}

TEST_CASE("the snapshots that openings cost are bounded however many identities ask for them") {
  Bench bench;
  bench.steps(200);  // too old for the genesis
  for (std::uint32_t i = 0; i < 100; ++i) {
    const NodeId peer = identity(i);
    bench.now += 100ms;
    bench.take(bench.mixer.on_session_up(bench.now, peer, {1}));
    for (std::uint64_t generation = 2; generation < 2 + 8 * 2; generation += 2) {
      bench.take(bench.mixer.on_message(bench.now, peer, opening(OpenMode::genesis, generation)));
      bench.finish_jobs();
    }
    bench.take(bench.mixer.on_session_down(bench.now, peer));
    bench.finish_jobs();
  }

  const auto snapshots = bench.count<EdgeOpen>();
  CHECK(snapshots >= 8);
  CHECK(snapshots <= 9);  // eight, and one more in the ten seconds that this took
}

TEST_CASE("who is expected opens an edge however many strangers have just opened theirs") {
  Bench bench;
  const NodeId wanted = node_named(20);
  const NodeId guest = node_named(21);
  bench.take(bench.mixer.on_neighbours(bench.now, {wanted}, {guest}));
  const auto opens = [&](const NodeId& peer, std::uint64_t generation) {
    bench.take(bench.mixer.on_session_up(bench.now, peer, {1}));
    bench.take(bench.mixer.on_message(bench.now, peer, opening(OpenMode::genesis, generation)));
    bench.finish_jobs();
    const Edge* edge = bench.mixer.find_edge(peer);
    const bool open = edge != nullptr && edge->state() == EdgeState::open;
    bench.take(bench.mixer.on_message(bench.now, peer, EdgeClose{{100}, CloseReason::not_wanted}));
    bench.finish_jobs();
    bench.take(bench.mixer.on_session_down(bench.now, peer));
    return open;
  };
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(opens(identity(i), 1));

  CHECK_FALSE(opens(identity(8), 1));
  REQUIRE(closed_to(bench, identity(8)) != nullptr);
  CHECK(closed_to(bench, identity(8))->reason == CloseReason::full);
  CHECK(opens(wanted, 101));
  CHECK(opens(guest, 101));
  bench.now += 10s;
  CHECK(opens(identity(8), 101));
  CHECK_FALSE(opens(identity(9), 1));
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
