#include "gossip/membership/dial_plan.h"

#include "tests/gossip/membership/stage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <variant>
#include <vector>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

constexpr auto kAtOnce = DialPlan::Manners::at_once;
using Answered = DialPlan::Answered;
using Purpose = DialPlan::Purpose;

// A node whose one neighbour is played by the test: sessions break, dials succeed at once.
struct Breaking {
  Stage stage;
  TimePoint now = kStart;
  bool answers = true;

  Breaking() {
    up();
    (void)stage.node.on_message(now, test_id(1), facts_of({record_of(1)}));
  }
  void up() { (void)stage.node.on_session_up(now, test_id(1)); }
  // Whether the node wants to dial its neighbour.
  bool tick() {
    const auto effects = stage.node.on_tick(now);
    for (const auto& out : effects.send)
      if (const auto* asked = std::get_if<Heartbeat>(&out.message); asked != nullptr && answers)
        (void)stage.node.on_message(now + 1ms, test_id(1), HeartbeatAck{asked->seq});
    return !effects.wanted_sessions.empty();
  }
  bool down(SessionEnd end) {
    return !stage.node.on_session_down(now, test_id(1), end).wanted_sessions.empty();
  }
  void live(Duration lived) {
    for (const TimePoint end = now + lived; now < end; now += 10ms) (void)tick();
  }
};

// Dials in a minute of a neighbour whose sessions end so as soon as they are there.
std::size_t dials_of_a_minute(SessionEnd end, bool answers) {
  Breaking world;
  world.answers = answers;
  std::size_t dials = 0;
  bool is_up = true;
  for (; world.now < kStart + 1min; world.now += 10ms) {
    bool dialled = world.tick();
    if (is_up) dialled = world.down(end) || dialled;
    is_up = dialled;
    if (!dialled) continue;
    ++dials;
    world.up();
  }
  return dials;
}

}  // namespace

