#include "tests/gossip/exchange/link_sim.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

TEST_SUITE_BEGIN("gossip/exchange/link");

namespace starling::gossip::sim {
namespace {

using namespace std::chrono_literals;

// The seeds of one case, or the one of a replay line.
std::vector<std::uint64_t> seeds(std::uint64_t count) {
  // The tests are single-threaded, nobody writes the environment.
  if (const char* replay = std::getenv("STARLING_SEED"))  // NOLINT(concurrency-mt-unsafe)
    return {std::stoull(replay)};
  std::vector<std::uint64_t> all(count);
  for (std::uint64_t i = 0; i < count; ++i) all[i] = i + 1;
  return all;
}

// Whether some exchange of the node falls into every window of this length between two times.
bool exchanges_in_every(const std::vector<TimePoint>& times, TimePoint from, TimePoint to,
                        Duration window) {
  TimePoint last = from;
  for (const auto& time : times) {
    if (time < from) continue;
    if (time > to) break;
    if (time - last > window) return false;
    last = time;
  }
  return to - last <= window;
}

// |x_a - x_b|.
double distance(LinkSim& sim, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t i = 0; i < sim.parameters(a).size(); ++i)
    sum += std::pow(static_cast<double>(sim.parameters(a)[i] - sim.parameters(b)[i]), 2);
  return std::sqrt(sum);
}

// Two to five nodes on a line of their seed, which have to exchange often.
LinkOptions busy_swarm(std::uint64_t seed) {
  LinkOptions options{.seed = seed, .nodes = 2 + seed % 4};
  options.latency = std::chrono::milliseconds(1 + seed % 5 * 15);
  options.mixer.levels.start_tau = 1;
  return options;
}

// Every fact holds for a while, no edge is reset and the replicas stay close.
LinkSim::Totals hold_for_a_while(const LinkOptions& options) {
  LinkSim sim(options);

  sim.run(12s);

  INFO(sim.broken());
  REQUIRE(sim.broken().empty());
  CHECK(sim.totals().resets == 0);
  CHECK(sim.totals().complete > 0);
  CHECK(sim.disagreement() < 0.05);
  return sim.totals();
}

TEST_CASE("two nodes open at the genesis and stay close") {
  LinkOptions options{.nodes = 2};
  LinkSim sim(options);

  sim.run(20s);

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK(sim.totals().opens == 2);
  CHECK(sim.totals().resets == 0);
  CHECK(sim.totals().complete > 300);
  CHECK(sim.disagreement() < 0.02);
  CHECK(sim.distance_to_optimum() < 0.05);
}

TEST_CASE("without training every exchange brings replicas closer") {
  LinkOptions options{.nodes = 4, .noise = 0, .rate = 0, .start_spread = 1};
  LinkSim sim(options);
  const double before = sim.disagreement();

  sim.run(20s);

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK(sim.disagreement() < 0.02 * before);
}

TEST_CASE("an outage takes nobody back to where it was before") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    LinkSim sim({.seed = seed, .nodes = 2, .latency = 100ms, .rate = 0.002});
    sim.run(2s);
    sim.lose_session(0, 1, 30s);
    sim.run(30s);

    double apart = 0;
    for (int step = 0; step < 100; ++step) {
      sim.run(20ms);
      apart = std::max(apart, sim.disagreement());
    }

    INFO(sim.broken());
    CHECK(sim.broken().empty());
    CHECK(sim.distance_to_optimum() < 0.02);  // it was 0.17 away when the session was lost
    CHECK(apart < 0.005);
  }
}

TEST_CASE("every fact holds while sessions are lost and attachments refused") {
  std::uint64_t resumes = 0;
  std::uint64_t crossings = 0;
  std::uint64_t complete = 0;
  std::uint64_t voided = 0;
  for (const std::uint64_t seed : seeds(16)) {
    CAPTURE(seed);
    LinkOptions options = busy_swarm(seed);
    options.session_losses = 1.5;
    options.refusals = seed % 3 == 0 ? 0.03 : 0;

    const LinkSim::Totals totals = hold_for_a_while(options);

    resumes += totals.resumes;
    crossings += totals.crossings;
    complete += totals.complete;
    voided += totals.voided;
  }
  MESSAGE(complete << " complete exchanges, " << crossings << " crossing halves, " << resumes
                   << " resumptions, " << voided << " offers void");
  CHECK(resumes > 0);
  CHECK(crossings > 0);
}

