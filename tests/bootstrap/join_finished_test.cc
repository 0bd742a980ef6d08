// Where somebody has finished already.
#include "bootstrap/join.h"
#include "node/base/hash.h"
#include "tests/bootstrap/join_swarm.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

// A node with a seed that does not answer, and peers that say what they like.
struct Visited {
  Join join;
  TimePoint now = kStart;
  bool began = false;
  std::vector<Hash> fetched;

  explicit Visited(Start start)
      : join(kStart, {*Settings::from({{"lr", "0.5"}}), {}, start, {}}, Rng(1)) {
    Seed seed;
    seed.endpoint = {"10.0.0.2", 7700};
    take(*join.add_seeds(now, {seed}));
    take(join.begin(now));
  }
  void take(const JoinEffects& effects) {
    for (const auto& effect : effects) {
      began = began || std::holds_alternative<BeginTraining>(effect);
      if (const auto* wanted = std::get_if<FetchFinal>(&effect))
        fetched.push_back(wanted->certificate);
    }
  }
  void hear(RunPhase phase, std::uint64_t certificate = 0, std::uint64_t from = 1) {
    Hello hello;
    hello.settings = join.settings();
    hello.phase = phase;
    hello.age = 10;
    if (phase == RunPhase::finished) hello.certificate = Hasher().add(certificate).finish();
    take(join.on_message(now, id_of(from), hello));
  }
  void come(std::uint64_t peer = 1) { take(join.on_session_up(now, id_of(peer), std::nullopt)); }
  void go(std::uint64_t peer = 1) { take(join.on_session_down(now, id_of(peer))); }
  void pass(Duration time) {
    for (const TimePoint end = now + time; now < end; now += 500ms) take(join.on_tick(now));
  }
  // The fetch takes a minute and comes to nothing.
  void fail_to_fetch() {
    pass(1min);
    take(join.on_final_unavailable(now));
  }
};

}  // namespace

