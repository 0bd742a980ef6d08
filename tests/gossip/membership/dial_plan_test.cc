#include "gossip/membership/dial_plan.h"

#include "tests/gossip/membership/stage.h"

#include <doctest/doctest.h>

#include <vector>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

constexpr auto kAtOnce = DialPlan::Manners::at_once;

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
      plan.on_down(now, test_id(1), 5ms, rng);
    }
    CHECK(dials >= 4);
    CHECK(dials <= 8);
    plan.on_up(test_id(1));
    plan.on_down(now, test_id(1), 1min, rng);
    CHECK(plan.take(now, test_id(1), kAtOnce, rng));
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