TEST_CASE("every fact holds while senders hear that attachments were lost which came") {
  for (const std::uint64_t seed : seeds(8)) {
    CAPTURE(seed);
    LinkOptions options = busy_swarm(seed);
    options.lost_words = 0.05;
    (void)hold_for_a_while(options);
  }
}

TEST_CASE("every fact holds while processes die and come back") {
  std::uint64_t opens = 0;
  for (const std::uint64_t seed : seeds(16)) {
    CAPTURE(seed);
    LinkOptions options{.seed = seed, .nodes = 3 + seed % 3, .session_losses = 0.5};
    options.restarts = 0.4;
    options.latency = std::chrono::milliseconds(1 + seed % 4 * 10);
    LinkSim sim(options);

    sim.run(12s);

    INFO(sim.broken());
    REQUIRE(sim.broken().empty());
    CHECK(sim.disagreement() < 0.1);
    opens += sim.totals().opens;
  }
  CHECK(opens > 0);
}

TEST_CASE("a stopped neighbour costs its edges and nobody's exchanges") {
  LinkOptions options{.nodes = 5};
  LinkSim sim(options);
  sim.run(5s);
  const TimePoint stopped = sim.now();

  sim.stop(2, 30s);
  sim.run(28s);

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  for (const std::size_t node : {0U, 1U, 3U, 4U}) {
    CAPTURE(node);
    CHECK(exchanges_in_every(sim.exchange_times(node), stopped + 1500ms, sim.now(), 500ms));
  }
  CHECK(sim.totals().parked >= 1);

  sim.run(20s);  // it wakes up, late answers are applied as usual

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK(sim.totals().resets == 0);
  CHECK(sim.disagreement() < 0.05);
}

TEST_CASE("one silent neighbour of three does not stop a median or a trimmed mean") {
  for (const Aggregator rule : {Aggregator::median, Aggregator::trimmed}) {
    CAPTURE(name_of(rule));
    LinkOptions options{.nodes = 4, .noise = 0, .rate = 0, .start_spread = 1};
    options.mixer.edge.aggregator = rule;
    options.mixer.levels.fixed_level = Level::l5;
    LinkSim sim(options);
    sim.check_facts(false);  // they are those of the mean
    sim.run(500ms);
    const double before = distance(sim, 0, 1);
    sim.stop(3, 60s);

    sim.run(50s);

    for (const auto& [a, b] : {std::pair(0U, 1U), {0U, 2U}, {1U, 2U}})
      CHECK(distance(sim, a, b) < 0.02 * before);
  }
}

TEST_CASE("a slow neighbour makes the swarm neither diverge nor wait") {
  LinkOptions options{.nodes = 4};
  LinkSim sim(options);
  sim.set_latency(3, 300ms);
  sim.set_step_time(3, 200ms);

  sim.run(40s);

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK(sim.totals().late_weights > 0);
  CHECK(sim.disagreement() < 0.1);
  CHECK(exchanges_in_every(sim.exchange_times(0), at(3s), sim.now(), 500ms));
}

// Two nodes at rest whose references of each other were the same, until a bit fell over.
void part_references(LinkSim& sim) {
  sim.run(3s);
  sim.set_training(false);
  sim.run(1s);
  REQUIRE(sim.mixer(0).find_edge(sim.id(1)) != nullptr);
  sim.corrupt_reference(0, 1);
}

TEST_CASE("the facts find a reference that has parted") {
  LinkSim sim({.nodes = 2});
  part_references(sim);

  sim.set_training(true);
  sim.run(10s);

  CHECK(sim.broken().find("references of") != std::string::npos);
}