TEST_SUITE("bootstrap/join_finished") {
  TEST_CASE("who comes to a finished swarm fetches the certified model") {
    JoinSwarm swarm(13);
    swarm.start({}, {});
    swarm.run(1s);
    const Hash certificate = hash_of(as_bytes("certificate"));
    swarm.finish(0, certificate);
    swarm.run(1s);
    const auto node = swarm.start({}, {0});
    swarm.run(2s);
    REQUIRE(swarm.told<FetchFinal>(node).size() == 1);
    CHECK(swarm.told<FetchFinal>(node)[0].certificate == certificate);
    CHECK(swarm.at(node).phase() == JoinPhase::fetching);
    CHECK(!swarm.trains(node));
  }

  TEST_CASE("who comes to a swarm that trains joins it, though one member has finished") {
    for (const auto& [finished_first, required] :
         {std::pair(false, 0U), {true, 0U}, {false, 3U}, {true, 3U}}) {
      CAPTURE(finished_first);
      CAPTURE(required);
      JoinSwarm swarm(13);
      const auto trainer = swarm.start({}, {});
      swarm.run(1s);
      swarm.set_age(trainer, 1'000'000);
      NodePlan ended;
      ended.certificate = hash_of(as_bytes("certificate"));
      const auto finished = swarm.start(ended, {trainer});
      swarm.run(1s);

      NodePlan plan;
      plan.options.require_peers = required;
      const auto joiner = swarm.start(plan, {finished_first ? finished : trainer});
      swarm.run(200ms);
      swarm.add_seed(joiner, finished_first ? trainer : finished);
      swarm.run(20s);

      CHECK(swarm.told<FetchFinal>(joiner).empty());
      CHECK(swarm.trains(joiner) == (required == 0));
      CHECK(swarm.told<InstallState>(joiner).size() == (required == 0 ? 1 : 0));
    }
  }

  TEST_CASE("who comes to a swarm that is finishing waits for what comes of it") {
    for (const bool finishes : {true, false}) {
      CAPTURE(finishes);
      JoinSwarm swarm(13);
      swarm.start({}, {});
      swarm.run(1s);
      swarm.set_age(0, 5000);
      swarm.begin_finish(0);
      swarm.run(1s);
      const auto node = swarm.start({}, {0});
      swarm.run(2min);
      CHECK(!swarm.trains(node));
      CHECK(swarm.at(node).phase() == JoinPhase::greeting);

      if (finishes) swarm.finish(0, hash_of(as_bytes("certificate")));
      swarm.run(finishes ? Duration(5s) : Duration(9min));
      CHECK(swarm.told<FetchFinal>(node).size() == (finishes ? 1 : 0));
      CHECK(swarm.trains(node) == !finishes);
    }
  }

  TEST_CASE("to come again does not make a newcomer wait anew for an end that does not come") {
    Visited node(Start::genesis);
    for (std::uint64_t minute = 0; minute < 11; ++minute) {
      CHECK(!node.began);
      const std::uint64_t peer = minute % 2;  // two of them, in turn: one is always there
      node.come(peer);
      node.hear(RunPhase::finishing, 0, peer);
      node.go(1 - peer);
      node.pass(1min);
    }
    CHECK(node.began);
  }

  TEST_CASE("a certificate that leads to nothing holds nobody's start") {
    for (const auto start : {Start::genesis, Start::checkpoint}) {
      Visited node(start);
      node.come();
      node.hear(RunPhase::finished, 7);
      node.pass(2s);
      REQUIRE(node.fetched.size() == 1);
      node.fail_to_fetch();
      node.come(2);
      node.hear(RunPhase::finished, 7, 2);
      node.go();
      node.pass(15s);
      CHECK(node.began);
      CHECK(node.fetched.size() == 1);
    }
  }

  TEST_CASE("a certificate that leads to nothing is asked for ever more rarely") {
    Visited node(Start::genesis);
    node.come(2);
    node.hear(RunPhase::finishing, 0, 2);  // so that nothing begins
    node.come();
    node.hear(RunPhase::finished, 7);
    node.pass(2s);
    for (const auto pause : {1min, 2min, 4min}) {
      const auto told = node.fetched.size();
      node.take(node.join.on_final_unavailable(node.now));
      node.pass(pause - 2s);
      CHECK(node.fetched.size() == told);
      node.pass(3s);
      CHECK(node.fetched.size() == told + 1);
    }
  }

  TEST_CASE("nor do certificates of which each is a new one") {
    Visited node(Start::genesis);
    node.come();
    for (std::uint64_t certificate = 1; certificate < 20 && !node.began; ++certificate) {
      node.hear(RunPhase::finished, certificate);
      node.pass(2s);
      if (node.join.phase() == JoinPhase::fetching) node.fail_to_fetch();
    }
    node.pass(15s);
    CHECK(node.began);
    CHECK(node.fetched.size() <= 4);
  }

  TEST_CASE("a node with a checkpoint waits for nobody's end") {
    JoinSwarm swarm(13);
    swarm.start({}, {});
    swarm.run(1s);
    swarm.begin_finish(0);
    swarm.run(1s);
    NodePlan plan;
    plan.start = Start::checkpoint;
    plan.age = 4000;
    const auto node = swarm.start(plan, {0});
    swarm.run(20s);
    CHECK(swarm.trains(node));
  }

  TEST_CASE("no node that trains ends because somebody says that it has finished") {
    JoinSwarm swarm(13);
    const auto node = swarm.start({}, {});
    swarm.run(1s);
    REQUIRE(swarm.trains(node));
    NodePlan finished;
    finished.certificate = hash_of(as_bytes("certificate"));
    swarm.start(finished, {node});
    swarm.run(5s);
    // What a certificate means for it the final consensus decides, which sees the certificate.
    CHECK(swarm.told<FetchFinal>(node).empty());
    CHECK(swarm.trains(node));
    CHECK(swarm.at(node).phase() == JoinPhase::member);
  }

  TEST_CASE(
      "a node that starts finished trains never and sends who comes for the certified model") {
    JoinSwarm swarm(13);
    NodePlan finished;
    finished.settings["lr"] = "0.5";
    finished.certificate = hash_of(as_bytes("certificate"));
    finished.options.require_peers = 1;
    finished.options.join_timeout = 5s;
    const auto server = swarm.start(finished, {});
    swarm.run(20s);
    NodePlan other;
    other.settings["lr"] = "0.9";
    const auto joiner = swarm.start(other, {server});
    swarm.run(2s);

    CHECK(!swarm.trains(server));
    CHECK(swarm.told<GiveUp>(server).empty());
    CHECK(swarm.told<AdoptSettings>(server).empty());
    CHECK(swarm.told<AdoptSettings>(joiner).size() == 1);
    REQUIRE(swarm.told<FetchFinal>(joiner).size() == 1);
    CHECK(swarm.told<FetchFinal>(joiner)[0].certificate == finished.certificate);
    CHECK(!swarm.trains(joiner));
  }
}
