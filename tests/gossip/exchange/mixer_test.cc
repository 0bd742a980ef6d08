#include "gossip/exchange/mixer.h"

#include "tests/gossip/exchange/mixer_bench.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

TEST_SUITE_BEGIN("gossip/exchange/mixer");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a node offers every tau steps, one offer at a time") {
  Bench bench;
  bench.open(20);
  bench.open(21);

  bench.steps(1);
  CHECK(bench.count<Offer>() == 0);
  CHECK(bench.jobs.empty());
  bench.steps(1);
  bench.finish_jobs();
  CHECK(bench.count<Offer>() == 1);
  bench.steps(2);
  CHECK(bench.jobs.empty());

  const auto first = bench.offered_to();
  bench.answer(first);
  bench.finish_jobs();

  CHECK(bench.count<Offer>() == 2);
  CHECK(bench.offered_to() != first);
}

TEST_CASE("the least recently synced edge is next") {
  Bench bench;
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22}) bench.open(peer);
  std::vector<std::uint8_t> order;
  for (int i = 0; i < 9; ++i) {
    bench.steps(2);
    bench.finish_jobs();
    order.push_back(bench.offered_to());
    bench.answer(order.back());
  }

  CHECK(std::is_permutation(order.begin(), order.begin() + 3, std::vector{20, 21, 22}.begin()));
  for (std::size_t i = 3; i < order.size(); ++i) CHECK(order[i] == order[i - 3]);
}

TEST_CASE("a parked offer lets the node go on with another edge") {
  Bench bench;
  bench.open(20);
  bench.open(21);
  bench.steps(2);
  bench.finish_jobs();
  const auto silent = bench.offered_to();
  CHECK(bench.mixer.next_deadline() == bench.now + 1s);

  bench.now += 1s;
  bench.take(bench.mixer.on_tick(bench.now));
  bench.steps(2);
  bench.finish_jobs();

  CHECK(bench.offered_to() != 0);
  CHECK(bench.offered_to() != silent);
  const auto views = bench.mixer.neighbours();
  CHECK(std::count_if(views.begin(), views.end(), [](const auto& v) { return v.parked; }) == 1);
}

TEST_CASE("a slow neighbour is chosen less often") {
  Bench bench;
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22}) bench.open(peer);
  std::map<std::uint8_t, int> chosen;
  for (int i = 0; i < 120; ++i) {
    bench.steps(2);
    bench.finish_jobs();
    const auto peer = bench.offered_to();
    REQUIRE(peer != 0);
    ++chosen[peer];
    bench.now += peer == 22 ? 500ms : 50ms;
    bench.answer(peer);
  }

  CHECK(chosen[22] * 3 < chosen[20]);
  CHECK(chosen[22] > 0);
}

TEST_CASE("an answer that an outage held up does not make a neighbour slow for minutes") {
  Bench bench;
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22}) bench.open(peer);
  const auto exchange = [&] {
    bench.steps(2);
    bench.finish_jobs();
    const auto peer = bench.offered_to();
    bench.now += 20ms;
    bench.answer(peer);
    return peer;
  };
  for (int i = 0; i < 30; ++i) (void)exchange();
  while (true) {
    bench.steps(2);
    bench.finish_jobs();
    if (bench.offered_to() == 22) break;
    bench.answer(bench.offered_to());
  }
  bench.now += 20s;
  bench.take(bench.mixer.on_tick(bench.now));
  bench.answer(22);

  std::map<std::uint8_t, int> chosen;
  for (int i = 0; i < 600; ++i) ++chosen[exchange()];

  // Twelve seconds of exchanges: it has its turns again.
  CHECK(chosen[22] > 60);
}

TEST_CASE("an outage in the first exchange with a neighbour does not make it slow for minutes") {
  Bench bench;
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22}) bench.open(peer);
  std::map<std::uint8_t, int> chosen;
  for (int i = 0; i < 600; ++i) {
    bench.steps(2);
    bench.finish_jobs();
    const auto peer = bench.offered_to();
    const bool outage = peer == 22 && chosen[peer] == 0;
    bench.now += outage ? 20s : 20ms;
    if (outage) bench.take(bench.mixer.on_tick(bench.now));
    bench.answer(peer);
    ++chosen[peer];
  }

  CHECK(chosen[22] > 60);
}

