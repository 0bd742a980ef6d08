// How old a snapshot may be that is handed on, and who takes it.
#include "bootstrap/state_transfer.h"
#include "tests/bootstrap/join_swarm.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

// A sponsor whose snapshots are cut at once, with the time as their age in seconds.
struct Giver {
  StateSponsor sponsor{{}};
  StateSponsor::Stock stock;
  TimePoint now = kStart;
  std::size_t cuts = 0;
  Bytes model = Bytes(2 * kChunkBytes);

  Giver() {
    stock.fingerprint = hash_of(as_bytes("settings"));
    stock.phase = RunPhase::training;
  }
  // What the asker is offered.
  StateManifest ask(std::uint64_t asker) {
    auto effects = sponsor.on_request(now, id_of(asker), {stock.fingerprint, Hash{}}, stock);
    if (effects.take_snapshot) {
      ++cuts;
      Manifest about;
      about.fingerprint = stock.fingerprint;
      about.age = seconds(now - kStart);
      // Owners: see SharedSnapshot.
      auto cut = std::make_shared<const Snapshot>(*cut_snapshot({model}, about));
      effects = sponsor.on_snapshot(now, std::move(cut), stock);
    }
    REQUIRE(effects.send.size() == 1);
    REQUIRE(std::holds_alternative<StateManifest>(effects.send[0].message));
    return std::get<StateManifest>(effects.send[0].message);
  }
  // Whether the chunk that is asked for comes.
  bool gives(std::uint64_t asker, const Hash& snapshot) {
    const auto effects = sponsor.on_chunk_request(now, id_of(asker), {snapshot, 0});
    return std::get<Chunk>(effects.send.at(0).message).bytes != nullptr;
  }
  void pass(Duration time) {
    now += time;
    sponsor.on_tick(now);
  }
};

}  // namespace

TEST_SUITE("bootstrap/state_transfer") {
  TEST_CASE("a joiner that takes hours keeps the model of those who come later no older than one") {
    Giver giver;
    const Hash first = giver.ask(1).manifest.id();
    bool served = true;
    for (int minute = 0; minute < 8 * 60; ++minute) {
      for (int k = 0; k < 3; ++k) {
        giver.pass(20s);
        served = giver.gives(1, first) && served;
      }
      if (minute % 10 != 5) continue;
      const auto offered = giver.ask(2).manifest;
      CAPTURE(minute);
      CHECK(seconds(giver.now - kStart) - offered.age <= seconds(TransferOptions{}.shared));
    }
    CHECK(!served);  // what it had of the old one is of no use any more
    CHECK(giver.cuts >= 2);
  }

  TEST_CASE("newcomers throw nobody out who loads ResNet-50 over 1 Mbit/s") {
    Giver giver;
    const Hash snapshot = giver.ask(1).manifest.id();
    for (int second = 0; second < 14 * 60; second += 2) {
      giver.pass(2s);
      REQUIRE(giver.gives(1, snapshot));
      if (second % 60 == 0) CHECK(giver.ask(2).manifest.id() == snapshot);
    }
    CHECK(giver.cuts == 1);
  }

  TEST_CASE("who takes no chunk of a snapshot keeps nobody from a fresh one") {
    Giver giver;
    (void)giver.ask(1);
    for (int k = 0; k < 6; ++k) {
      giver.pass(15s);
      (void)giver.ask(1);
    }
    CHECK(giver.cuts == 2);
  }

  TEST_CASE("a node that runs takes no model that is older than its own") {
    JoinSwarm swarm(20);
    swarm.model_bytes = 60 * kChunkBytes;
    NodePlan sponsor;
    sponsor.options.transfer.fresh = 2s;
    swarm.start(sponsor, {});
    swarm.start({}, {0});
    swarm.run(1s);
    swarm.set_age(0, 3000);
    swarm.set_age(1, 3000);
    swarm.run(1s);
    swarm.chunk_delay = 3s;
    const auto slow = swarm.start({}, {0});
    swarm.run(5s);
    swarm.set_age(0, 9000);
    swarm.set_age(1, 5000);
    swarm.run(1s);
    REQUIRE(swarm.at(slow).phase() == JoinPhase::loading);
    (void)swarm.at(1).rejoin(swarm.now());
    swarm.run(40s);
    REQUIRE(swarm.told<InstallState>(slow).size() == 1);
    CHECK(swarm.told<InstallState>(1).empty());
    CHECK(swarm.age(1) >= 5000);
    CHECK(swarm.trains(1));
    // Once the slow one has its model, a new one is cut.
    swarm.run(90s);
    REQUIRE(swarm.told<InstallState>(1).size() == 1);
    CHECK(swarm.told<InstallState>(1)[0].snapshot->manifest.age >= 9000);
    CHECK(swarm.at(1).phase() == JoinPhase::member);
  }

  TEST_CASE("a node that runs drops a model that it has overtaken while it came") {
    JoinSwarm swarm(21);
    swarm.model_bytes = 60 * kChunkBytes;
    swarm.start({}, {});
    swarm.start({}, {0});
    swarm.run(1s);
    swarm.set_age(0, 9000);
    swarm.run(1s);
    swarm.chunk_delay = 1s;
    (void)swarm.at(1).rejoin(swarm.now());
    swarm.run(3s);
    REQUIRE(swarm.at(1).phase() == JoinPhase::loading);
    // Exchanges went on, and each brought the ages nearer.
    swarm.set_age(1, 9500);
    swarm.run(20s);
    CHECK(swarm.told<InstallState>(1).empty());
    CHECK(swarm.age(1) >= 9500);
    CHECK(swarm.at(1).phase() == JoinPhase::member);
  }
}
