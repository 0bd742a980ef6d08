// `--require-peers` where somebody answers whose settings this node's refuse: who else may come?
#include "bootstrap/join.h"
#include "tests/bootstrap/join_swarm.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

const transport::Endpoint kName{"trainer.example", 7700};
const transport::Endpoint kOldPod{"10.0.0.1", 7700};
const transport::Endpoint kNewPod{"10.0.0.2", 7700};

NodePlan of_run(const std::string& lr) {
  NodePlan plan;
  plan.settings["lr"] = lr;
  plan.forced = {"lr"};
  return plan;
}

// The same for a node that requires a peer.
NodePlan requiring(const std::string& lr) {
  NodePlan plan = of_run(lr);
  plan.options.require_peers = 1;
  return plan;
}

// One node that requires a peer behind a name, at which a node of an older run answers.
struct BehindAName {
  TimePoint now = kStart;
  Join join;
  JoinEffects told;

  explicit BehindAName(SeedKind kind) : join(kStart, parts(), Rng(1)) {
    Seed seed;
    seed.kind = kind;
    seed.endpoint = kName;
    take(*join.add_seeds(now, {seed}));
    take(join.begin(now));
    take(join.on_resolved(now, kName, std::vector{kOldPod, kNewPod}));
    take(join.on_session_up(now, id_of(2), kOldPod));
  }
  static JoinParts parts() {
    JoinParts parts;
    parts.own = *Settings::from({{"lr", "0.5"}});
    parts.forced = {"lr"};
    parts.options.require_peers = 1;
    return parts;
  }
  void take(JoinEffects effects) {
    for (auto& effect : effects) told.push_back(std::move(effect));
  }
  void hear_of(std::uint64_t peer, const std::string& lr) {
    Hello hello;
    hello.settings = *Settings::from({{"lr", lr}});
    hello.forced = {"lr"};
    hello.alive = 1;
    hello.phase = RunPhase::training;
    take(join.on_message(now, id_of(peer), hello));
  }
  void pass(Duration time) {
    for (const TimePoint end = now + time; now < end; now += 100ms) take(join.on_tick(now));
  }
  [[nodiscard]] std::ptrdiff_t dials(const transport::Endpoint& endpoint) const {
    return std::ranges::count_if(told, [&](const JoinEffect& effect) {
      const auto* dial = std::get_if<Dial>(&effect);
      return dial != nullptr && dial->target.endpoint == endpoint;
    });
  }
  [[nodiscard]] std::optional<Error> end() const {
    for (const auto& effect : told)
      if (const auto* give = std::get_if<GiveUp>(&effect)) return give->error;
    return std::nullopt;
  }
};

}  // namespace