TEST_SUITE("gossip/dial_plan") {
  TEST_CASE("a dial that fails is tried again after ever longer pauses, a session forgets that") {
    DialPlan plan({});
    Rng rng(1);
    TimePoint now = kStart;
    std::vector<Duration> pauses;
    for (int i = 0; i < 10; ++i) {
      REQUIRE(plan.take(now, test_id(1), kAtOnce, rng));
      CHECK_FALSE(plan.take(now + 1s, test_id(1), kAtOnce, rng));  // it is out
      plan.on_failed(now, test_id(1), rng);
      pauses.push_back(plan.due(test_id(1)) - now);
      now = plan.due(test_id(1));
    }
    for (std::size_t i = 0; i < pauses.size(); ++i) {
      const Duration base = std::min<Duration>(1min, 1s * (1 << i));
      CHECK(pauses[i] >= base);
      CHECK(pauses[i] <= base * 3 / 2);
    }
    plan.on_up(test_id(1));
    CHECK(plan.due(test_id(1)) == kNever);
    CHECK(plan.take(now, test_id(1), kAtOnce, rng));
  }

  TEST_CASE("who takes sessions only to close them is dialled ever less often, until one lives") {
    DialPlan plan({});
    Rng rng(1);
    std::size_t dials = 0;
    TimePoint now = kStart;
    for (; now < kStart + 2min; now += 10ms) {
      if (!plan.take(now, test_id(1), kAtOnce, rng)) continue;
      ++dials;
      plan.on_up(test_id(1));
      plan.on_down(now, test_id(1), 5ms, Answered::no, rng);
    }
    CHECK(dials >= 6);
    CHECK(dials <= 11);
    plan.on_up(test_id(1));
    plan.on_down(now, test_id(1), 1min, Answered::no, rng);
    CHECK(plan.take(now, test_id(1), kAtOnce, rng));
  }

  TEST_CASE("whose sessions break is dialled a second after the last one began, if it answered") {
    DialPlan plan({});
    Rng rng(1);
    TimePoint now = kStart;
    for (int breaks = 0; breaks < 30; ++breaks) {
      for (const Duration lived : {Duration(5ms), Duration(900ms), Duration(3s)}) {
        CAPTURE(lived.count());
        const TimePoint began = now;
        now += lived;
        plan.on_down(now, test_id(1), lived, Answered::yes, rng);
        while (!plan.take(now, test_id(1), kAtOnce, rng)) now += 10ms;
        CHECK(now - began >= 1s);
        CHECK(now - began <= std::max<Duration>(lived, 1510ms));
        plan.on_up(test_id(1));
      }
    }
  }

  TEST_CASE("a suspicion is checked at once, and not twice within a second, wanted or not") {
    DialPlan plan({});
    Rng rng(1);
    CHECK(plan.take_at_once(kStart, test_id(1), Purpose::answer));
    plan.on_up(test_id(1));
    plan.on_down(kStart + 5ms, test_id(1), 5ms, Answered::yes, rng);
    plan.forget(test_id(1));
    plan.keep_only({}, kStart + 10ms);
    CHECK_FALSE(plan.take_at_once(kStart + 900ms, test_id(1), Purpose::answer));
    CHECK_FALSE(plan.take(kStart + 900ms, test_id(1), kAtOnce, rng));
    CHECK(plan.take_at_once(kStart + 1s, test_id(1), Purpose::answer));
  }

  TEST_CASE("a neighbour whose sessions break is dialled within two seconds, however often") {
    Breaking world;
    for (int breaks = 0; breaks < 30; ++breaks) {
      CAPTURE(breaks);
      const TimePoint began = world.now;
      world.live(breaks % 3 == 0 ? Duration(20ms) : Duration(3s));
      const TimePoint lost = world.now;
      bool dialled = world.down(SessionEnd::local);
      for (; !dialled && world.now < lost + 1min; world.now += 10ms) dialled = world.tick();
      REQUIRE(dialled);
      CHECK(world.now - lost <= 1800ms);
      CHECK(world.now - began >= 1s);
      world.up();
    }
  }

  TEST_CASE("who ends sessions at once is dialled twice a second at the most, however it does so") {
    for (const SessionEnd end :
         {SessionEnd::bye, SessionEnd::reset, SessionEnd::timed_out, SessionEnd::local}) {
      for (const bool answers : {false, true}) {
        CAPTURE(static_cast<int>(end));
        CAPTURE(answers);
        const std::size_t dials = dials_of_a_minute(end, answers);
        CHECK(dials <= 121);
        CHECK(dials >= (answers ? 30 : 5));
      }
    }
  }

  // Somebody else may answer at its address, which is the outcome of no dial of this member.
  TEST_CASE("a dial of which nothing was heard has failed") {
    DialPlan plan({});
    Rng rng(1);
    std::size_t dials = 0;
    bool passed = false;
    for (TimePoint now = kStart; now < kStart + 2min; now += 250ms) {
      dials += plan.take(now, test_id(1), kAtOnce, rng) ? 1 : 0;
      passed = passed || plan.passed_over(now, test_id(1));
    }
    CHECK(passed);
    CHECK(dials >= 3);
    CHECK(dials <= 6);
  }

  TEST_CASE("who stays unreachable is walked past for ever longer, until this node was deaf") {
    DialPlan plan({});
    Rng rng(1);
    TimePoint now = kStart;
    for (std::uint32_t failure = 1; failure <= 8; ++failure) {
      CAPTURE(failure);
      plan.keep_only({}, now);
      now = std::max(now, failure == 1 ? now : plan.due(test_id(1)));
      REQUIRE(plan.take(now, test_id(1), kAtOnce, rng));
      CHECK(plan.on_failed(now, test_id(1), rng) == Purpose::session);
      CHECK(plan.passed_over(now, test_id(1)) == (failure >= 3));
      if (failure < 3) continue;
      const Duration past = std::min<Duration>(10min, 1min * (1 << (failure - 3)));
      CHECK(plan.passed_over(now + past - 1s, test_id(1)));
      CHECK_FALSE(plan.passed_over(now + past, test_id(1)));
      now += past;
    }
    plan.pass_over_nobody();
    CHECK_FALSE(plan.passed_over(now - 1s, test_id(1)));
  }

  TEST_CASE("what a dial was made for is known when it fails") {
    DialPlan plan({});
    Rng rng(1);
    REQUIRE(plan.take_for_another(kStart, test_id(1), rng));
    CHECK(plan.on_failed(kStart, test_id(1), rng) == Purpose::answer);
    REQUIRE(plan.take(kStart + 2s, test_id(1), kAtOnce, rng));
    CHECK(plan.on_failed(kStart + 2s, test_id(1), rng) == Purpose::session);
    REQUIRE(plan.take_at_once(kStart + 2s, test_id(1), Purpose::answer));
    CHECK(plan.on_failed(kStart + 2s, test_id(1), rng) == Purpose::answer);
  }

  TEST_CASE("the topology walks past a neighbour at whose address another member answers") {
    Stage stage;
    std::vector<NodeId> all{test_id(0)};
    std::vector<MemberRecord> records;
    for (std::uint64_t number = 1; number <= 12; ++number) {
      all.push_back(test_id(number));
      records.push_back(record_of(number));
    }
    const NodeId lost = neighbours(all, test_id(0), SwarmId{}).front();
    const auto others = [&](auto say) {
      for (std::uint64_t number = 1; number <= 12; ++number)
        if (test_id(number) != lost) say(test_id(number));
    };
    others([&](const NodeId& id) { (void)stage.node.on_session_up(kStart, id); });
    const auto contact =
        std::ranges::find_if(all, [&](const NodeId& id) { return id != lost && id != test_id(0); });
    (void)stage.node.on_message(kStart, *contact, facts_of(std::move(records)));
    REQUIRE(std::ranges::count(stage.node.neighbours(), lost) == 1);

    bool walked_past = false;
    for (TimePoint now = kStart; now < kStart + 1min; now += 250ms) {
      others([&](const NodeId& id) { (void)stage.node.on_message(now, id, Heartbeat{1}); });
      (void)stage.node.on_tick(now);
      walked_past = walked_past || std::ranges::count(stage.node.neighbours(), lost) == 0;
    }
    CHECK(walked_past);
    CHECK(stage.node.state_of(lost) == MemberState::alive);
  }
}
