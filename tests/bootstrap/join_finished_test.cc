// Where somebody has finished already.
#include "bootstrap/join.h"
#include "node/base/hash.h"
#include "tests/bootstrap/join_swarm.h"

#include <doctest/doctest.h>

#include <utility>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

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