TEST_SUITE("bootstrap/join") {
  TEST_CASE("a seed of another run keeps nobody from the required peer at the next seed") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      JoinSwarm swarm(seed);
      swarm.start(of_run("0.9"), {});
      swarm.start(of_run("0.5"), {});
      swarm.run(1s);
      const auto node = swarm.start(requiring("0.5"), {0, 1});
      swarm.run(20s);

      CHECK(swarm.told<GiveUp>(node).empty());
      CHECK(swarm.told<SettingsRefused>(node).size() == 1);
      CHECK(swarm.same(node, 1));
      CHECK(swarm.trains(node));
    }
  }

  TEST_CASE("with a seed that has not answered yet the required peer is waited for") {
    JoinSwarm swarm(1);
    swarm.start(of_run("0.9"), {});
    const auto node = swarm.start(requiring("0.5"), {0, 2});
    swarm.run(2min);
    CHECK(swarm.told<GiveUp>(node).empty());
    swarm.start(of_run("0.5"), {});
    swarm.run(1min);
    CHECK(swarm.told<GiveUp>(node).empty());
    CHECK(swarm.same(node, 2));
  }

  TEST_CASE("with a seed that never answers the refusal is the verdict when time is over") {
    JoinSwarm swarm(1);
    swarm.start(of_run("0.9"), {});
    const auto node = swarm.start(requiring("0.5"), {0, 7});
    swarm.run(4min);
    CHECK(swarm.told<GiveUp>(node).empty());
    swarm.run(2min);
    REQUIRE(swarm.told<GiveUp>(node).size() == 1);
    CHECK(swarm.told<GiveUp>(node)[0].error.code == Errc::settings_mismatch);
  }

  TEST_CASE("seeds that all refuse, this node itself among them, end the start at once") {
    JoinSwarm swarm(1);
    swarm.start(of_run("0.9"), {});
    swarm.start(of_run("0.9"), {0});
    swarm.run(1s);
    const auto node = swarm.start(requiring("0.5"), {0, 1, 2});
    swarm.run(3s);
    REQUIRE(swarm.told<GiveUp>(node).size() == 1);
    CHECK(swarm.told<GiveUp>(node)[0].error.code == Errc::settings_mismatch);
  }

  TEST_CASE("behind a name of several nodes, one of another run ends nothing") {
    BehindAName stage(SeedKind::all_of_name);
    stage.take(stage.join.on_dial_failed(stage.now, kNewPod,
                                         {Errc::connect_refused, Doing::connecting, "refused"}));
    stage.hear_of(2, "0.9");
    stage.pass(2s);
    CHECK(!stage.end());
    CHECK(stage.dials(kNewPod) >= 2);
    stage.take(stage.join.on_session_up(stage.now, id_of(3), kNewPod));
    stage.hear_of(3, "0.5");
    stage.pass(1s);
    CHECK(!stage.end());
    CHECK(stage.join.same_settings(id_of(3)));
  }

  TEST_CASE("the addresses of a name are tried once before another run there ends the start") {
    BehindAName stage(SeedKind::address);
    stage.hear_of(2, "0.9");
    CHECK(!stage.end());
    stage.pass(1s);
    CHECK(!stage.end());
    stage.take(stage.join.on_dial_failed(stage.now, kNewPod,
                                         {Errc::connect_refused, Doing::connecting, "refused"}));
    stage.pass(1s);
    REQUIRE(stage.end().has_value());
    CHECK(stage.end()->code == Errc::settings_mismatch);
  }

  TEST_CASE("who has a session and has not said its settings yet may be the required peer") {
    BehindAName stage(SeedKind::address);
    stage.take(stage.join.on_dial_failed(stage.now, kNewPod,
                                         {Errc::connect_refused, Doing::connecting, "refused"}));
    stage.take(stage.join.on_session_up(stage.now, id_of(3), std::nullopt));
    stage.hear_of(2, "0.9");
    stage.pass(1s);
    CHECK(!stage.end());
    stage.hear_of(3, "0.5");
    CHECK(stage.join.same_settings(id_of(3)));
  }

  TEST_CASE("a name that has no address yet may stand for the required peer") {
    Join join(kStart, BehindAName::parts(), Rng(1));
    Seed name;
    name.kind = SeedKind::all_of_name;
    name.endpoint = kName;
    Seed literal;
    literal.endpoint = kOldPod;
    REQUIRE(join.add_seeds(kStart, {name, literal}).has_value());
    (void)join.begin(kStart);
    (void)join.on_session_up(kStart, id_of(2), kOldPod);
    Hello hello;
    hello.settings = *Settings::from({{"lr", "0.9"}});
    hello.forced = {"lr"};
    (void)join.on_message(kStart, id_of(2), hello);
    CHECK(join.phase() == JoinPhase::greeting);
    (void)join.on_resolved(kStart, kName, std::vector{kOldPod});
    (void)join.on_tick(kStart + 100ms);
    CHECK(join.phase() == JoinPhase::over);
  }

  TEST_CASE("a node keeps nothing of peers that came and went, however many they were") {
    Join join(kStart, {*Settings::from({{"lr", "0.5"}}), {}, Start::genesis, {}}, Rng(1));
    (void)join.begin(kStart);
    Hello hello;
    hello.settings = join.settings();
    hello.phase = RunPhase::training;
    const auto meet = [&](std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t peer = first; peer <= last; ++peer) {
        (void)join.on_session_up(kStart, id_of(peer), std::nullopt);
        (void)join.on_message(kStart, id_of(peer), hello);
        CHECK(join.same_settings(id_of(peer)));
        (void)join.on_session_down(kStart, id_of(peer));
      }
    };
    meet(1, 1000);
    // Says nothing where a sanitizer keeps the heap.
    const std::size_t before = mallinfo2().uordblks;
    meet(1001, 20'000);
    CHECK(mallinfo2().uordblks < before + 100'000);
  }
}
