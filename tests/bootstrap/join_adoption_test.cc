// How often a node takes the settings of others.
#include "bootstrap/join.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

Settings settings_of(const std::string& lr) { return *Settings::from({{"lr", lr}}); }

// A node whose shell takes other settings without delay, as one with a small model does.
struct Undecided {
  TimePoint now = kStart;
  LocalFacts facts;
  std::size_t taken = 0;
  std::string useless = {};  // a learning rate that this node's data cannot follow
  Join join{kStart, {settings_of("0.5"), {}, Start::genesis, {}}, Rng(1)};

  Undecided() {
    take(join.update(now, facts));
    for (const std::uint64_t peer : {1U, 2U}) take(join.on_session_up(now, id_of(peer), {}));
    take(join.begin(now));
  }
  void take(JoinEffects effects) {
    std::deque<JoinEffect> left(effects.begin(), effects.end());
    for (; !left.empty() && taken < 200; left.pop_front()) {
      if (std::holds_alternative<BeginTraining>(left.front())) facts.phase = RunPhase::training;
      const auto* adopt = std::get_if<AdoptSettings>(&left.front());
      if (adopt == nullptr || adopt->settings.values().at("lr") == useless) continue;
      ++taken;
      facts.phase = RunPhase::starting;
      std::ranges::move(join.on_settings_adopted(now, adopt->settings), std::back_inserter(left));
    }
  }
  void hear(std::uint64_t from, const std::string& lr, std::uint64_t alive = 1) {
    Hello hello;
    hello.settings = settings_of(lr);
    hello.phase = RunPhase::training;
    hello.alive = alive;
    hello.samples = 1000;
    take(join.on_message(now, id_of(from), hello));
  }
  void pass(Duration time) {
    for (const TimePoint end = now + time; now < end;) {
      now += 1s;
      take(join.update(now, facts));
      take(join.on_tick(now));
    }
  }
  [[nodiscard]] std::string lr() const { return join.settings().values().at("lr"); }
};

}  // namespace

TEST_SUITE("bootstrap/join") {
  TEST_CASE(
      "a node between two runs that membership does not show yet stays with one for a while") {
    Undecided node;
    node.hear(1, "0.1");
    node.hear(2, "0.2");
    CHECK(node.taken == 1);
    CHECK(node.lr() == "0.1");
    node.pass(10min);
    CHECK(node.taken <= 16);
  }

  TEST_CASE("the larger of two runs is taken a second after the smaller one") {
    Undecided node;
    node.hear(1, "0.1");
    node.hear(2, "0.2", 4);
    for (std::uint64_t member = 1; member <= 5; ++member) node.facts.alive.push_back(id_of(member));
    std::ranges::sort(node.facts.alive);
    node.facts.alive_same = 1;
    node.take(node.join.update(node.now, node.facts));
    CHECK(node.lr() == "0.1");
    node.pass(1s);
    CHECK(node.lr() == "0.2");
    node.facts.alive_same = 4;
    node.pass(10min);
    CHECK(node.taken == 2);
  }

  TEST_CASE("a peer that says other settings with every Hello does not keep a node from training") {
    Undecided node;
    std::size_t trained = 0;
    for (int second = 0; second < 600; ++second) {
      node.hear(1, "1." + std::to_string(second));
      node.pass(1s);
      trained += node.facts.phase == RunPhase::training ? 1 : 0;
    }
    CHECK(node.taken <= 16);
    CHECK(trained > 400);
  }

  TEST_CASE("a run that is heard of while another proves useless is looked at soon after it") {
    Undecided node;
    node.useless = "0.1";
    node.hear(1, "0.1");
    node.hear(2, "0.2");
    CHECK(node.join.phase() == JoinPhase::adopting);
    const Error why{Errc::settings_mismatch, Doing::joining, "another genesis"};
    node.take(node.join.on_settings_unusable(node.now, why));
    node.pass(2s);
    CHECK(node.lr() == "0.2");
  }

  TEST_CASE("a peer whose settings are all useless costs a genesis a minute at most") {
    Undecided node;
    std::size_t tried = 0;
    for (int second = 0; second < 600; ++second) {
      node.useless = "1." + std::to_string(second);
      node.hear(1, node.useless);
      node.pass(1s);
      if (node.join.phase() != JoinPhase::adopting) continue;
      ++tried;
      node.take(node.join.on_settings_unusable(
          node.now, {Errc::settings_mismatch, Doing::joining, "another genesis"}));
    }
    CHECK(tried <= 16);
  }

  TEST_CASE("a run that is met long after the last one is taken at once, and the next soon") {
    Undecided node;
    for (int second = 0; second < 600; ++second) {
      node.hear(1, "1." + std::to_string(second));
      node.pass(1s);
    }
    node.take(node.join.on_session_down(node.now, id_of(1)));
    node.pass(1h);
    const std::size_t before = node.taken;
    node.take(node.join.on_session_up(node.now, id_of(1), {}));
    node.hear(1, "0.1");
    CHECK(node.taken == before + 1);
    node.hear(2, "0.2");
    node.pass(2s);
    CHECK(node.taken == before + 2);
  }

  TEST_CASE("sponsors that failed a node in its last run come first again in another one") {
    Undecided node;
    node.facts.max_state_bytes = 1000;
    const auto says = [&](std::uint64_t from, const std::string& lr, std::uint32_t load) {
      Hello hello;
      hello.settings = settings_of(lr);
      hello.phase = RunPhase::training;
      hello.alive = 9;
      hello.age = 5000;
      hello.load = load;
      node.take(node.join.on_message(node.now, id_of(from), hello));
    };
    node.pass(20s);
    REQUIRE(node.facts.phase == RunPhase::training);
    says(1, "0.5", 0);
    says(2, "0.5", 5);
    (void)node.join.rejoin(node.now);
    node.pass(1s);
    REQUIRE(node.join.status(node.now).sponsor == id_of(1));
    node.take(node.join.on_message(node.now, id_of(1), StateRefused{Hash{}, RefusalReason::busy}));
    REQUIRE(node.join.status(node.now).sponsor == id_of(2));
    node.pass(6s);

    for (std::uint64_t member = 1; member <= 9; ++member) node.facts.alive.push_back(id_of(member));
    std::ranges::sort(node.facts.alive);
    node.facts.alive_same = 0;
    node.take(node.join.update(node.now, node.facts));
    says(1, "0.1", 0);
    REQUIRE(node.lr() == "0.1");
    says(2, "0.1", 5);
    node.facts.alive_same = 9;
    node.pass(2s);
    CHECK(node.join.status(node.now).sponsor == id_of(1));
  }

  TEST_CASE("whoever says to finish other settings each time holds a start no longer than one") {
    Undecided node;
    for (int second = 0; second < 11 * 60; ++second) {
      Hello hello;
      hello.settings = settings_of("1." + std::to_string(second));
      hello.phase = RunPhase::finishing;
      hello.alive = 1;
      hello.samples = 1000;
      node.take(node.join.on_message(node.now, id_of(1), hello));
      node.pass(1s);
    }
    CHECK(node.facts.phase == RunPhase::training);
  }
}
