// Whom a newcomer asks for a model, and what it does where none comes.
#include "bootstrap/join.h"
#include "tests/bootstrap/join_swarm.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

TEST_SUITE("bootstrap/join") {
  TEST_CASE("a newcomer spares the sponsor that serves others already") {
    JoinSwarm swarm(4);
    swarm.model_bytes = 60 * kChunkBytes;
    swarm.start({}, {});
    swarm.start({}, {0});
    swarm.run(1s);
    swarm.set_age(0, 3000);
    swarm.set_age(1, 3000);
    swarm.chunk_delay = 300ms;
    swarm.run(1s);
    const auto first = swarm.start({}, {0, 1});
    swarm.run(2s);
    const auto second = swarm.start({}, {0, 1});
    swarm.run(20s);
    REQUIRE(swarm.told<InstallState>(first).size() == 1);
    REQUIRE(swarm.told<InstallState>(second).size() == 1);
    CHECK(swarm.told<InstallState>(first)[0].sponsor !=
          swarm.told<InstallState>(second)[0].sponsor);
  }

  TEST_CASE("when the sponsor dies in the middle, another one is found") {
    JoinSwarm swarm(5);
    swarm.model_bytes = 60 * kChunkBytes;
    swarm.start({}, {});
    swarm.start({}, {0});
    swarm.run(1s);
    swarm.set_age(0, 3000);
    swarm.set_age(1, 2900);
    swarm.chunk_delay = 400ms;
    swarm.run(1s);
    const auto newcomer = swarm.start({}, {0, 1});
    swarm.run(1500ms);
    REQUIRE(swarm.at(newcomer).phase() == JoinPhase::loading);
    const auto status = swarm.at(newcomer).status(swarm.now());
    CHECK(status.phase == JoinPhase::loading);
    CHECK(status.transfer.bytes_done > 0);
    CHECK(status.transfer.bytes_total == swarm.model_bytes);
    const auto sponsor = *status.sponsor;
    swarm.kill(sponsor == swarm.id(0) ? 0 : 1);
    swarm.run(30s);
    REQUIRE(swarm.told<InstallState>(newcomer).size() == 1);
    CHECK(swarm.told<InstallState>(newcomer)[0].sponsor != sponsor);
    CHECK(swarm.trains(newcomer));
  }

  TEST_CASE("a sponsor that holds nothing keeps no joiner, though it looks like the best") {
    JoinSwarm swarm(18);
    NodePlan liar;
    liar.lie = [](BootstrapMessage& message) {
      if (auto* hello = std::get_if<Hello>(&message)) {
        hello->age = 1e12;
        hello->load = 0;
      }
      if (auto* chunk = std::get_if<Chunk>(&message)) chunk->bytes = nullptr;
    };
    swarm.start({}, {});
    swarm.start(liar, {0});
    swarm.run(1s);
    for (std::size_t node = 0; node < 2; ++node) swarm.set_age(node, 3000);
    swarm.run(1s);
    const auto newcomer = swarm.start({}, {0, 1});
    swarm.run(30s);

    CHECK(swarm.trains(newcomer));
    REQUIRE(swarm.told<InstallState>(newcomer).size() == 1);
    CHECK(swarm.told<InstallState>(newcomer)[0].sponsor == swarm.id(0));
  }

  TEST_CASE("why no model came is told, with the sponsor's own reason") {
    JoinSwarm swarm(22);
    NodePlan refuses;
    refuses.lie = [](BootstrapMessage& message) {
      if (std::holds_alternative<StateManifest>(message))
        message = StateRefused{Hash{}, RefusalReason::busy};
    };
    swarm.start(refuses, {});
    swarm.run(1s);
    swarm.set_age(0, 3000);
    swarm.run(1s);
    const auto newcomer = swarm.start({}, {0});
    swarm.run(5s);

    const auto failures = swarm.told<TransferFailed>(newcomer);
    REQUIRE(failures.size() == 1);  // it is asked again after a pause
    CHECK(failures[0].sponsor == swarm.id(0));
    CHECK(failures[0].why.find("as many joiners as it can") != std::string::npos);
  }

  TEST_CASE("why a model that came cannot be used is told, and another sponsor is asked") {
    JoinSwarm swarm(23);
    swarm.start({}, {});
    swarm.start({}, {0});
    swarm.run(1s);
    for (std::size_t node = 0; node < 2; ++node) swarm.set_age(node, 3000);
    swarm.run(1s);
    const auto newcomer = swarm.start({}, {0, 1});
    while (swarm.told<InstallState>(newcomer).empty()) swarm.run(1ms);
    const Error why{Errc::corrupt, Doing::transferring_state, "a parameter is not finite"};
    const auto effects = swarm.at(newcomer).on_state_unusable(swarm.now(), why);

    const auto* failed = std::get_if<TransferFailed>(&effects.at(0));
    REQUIRE(failed != nullptr);
    CHECK(failed->sponsor == swarm.told<InstallState>(newcomer)[0].sponsor);
    CHECK(failed->why.find("a parameter is not finite") != std::string::npos);
    const auto next = swarm.at(newcomer).status(swarm.now()).sponsor;
    REQUIRE(next);
    CHECK(*next != failed->sponsor);
    CHECK(std::ranges::any_of(effects, [&](const JoinEffect& effect) {
      const auto* sent = std::get_if<BootstrapOutgoing>(&effect);
      return sent != nullptr && sent->to == *next &&
             std::holds_alternative<StateRequest>(sent->message);
    }));
  }
}
