// Whom a newcomer asks for a model, and what it does where none comes.
#include "bootstrap/join.h"
#include "tests/bootstrap/join_swarm.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

const Error kUnusable{Errc::settings_mismatch, Doing::joining, "another genesis"};

// A newcomer with sessions to node 1, which has its settings, and node 2, which has others and says
// that a large swarm trains them.
struct Newcomer {
  Join join;
  TimePoint now = kStart;
  JoinEffects told;
  Settings others = *Settings::from({{"lr", "0.1"}});

  Newcomer() : join(kStart, {*Settings::from({{"lr", "0.5"}}), {}, Start::genesis, {}}, Rng(1)) {
    LocalFacts facts;
    facts.max_state_bytes = 100;
    take(join.update(now, facts));
    for (const std::uint64_t peer : {1U, 2U}) take(join.on_session_up(now, id_of(peer), {}));
    take(join.begin(now));
  }
  void take(JoinEffects effects) { std::ranges::move(effects, std::back_inserter(told)); }
  void hear(std::uint64_t from, const BootstrapMessage& message) {
    take(join.on_message(now, id_of(from), message));
  }
  void wait(Duration time) {
    now += time;
    take(join.on_tick(now));
  }
  template <class T>
  [[nodiscard]] std::ptrdiff_t count() const {
    return std::ranges::count_if(told,
                                 [](const auto& one) { return std::holds_alternative<T>(one); });
  }
  void look_at_others() {
    Hello hello;
    hello.settings = others;
    hello.phase = RunPhase::training;
    hello.alive = 1000;
    hear(2, hello);
    REQUIRE(join.phase() == JoinPhase::adopting);
  }
  void load() {
    Hello hello;
    hello.settings = join.settings();
    hello.phase = RunPhase::training;
    hello.age = 500;
    hear(1, hello);
    wait(1s);
    Manifest about;
    about.fingerprint = join.settings().fingerprint();
    about.age = 500;
    const Snapshot snapshot = *cut_snapshot({Bytes(100)}, about);
    StateManifest manifest;
    manifest.manifest = snapshot.manifest;
    hear(1, manifest);
    hear(1, Chunk{snapshot.manifest.id(), 0, snapshot.chunks[0]});
    REQUIRE(count<InstallState>() == 1);
  }
};

// A newcomer that asks whoever it has met for a model, and never gets an answer.
struct Searcher {
  Join join;
  TimePoint now = kStart;
  std::set<NodeId> sponsors;

  explicit Searcher(std::uint64_t seed)
      : join(kStart, {*Settings::from({{"lr", "0.5"}}), {}, Start::genesis, {}}, Rng(seed)) {
    LocalFacts facts;
    facts.max_state_bytes = 100;
    take(join.update(now, facts));
    Seed nobody;
    nobody.endpoint = {"10.0.0.2", 7700};
    take(*join.add_seeds(now, {nobody}));
    take(join.begin(now));
  }
  void take(const JoinEffects& effects) {
    for (const auto& effect : effects)
      if (const auto* sent = std::get_if<BootstrapOutgoing>(&effect))
        if (std::holds_alternative<StateRequest>(sent->message)) sponsors.insert(sent->to);
  }
  void meet(std::uint64_t peer, double age) {
    Hello hello;
    hello.settings = join.settings();
    hello.phase = RunPhase::training;
    hello.age = age;
    take(join.on_session_up(now, id_of(peer), {}));
    take(join.on_message(now, id_of(peer), hello));
  }
  void pass(Duration time) {
    for (const TimePoint end = now + time; now < end; now += 500ms) take(join.on_tick(now));
  }
  [[nodiscard]] bool asked(std::uint64_t peer) const { return sponsors.contains(id_of(peer)); }
};

}  // namespace