TEST_CASE("a reference that parts is noticed and set again") {
  LinkSim sim({.nodes = 2});
  part_references(sim);
  const auto generation = sim.mixer(0).find_edge(sim.id(1))->generation();

  sim.check_facts(false);
  sim.set_training(true);
  for (int s = 0; s < 60 && sim.totals().resets < 2; ++s) sim.run(1s);
  REQUIRE(sim.totals().resets >= 2);  // at both ends
  sim.run(2s);
  sim.check_facts(true);
  const auto compared = sim.totals().references_compared;
  sim.run(10s);

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK(sim.totals().references_compared > compared);
  CHECK(sim.mixer(0).find_edge(sim.id(1))->generation() > generation);
  CHECK(sim.disagreement() < 0.1);
}

TEST_CASE("drained nodes touch the master no more and keep no reference") {
  for (const std::uint64_t seed : seeds(8)) {
    CAPTURE(seed);
    LinkOptions options{.seed = seed, .nodes = 4};
    options.latency = 30ms;
    LinkSim sim(options);
    sim.run(5s + std::chrono::milliseconds(seed * 7));

    for (std::size_t node = 0; node < 4; ++node)
      sim.call(node, [&](Mixer& mixer) { return mixer.begin_drain(sim.now(), sim.now() + 5s); });
    sim.run(5s + 100ms);

    std::array<std::uint64_t, 4> jobs{};
    for (std::size_t node = 0; node < 4; ++node) {
      CHECK(sim.mixer(node).drained());
      jobs[node] = sim.master_jobs(node);
    }
    sim.run(5s);
    for (std::size_t node = 0; node < 4; ++node) CHECK(sim.master_jobs(node) == jobs[node]);

    INFO(sim.broken());
    CHECK(sim.broken().empty());
    CHECK(sim.totals().resets == 0);
    for (std::size_t node = 0; node < 4; ++node)
      for (std::size_t peer = 0; peer < 4; ++peer)
        if (peer != node) CHECK_FALSE(sim.has_reference(node, peer));
  }
}

TEST_CASE("one node that drains alone is settled although the others go on") {
  LinkOptions options{.nodes = 4};
  LinkSim sim(options);
  sim.run(5s);

  sim.call(0, [&](Mixer& mixer) { return mixer.begin_drain(sim.now(), sim.now() + 2s); });
  sim.run(2s + 100ms);

  CHECK(sim.mixer(0).drained());
  const auto jobs = sim.master_jobs(0);
  const TimePoint frozen = sim.now();
  sim.run(5s);
  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK(sim.master_jobs(0) == jobs);
  CHECK(exchanges_in_every(sim.exchange_times(1), frozen, sim.now(), 500ms));
}

TEST_CASE("a leaving node hands over what it had not sent") {
  LinkOptions options{.nodes = 3};
  LinkSim sim(options);
  sim.run(5s);
  const auto before = sim.totals().exchanges;

  sim.call(1, [&](Mixer& mixer) { return mixer.begin_leave(sim.now(), sim.now() + 8s); });
  sim.run(2s);

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK(sim.mixer(1).drained());
  CHECK(sim.totals().exchanges > before);
  const auto& trace = sim.trace();
  CHECK(std::any_of(trace.begin(), trace.end(), [](const std::string& line) {
    return line.find("1 exchange") != std::string::npos &&
           line.find("level=L5") != std::string::npos;
  }));
  CHECK(sim.mixer(0).find_edge(sim.id(1))->state() == EdgeState::closed);
}

TEST_CASE("a node that is far behind holds back until it took over a replica") {
  LinkOptions options{.nodes = 3};
  options.step_time = 5ms;
  options.mixer.lag_steps = 300;
  LinkSim sim(options);
  sim.run(1s);
  sim.stop(2, 4s);
  sim.run(4s + 200ms);
  REQUIRE(sim.mixer(2).lag().far_behind);

  sim.adopt(2, 0);
  sim.run(5s);

  INFO(sim.broken());
  CHECK(sim.broken().empty());
  CHECK_FALSE(sim.mixer(2).lag().far_behind);
  CHECK(sim.mixer(2).find_edge(sim.id(0))->state() == EdgeState::open);
  CHECK(sim.disagreement() < 0.05);
}

}  // namespace
}  // namespace starling::gossip::sim

TEST_SUITE_END();