TEST_CASE("degree and two more edges are accepted, the next one is refused") {
  MixerOptions options;
  options.degree = 2;
  Bench bench(options, 200);
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22, 23})
    bench.accept(peer);
  CHECK(bench.count<EdgeOpenAck>() == 4);

  bench.accept(24);

  REQUIRE(bench.to<EdgeClose>(24) != nullptr);
  CHECK(bench.to<EdgeClose>(24)->reason == CloseReason::full);
}

TEST_CASE("a neighbour of the topology gets the place of one that fell out of it") {
  MixerOptions options;
  options.degree = 2;
  Bench bench(options, 200);
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22, 23})
    bench.accept(peer);
  bench.take(bench.mixer.on_neighbours(bench.now, {node_named(24)}));

  bench.accept(24);

  CHECK(bench.to<EdgeOpenAck>(24) != nullptr);
  CHECK(bench.count<EdgeClose>() == 1);
}

TEST_CASE("guests take the places of those that nobody asked for, and some more") {
  MixerOptions options;
  options.degree = 2;
  Bench bench(options, 200);
  for (const std::uint8_t peer : std::initializer_list<std::uint8_t>{20, 21, 22, 23})
    bench.accept(peer);
  std::vector<NodeId> guests;
  for (std::uint8_t peer = 24; peer <= 30; ++peer) guests.push_back(node_named(peer));
  bench.take(bench.mixer.on_neighbours(bench.now, {}, guests));

  for (std::uint8_t peer = 24; peer <= 31; ++peer) bench.accept(peer);

  for (std::uint8_t peer = 20; peer <= 23; ++peer) {
    REQUIRE(bench.to<EdgeClose>(peer) != nullptr);
    CHECK(bench.to<EdgeClose>(peer)->reason == CloseReason::not_wanted);
  }
  for (std::uint8_t peer = 24; peer <= 29; ++peer)
    CHECK(bench.mixer.find_edge(node_named(peer))->state() == EdgeState::open);
  for (std::uint8_t peer = 30; peer <= 31; ++peer) {
    REQUIRE(bench.to<EdgeClose>(peer) != nullptr);
    CHECK(bench.to<EdgeClose>(peer)->reason == CloseReason::full);
  }
}

TEST_CASE("an edge outside the topology lives for its lease") {
  MixerOptions options;
  options.lease = 5;
  Bench bench(options);
  bench.open(20);
  bench.take(bench.mixer.on_neighbours(bench.now, {}));
  for (int i = 0; i < 5; ++i) {
    CHECK(bench.mixer.find_edge(node_named(20))->state() == EdgeState::open);
    bench.steps(2);
    bench.finish_jobs();
    bench.answer(20);
  }

  CHECK(bench.mixer.find_edge(node_named(20))->state() == EdgeState::closed);
  CHECK(bench.to<EdgeClose>(20)->reason == CloseReason::not_wanted);
}

TEST_CASE("the higher id waits a moment for the lower one to open") {
  Bench bench({}, 200);
  bench.take(bench.mixer.on_neighbours(bench.now, {node_named(20)}));
  bench.take(bench.mixer.on_session_up(bench.now, node_named(20), {1}));
  CHECK(bench.jobs.empty());
  CHECK(bench.mixer.next_deadline() == bench.now + 2s);

  bench.now += 2s;
  bench.take(bench.mixer.on_tick(bench.now));
  bench.finish_jobs();

  CHECK(bench.to<EdgeOpen>(20) != nullptr);
}

TEST_CASE("a refused opening is tried again later and later") {
  Bench bench;
  bench.take(bench.mixer.on_neighbours(bench.now, {node_named(20)}));
  bench.take(bench.mixer.on_session_up(bench.now, node_named(20), {1}));
  Duration last{};
  for (std::uint64_t round = 1; round <= 4; ++round) {
    bench.finish_jobs();
    REQUIRE(bench.count<EdgeOpen>() == round);
    bench.message(20, EdgeClose{bench.to<EdgeOpen>(20)->generation, CloseReason::full});
    bench.finish_jobs();
    const Duration wait = bench.mixer.next_deadline() - bench.now;
    CHECK(wait > last);
    last = wait;
    bench.now += wait;
    bench.take(bench.mixer.on_tick(bench.now));
  }
}