TEST_SUITE("bootstrap/join") {
  TEST_CASE("other settings that come to nothing do not lose a state that is put in place") {
    for (const bool kept : {true, false}) {
      CAPTURE(kept);
      Newcomer node;
      node.load();
      node.look_at_others();

      node.take(kept ? node.join.on_settings_kept(node.now)
                     : node.join.on_settings_unusable(node.now, kUnusable));

      CHECK(node.join.phase() == JoinPhase::installing);
      node.take(node.join.on_state_installed(node.now));
      CHECK(node.join.phase() == JoinPhase::member);
      CHECK(node.count<Joined>() == 1);
    }
  }

  TEST_CASE("a state that proves useless while other settings are looked at is told and let go") {
    Newcomer node;
    node.load();
    node.look_at_others();
    node.take(node.join.on_state_unusable(node.now, {Errc::corrupt, Doing::joining, ""}));
    CHECK(node.count<TransferFailed>() == 1);
    node.take(node.join.on_settings_unusable(node.now, kUnusable));
    CHECK(node.join.phase() == JoinPhase::greeting);
  }

  TEST_CASE("other settings that come to nothing do not lose a certified model that is fetched") {
    Newcomer node;
    Hello finished;
    finished.settings = node.join.settings();
    finished.phase = RunPhase::finished;
    finished.certificate = node.join.settings().fingerprint();
    node.hear(1, finished);
    node.wait(6s);
    REQUIRE(node.join.phase() == JoinPhase::fetching);
    node.look_at_others();
    SUBCASE("the fetch goes on") {
      node.take(node.join.on_settings_unusable(node.now, kUnusable));
      CHECK(node.join.phase() == JoinPhase::fetching);
      node.take(node.join.on_final_unavailable(node.now));
    }
    SUBCASE("the fetch fails meanwhile") {
      node.take(node.join.on_final_unavailable(node.now));
      node.take(node.join.on_settings_unusable(node.now, kUnusable));
    }
    CHECK(node.join.phase() == JoinPhase::greeting);
    node.wait(1s);
    CHECK(node.count<FetchFinal>() == 1);
    node.wait(1min);
    CHECK(node.count<FetchFinal>() == 2);  // it is asked for again
  }

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

  TEST_CASE("sponsors that say nothing keep no joiner, though two of them look like the best") {
    JoinSwarm swarm(18);
    NodePlan silent;
    silent.lie = [](BootstrapMessage& message) {
      if (auto* hello = std::get_if<Hello>(&message)) {
        hello->age = 1e12;
        hello->load = 0;
      }
      // Nobody asked for this: it is nothing.
      if (std::holds_alternative<StateManifest>(message)) message = DialBackReply{};
    };
    swarm.start({}, {});
    for (int i = 0; i < 2; ++i) swarm.start(silent, {0});
    swarm.run(1s);
    for (std::size_t node = 0; node < 3; ++node) swarm.set_age(node, 3000);
    swarm.run(1s);
    const auto newcomer = swarm.start({}, {0, 1, 2});
    swarm.run(2min);

    CHECK(swarm.trains(newcomer));
    REQUIRE(swarm.told<InstallState>(newcomer).size() == 1);
    CHECK(swarm.told<InstallState>(newcomer)[0].sponsor == swarm.id(0));
  }

  // Whoever has not failed yet comes first: a liar needs a new name for each time only.
  TEST_CASE("new names with the best claims, each time, do not keep a joiner either") {
    std::size_t asked = 0;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Searcher node(seed);
      node.meet(1, 500);
      for (std::uint64_t liar = 2; liar < 60 && !node.asked(1); liar += 2) {
        node.meet(liar, 1e12);
        node.meet(liar + 1, 1e12);
        for (const std::uint64_t last : {1U, 2U})
          if (liar > 2) node.take(node.join.on_session_down(node.now, id_of(liar - last)));
        node.pass(25s);
      }
      asked += node.asked(1) ? 1 : 0;
    }
    CHECK(asked == 10);
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
