#include "bootstrap/join.h"

#include "node/base/hash.h"
#include "tests/bootstrap/join_swarm.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

NodePlan with_lr(const std::string& lr, std::set<std::string> forced = {}) {
  NodePlan plan;
  plan.settings["lr"] = lr;
  plan.forced = std::move(forced);
  return plan;
}

NodePlan requiring(std::uint32_t peers, Duration timeout) {
  NodePlan plan;
  plan.options.require_peers = peers;
  plan.options.join_timeout = timeout;
  return plan;
}

}  // namespace

TEST_SUITE("bootstrap/join") {
  TEST_CASE("a node with nobody to try trains at once") {
    JoinSwarm swarm(1);
    const auto node = swarm.start({}, {});
    CHECK(swarm.trains(node));
    CHECK(swarm.told<BeginTraining>(node).at(0).start == Start::genesis);
    CHECK(!swarm.told<Joined>(node).at(0).via.has_value());
  }

  TEST_CASE("a node whose peers do not answer trains alone after the grace, and keeps trying") {
    JoinSwarm swarm(2);
    const auto node = swarm.start({}, {7});
    swarm.run(9s);
    CHECK(!swarm.trains(node));
    swarm.run(2s);
    CHECK(swarm.trains(node));
    const auto before = swarm.told<Dial>(node).size();
    swarm.run(5min);
    CHECK(swarm.told<Dial>(node).size() > before + 5);
  }

  TEST_CASE("who comes, says nothing and comes again holds nobody's start") {
    for (const auto how : {Start::genesis, Start::checkpoint}) {
      TimePoint now = kStart;
      Join join(now, {*Settings::from({{"lr", "0.5"}}), {}, how, {}}, Rng(1));
      Seed seed;
      seed.endpoint = {"10.0.0.2", 7700};
      REQUIRE(join.add_seeds(now, {seed}).has_value());
      (void)join.begin(now);
      bool began = false;
      const auto take = [&](const JoinEffects& effects) {
        for (const auto& effect : effects)
          began = began || std::holds_alternative<BeginTraining>(effect);
      };
      for (std::uint64_t turn = 0; now < kStart + 16s; ++turn, now += 500ms) {
        // Two of them, in turn: one is always there.
        if (turn % 6 == 0) {
          take(join.on_session_up(now, id_of(turn / 6 % 2), std::nullopt));
          take(join.on_session_down(now, id_of((turn / 6 + 1) % 2)));
        }
        take(join.on_tick(now));
        CHECK((!began || now >= kStart + 15s));
      }
      CHECK(began);
    }
  }

  TEST_CASE("a seed that dialled this node first is left alone once it has answered") {
    JoinSwarm swarm(31);
    swarm.start({}, {1});
    swarm.start({}, {0});
    swarm.run(10min);
    CHECK(swarm.told<Dial>(0).size() <= 3);
    CHECK(swarm.told<Dial>(1).size() == 1);
    swarm.kill(1);
    swarm.run(1s);
    CHECK(swarm.told<Dial>(0).size() >= 3);
  }

  TEST_CASE("a node without any session tries its seeds, though its view calls them alive") {
    TimePoint now = kStart;
    Join join(now, {*Settings::from({{"lr", "0.5"}}), {}, Start::genesis, {}}, Rng(1));
    std::vector<Seed> seeds(2);
    seeds[0].endpoint = {"10.0.0.2", 7700};
    seeds[1].endpoint = {"10.0.0.3", 7700};
    REQUIRE(join.add_seeds(now, seeds).has_value());
    (void)join.begin(now);
    LocalFacts facts;
    facts.alive = {id_of(2), id_of(3)};
    std::ranges::sort(facts.alive);
    Hello hello;
    hello.settings = join.settings();
    for (const std::uint64_t peer : {2U, 3U}) {
      (void)join.on_session_up(now, id_of(peer), seeds[peer - 2].endpoint);
      (void)join.on_message(now, id_of(peer), hello);
    }
    (void)join.update(now, facts);
    now += 1min;
    const auto dials = [](const JoinEffects& effects) {
      return std::ranges::count_if(
          effects, [](const auto& effect) { return std::holds_alternative<Dial>(effect); });
    };
    // Closed as unneeded: a member with which nothing need be dialled.
    CHECK(dials(join.on_session_down(now, id_of(2))) == 0);
    auto effects = join.on_session_down(now, id_of(3));
    std::ranges::move(join.on_isolated(now), std::back_inserter(effects));
    CHECK(dials(effects) == 2);
  }

  TEST_CASE("two to five nodes that start at once become one swarm, in any order, from genesis") {
    for (std::uint64_t seed = 1; seed <= 25; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      JoinSwarm swarm(seed);
      const std::size_t count = 2 + rng.below(4);
      std::vector<std::size_t> all(count);
      std::iota(all.begin(), all.end(), 0);
      for (std::size_t i = 0; i < count; ++i) {
        swarm.start({}, all);  // everybody has the same seeds, itself among them
        swarm.run(Duration(static_cast<std::int64_t>(rng.below(1'500'000))));
      }
      swarm.run(15s);
      for (std::size_t a = 0; a < count; ++a) {
        CHECK(swarm.trains(a));
        CHECK(swarm.model(a) == swarm.model(0));
        CHECK(swarm.told<InstallState>(a).empty());  // nobody had to load what all can draw
        for (std::size_t b = 0; b < a; ++b) CHECK(swarm.same(a, b));
      }
    }
  }

  TEST_CASE("starters with different settings that nobody forced end with the same") {
    for (std::uint64_t seed = 1; seed <= 15; ++seed) {
      CAPTURE(seed);
      JoinSwarm swarm(seed);
      std::vector<std::size_t> all{0, 1, 2, 3};
      for (std::size_t i = 0; i < 4; ++i) {
        swarm.start(with_lr("0." + std::to_string(i + 1)), all);
        swarm.run(Duration(static_cast<std::int64_t>(seed) * 30ms));
      }
      swarm.run(30s);
      for (std::size_t node = 1; node < 4; ++node) {
        CHECK(swarm.trains(node));
        CHECK(swarm.at(node).settings() == swarm.at(0).settings());
        CHECK(swarm.model(node) == swarm.model(0));
      }
    }
  }

  TEST_CASE("a newcomer takes the model of a swarm that has gone on, and adopts its settings") {
    JoinSwarm swarm(3);
    swarm.start({}, {});
    swarm.run(1s);
    swarm.set_age(0, 5000);
    swarm.run(1s);
    const auto newcomer = swarm.start(with_lr("0.1"), {0});
    swarm.run(5s);
    CHECK(swarm.trains(newcomer));
    CHECK(swarm.age(newcomer) >= 5000);
    CHECK(swarm.model(newcomer) == swarm.model(0));
    CHECK(swarm.at(newcomer).settings() == swarm.at(0).settings());
    CHECK(swarm.told<BeginTraining>(newcomer).empty());
    const auto joined = swarm.told<Joined>(newcomer);
    REQUIRE(joined.size() == 1);
    CHECK(joined[0].via == swarm.id(0));
    CHECK(joined[0].took < 3s);
  }

  TEST_CASE("a node with a checkpoint goes on from it") {
    JoinSwarm swarm(6);
    swarm.start({}, {});
    swarm.run(1s);
    swarm.set_age(0, 5000);
    swarm.run(1s);
    NodePlan plan;
    plan.start = Start::checkpoint;
    plan.age = 4800;
    const auto node = swarm.start(plan, {0});
    swarm.run(3s);
    CHECK(swarm.told<BeginTraining>(node).at(0).start == Start::checkpoint);
    CHECK(swarm.told<InstallState>(node).empty());
  }

  TEST_CASE("a running node that fell far behind takes the model again") {
    JoinSwarm swarm(7);
    swarm.start({}, {});
    swarm.start({}, {0});
    swarm.run(2s);
    swarm.set_age(0, 9000);
    swarm.run(1s);
    // What the exchanges find out, the shell passes on.
    const auto effects = swarm.at(1).rejoin(swarm.now());
    CHECK(effects.empty());
    swarm.run(5s);
    CHECK(swarm.told<InstallState>(1).size() == 1);
    CHECK(swarm.age(1) >= 9000);
    CHECK(swarm.at(1).phase() == JoinPhase::member);
  }

  TEST_CASE("settings that are forced on both sides give a diff and no common edge") {
    JoinSwarm swarm(8);
    swarm.start(with_lr("1.7", {"lr"}), {});
    swarm.run(1s);
    const auto node = swarm.start(with_lr("0.8", {"lr"}), {0});
    swarm.run(15s);
    const auto refusals = swarm.told<SettingsRefused>(node);
    REQUIRE(refusals.size() == 1);
    CHECK(refusals[0].sentence.find("lr 0.8 here, 1.7 there") != std::string::npos);
    CHECK(refusals[0].sentence.find("lr forced here") != std::string::npos);
    CHECK(swarm.told<SettingsRefused>(0).size() == 1);
    CHECK(swarm.trains(node));  // alone, as it was told to
    CHECK(!swarm.same(0, node));
    CHECK(swarm.told<GiveUp>(node).empty());
  }

  TEST_CASE("with required peers a forced difference ends the start with the diff") {
    JoinSwarm swarm(9);
    swarm.start(with_lr("1.7"), {});
    swarm.run(1s);
    auto plan = with_lr("0.8", {"lr"});
    plan.options.require_peers = 1;
    const auto node = swarm.start(plan, {0});
    swarm.run(3s);
    REQUIRE(swarm.told<GiveUp>(node).size() == 1);
    const auto error = swarm.told<GiveUp>(node)[0].error;
    CHECK(error.code == Errc::settings_mismatch);
    CHECK(error.detail.find("lr 0.8 here, 1.7 there") != std::string::npos);
  }

  TEST_CASE("required peers that do not come end the start, and nothing was trained meanwhile") {
    JoinSwarm swarm(10);
    const auto lonely = swarm.start(requiring(1, 30s), {5});
    swarm.run(29s);
    CHECK(!swarm.trains(lonely));
    CHECK(swarm.told<GiveUp>(lonely).empty());
    swarm.run(2s);
    REQUIRE(swarm.told<GiveUp>(lonely).size() == 1);
    CHECK(swarm.told<GiveUp>(lonely)[0].error.code == Errc::not_enough_peers);
    CHECK(swarm.told<GiveUp>(lonely)[0].error.detail.find("10.0.0.5:7700 no connection") !=
          std::string::npos);
  }

  TEST_CASE("addresses that all close without a reply are a wrong secret, not an empty room") {
    JoinSwarm swarm(11);
    swarm.start({}, {});
    swarm.deafen(0);
    const auto node = swarm.start(requiring(1, 30s), {0});
    swarm.run(31s);
    REQUIRE(swarm.told<GiveUp>(node).size() == 1);
    CHECK(swarm.told<GiveUp>(node)[0].error.code == Errc::wrong_swarm);
    CHECK(swarm.told<GiveUp>(node)[0].error.detail.find("wrong secret") != std::string::npos);
  }

  TEST_CASE("addresses that all refuse by name are a refusal, and not an empty room") {
    JoinSwarm swarm(11);
    swarm.start({}, {});
    swarm.refuse_all(0);
    const auto node = swarm.start(requiring(1, 30s), {0});
    swarm.run(31s);
    REQUIRE(swarm.told<GiveUp>(node).size() == 1);
    CHECK(swarm.told<GiveUp>(node)[0].error.code == Errc::refused);
    CHECK(swarm.told<GiveUp>(node)[0].error.detail.find("refused") != std::string::npos);
  }

  TEST_CASE("three nodes that require each other all start") {
    JoinSwarm swarm(12);
    for (std::size_t i = 0; i < 3; ++i) {
      swarm.start(requiring(2, 60s), {0, 1, 2});
      swarm.run(2s);
    }
    swarm.run(20s);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(swarm.trains(i));
      CHECK(swarm.told<GiveUp>(i).empty());
    }
  }

  TEST_CASE("a small island adopts the settings of a large one, though it trained longer") {
    JoinSwarm swarm(14);
    swarm.start(with_lr("0.5"), {});
    for (int i = 0; i < 3; ++i) swarm.start(with_lr("0.5"), {0});
    const auto loner = swarm.start(with_lr("0.9"), {});
    swarm.run(5s);
    swarm.set_age(loner, 500);
    swarm.run(1s);
    swarm.add_seed(loner, 0);
    swarm.run(5s);
    // Members that only a Hello speaks of do not count; those that membership shows do.
    CHECK(swarm.told<AdoptSettings>(loner).empty());
    for (std::size_t other = 1; other < 4; ++other) swarm.show(loner, other);
    swarm.run(5s);
    CHECK(swarm.at(loner).settings() == swarm.at(0).settings());
    CHECK(swarm.trains(loner));
    CHECK(swarm.at(0).settings().values().at("lr") == "0.5");
  }

  TEST_CASE("a node that lies between two islands takes the larger one's settings once") {
    for (const std::uint32_t required : {0U, 2U}) {
      CAPTURE(required);
      JoinSwarm swarm(19);
      auto plan = with_lr("0.1");
      plan.options.require_peers = required;
      for (int i = 0; i < 3; ++i) swarm.start(plan, {0, 1, 2});
      swarm.start(with_lr("0.9"), {});
      for (int i = 0; i < 4; ++i) swarm.start(with_lr("0.9"), {3});
      swarm.run(10min);  // past the join timeout
      swarm.add_seed(0, 3);
      for (std::size_t other = 4; other < 8; ++other) swarm.show(0, other);
      swarm.run(1min);

      CHECK(swarm.told<AdoptSettings>(0).size() == 1);
      CHECK(swarm.told<GiveUp>(0).empty());
      CHECK(swarm.at(0).settings().values().at("lr") == "0.9");
      CHECK(swarm.trains(0));
      CHECK(swarm.same(0, 3));
      CHECK(swarm.told<AdoptSettings>(3).empty());
    }
  }

  TEST_CASE("a Hello that claims more members than anybody sees moves no swarm") {
    JoinSwarm swarm(16);
    swarm.start(with_lr("0.5"), {});
    swarm.start(with_lr("0.5"), {0});
    swarm.run(5s);
    auto liar = with_lr("0.9", {"lr"});
    liar.lie = [](BootstrapMessage& message) {
      auto* hello = std::get_if<Hello>(&message);
      if (hello == nullptr) return;
      hello->alive = std::uint64_t{1} << 60U;
      hello->samples = std::uint64_t{1} << 60U;
    };
    swarm.start(liar, {0, 1});
    swarm.run(2min);

    for (std::size_t node = 0; node < 2; ++node) {
      CHECK(swarm.told<AdoptSettings>(node).empty());
      CHECK(swarm.told<BeginTraining>(node).size() == 1);
      CHECK(swarm.trains(node));
    }
  }

  TEST_CASE("settings that cannot be used here are tried once, and the node trains on") {
    JoinSwarm swarm(17);
    auto plan = with_lr("0.5");
    plan.unusable_lr = {"0.9"};
    const auto node = swarm.start(plan, {});
    const auto larger = swarm.start(with_lr("0.9"), {});
    swarm.start(with_lr("0.9"), {larger});
    swarm.run(5s);
    for (std::size_t other = larger; other < 3; ++other) swarm.add_seed(node, other);
    swarm.run(1h);

    CHECK(swarm.told<AdoptSettings>(node).size() == 1);
    CHECK(swarm.at(node).phase() == JoinPhase::member);
    CHECK(swarm.trains(node));
    // Once for each of the two, with the reason.
    const auto refusals = swarm.told<SettingsRefused>(node);
    REQUIRE(refusals.size() == 2);
    CHECK(refusals[0].sentence.find("another genesis") != std::string::npos);
    CHECK(refusals[0].peer != refusals[1].peer);
  }

  TEST_CASE("settings that were put off are asked for again, and a bounded number is remembered") {
    TimePoint now = kStart;
    JoinParts parts;
    parts.own = *Settings::from({{"lr", "0"}});
    Join join(now, std::move(parts), Rng(1));
    (void)join.begin(now);
    LocalFacts facts;
    facts.phase = RunPhase::training;
    (void)join.update(now, facts);
    (void)join.on_session_up(now, id_of(2), std::nullopt);
    const auto asks = [&](std::size_t lr) {
      Hello hello;
      hello.settings = *Settings::from({{"lr", std::to_string(lr)}});
      hello.alive = 1;
      hello.samples = 9;
      hello.phase = RunPhase::training;
      const auto effects = join.on_message(now, id_of(2), hello);
      return std::ranges::any_of(effects, [](const JoinEffect& effect) {
        return std::holds_alternative<AdoptSettings>(effect);
      });
    };

    CHECK(asks(1));
    (void)join.on_settings_kept(now);
    CHECK(join.phase() == JoinPhase::member);
    CHECK(asks(1));
    for (std::size_t lr = 1; lr <= 17; ++lr) {
      (void)join.on_settings_unusable(now, {Errc::settings_mismatch, Doing::joining, ""});
      CHECK(join.phase() == JoinPhase::member);
      CHECK(!asks(lr));
      now += 1min;  // the longest pause between two tries
      CHECK(asks(lr + 1));
    }
    (void)join.on_settings_unusable(now, {Errc::settings_mismatch, Doing::joining, ""});
    now += 1min;
    CHECK(!asks(18));
    CHECK(asks(1));  // the oldest of them has been forgotten
  }

  TEST_CASE("a peer tells whether it can dial back, not more often than asked in good faith") {
    JoinSwarm swarm(15);
    swarm.start({}, {});
    swarm.start({}, {0});
    swarm.run(1s);
    auto effects = swarm.at(1).ask_dial_back(swarm.now(), swarm.id(0), 7700);
    REQUIRE(effects.size() == 1);
    const auto& request = std::get<BootstrapOutgoing>(effects[0]).message;
    auto answer = swarm.at(0).on_message(swarm.now(), swarm.id(1), request);
    REQUIRE(answer.size() == 1);
    CHECK(std::get<ProbePort>(answer[0]).port == 7700);
    CHECK(swarm.at(0).on_message(swarm.now(), swarm.id(1), request).empty());
    auto reply = swarm.at(0).on_probed(swarm.now(), swarm.id(1),
                                       {7700, false, "10.0.0.1:7700", "timed out"});
    REQUIRE(reply.size() == 1);
    const auto told = swarm.at(1).on_message(swarm.now(), swarm.id(0),
                                             std::get<BootstrapOutgoing>(reply[0]).message);
    REQUIRE(told.size() == 1);
    CHECK(!std::get<Reachability>(told[0]).reachable);
    CHECK(std::get<Reachability>(told[0]).detail == "timed out");
  }

  TEST_CASE("after every tick the next deadline lies ahead, in every phase that lasts") {
    std::set<JoinPhase> ever;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      JoinSwarm swarm(seed);
      std::set<JoinPhase> seen;
      swarm.model_bytes = 20 * kChunkBytes;
      swarm.start({}, {9});
      swarm.start(requiring(1, 20s), {0, 8});
      swarm.start(with_lr("0.3"), {0, 1});
      for (int step = 0; step < 300; ++step) {
        if (step == 100) swarm.set_age(0, 4000);
        if (step == 120) swarm.start(requiring(1, 20s), {0, 1, 2});
        if (step == 200) swarm.kill(0);
        swarm.run(Duration(37ms));
        const std::size_t started = step < 120 ? 3 : 4;
        for (std::size_t node = step < 200 ? 0 : 1; node < started; ++node) {
          swarm.tick(node);
          seen.insert(swarm.at(node).phase());
          CHECK(swarm.at(node).next_deadline() > swarm.now());
        }
      }
      CAPTURE(seen.size());
      CHECK(seen.contains(JoinPhase::loading));
      CHECK(seen.contains(JoinPhase::member));
      ever.insert(seen.begin(), seen.end());
    }
    // The others pass within a turn.
    for (const auto phase : {JoinPhase::choosing, JoinPhase::loading, JoinPhase::member})
      CHECK_MESSAGE(ever.contains(phase), name_of(phase));
  }
}