TEST_CASE("eight offers may wait for their answer, the ninth is Busy") {
  MixerOptions options;
  options.degree = 8;
  Bench bench(options, 200);
  const std::vector<std::uint8_t> peers{20, 21, 22, 23, 24, 25, 26, 27, 28};
  for (const auto peer : peers) bench.accept(peer);
  for (const auto peer : peers) {
    const Edge* edge = bench.mixer.find_edge(node_named(peer));
    Offer offer;
    offer.generation = edge->generation();
    offer.chain8 = first_u64(edge->chain());
    offer.payload.bytes = some_bytes("q");
    bench.message(peer, offer);
  }

  CHECK(bench.jobs.size() == 8);
  CHECK(bench.count<Busy>() == 1);
  bench.finish_jobs();
  CHECK(bench.count<Answer>() == 8);
}

TEST_CASE("a level that leaves too much unsent is changed with its reason") {
  Bench bench;
  bench.open(20);
  bench.steps(2);
  REQUIRE(bench.jobs.size() == 1);
  OfferDone done{{Level::l2, Statistics::without, some_bytes("q")}, {0, {}}, {}};
  done.figures.difference_energy = 4;
  done.figures.unsent_share = {1, 1, 0.9F, 0.8F, 0.3F, 0.1F, 0};
  bench.jobs.clear();
  bench.take(bench.mixer.on_job_done(
      bench.now, {EdgeEnds::of(node_named(10), node_named(20)), CodecDone(done)}));
  bench.answer(20);

  const auto view = bench.mixer.neighbours().front();
  CHECK(view.level == Level::l4);
  CHECK(view.level_reason == LevelReason::enough);
  CHECK(view.disagreement_ratio == doctest::Approx(0.5));
  CHECK(view.exchanges == 1);
}

TEST_CASE("an exchange counts with what was taken of it, and with nothing where nothing was") {
  Bench bench;
  bench.open(20);
  const auto exchange = [&](float norm, float scale) {
    bench.codec.norm = norm;
    bench.codec.scale = scale;
    bench.steps(2);
    bench.finish_jobs();
    bench.answer(20);
  };
  // Under `clip`, before this node knows what is usual.
  exchange(4, std::numeric_limits<float>::min() / 4);
  CHECK(bench.mixer.largest_norm() == 0);
  exchange(2, 1);
  CHECK(bench.mixer.largest_norm() == 2);
  exchange(1e6F, 3e-6F);
  CHECK(bench.mixer.largest_norm() == doctest::Approx(3));
}

TEST_CASE("an exchange whose statistics were clipped counts as clipped") {
  Bench bench;
  bench.open(20);
  bench.steps(2);
  bench.finish_jobs();
  bench.codec.channels_clipped = 7;
  bench.answer(20);

  CHECK(bench.mixer.neighbours().front().clipped == 1);
  CHECK(bench.mixer.neighbours().front().last_scale == 1);
  CHECK(to_string(bench.events.back()).find("channels_clipped=7") != std::string::npos);
}

TEST_CASE("a rebuilt trainer that counts from zero goes on offering") {
  Bench bench;
  bench.open(20);
  bench.steps(50);
  bench.finish_jobs();
  bench.answer(20);
  const auto offers = bench.count<Offer>();
  bench.training = {};
  bench.steps(0);

  bench.steps(2);
  bench.finish_jobs();

  CHECK(bench.count<Offer>() == offers + 1);
}

TEST_CASE("a pinned level holds from the first answer on") {
  MixerOptions options;
  options.levels.fixed_level = Level::l4;
  Bench bench(options, 200);

  bench.accept(20);

  CHECK(bench.mixer.find_edge(node_named(20))->level() == Level::l4);
}

TEST_CASE("messages of a peer without a session are ignored") {
  Bench bench;
  bench.message(20, EdgeOpen{});
  CHECK(bench.sent.empty());
  CHECK(bench.jobs.empty());
}

TEST_CASE("the own record travels with an opening and theirs comes out as an effect") {
  Bench bench;
  bench.mixer.set_record(to_bytes(as_bytes("mine")));
  bench.open(20);
  CHECK(bench.to<EdgeOpen>(20)->record == to_bytes(as_bytes("mine")));

  bench.take(bench.mixer.on_session_up(bench.now, node_named(5), {1}));
  EdgeOpen open;
  open.generation = {1};
  open.record = to_bytes(as_bytes("theirs"));
  const auto effects = bench.mixer.on_message(bench.now, node_named(5), open);
  REQUIRE(effects.records.size() == 1);
  CHECK(effects.records.front().record == to_bytes(as_bytes("theirs")));
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
