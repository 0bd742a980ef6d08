// A machine that slept: its clock stood still, and the swarm went on.
#include "tests/gossip/membership/stage.h"

#include <doctest/doctest.h>

#include <optional>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

// Member 1 is the only one with a session, and asks for the whole view.
Facts view_of(Stage& stage, TimePoint now) {
  BucketRequest request;
  request.nonce = 7;
  request.buckets.set();
  for (const auto& outgoing : stage.node.on_message(now, test_id(1), request).send)
    if (const auto* facts = std::get_if<Facts>(&outgoing.message))
      if (facts->answers == 7) return *facts;
  return {};
}

std::optional<std::uint32_t> age_in(const Facts& view, const NodeId& id) {
  for (const auto& aged : view.records)
    if (aged.record.id == id) return aged.age_s;
  return std::nullopt;
}

}  // namespace

TEST_SUITE("gossip/sleep") {
  TEST_CASE("a node that wakes brings nobody back who left while it slept") {
    Stage stage;
    meet_four(stage);
    const TimePoint now = kStart + 1s;
    for (const std::uint64_t peer : {1U, 2U, 4U})
      (void)stage.node.on_session_down(now, test_id(peer), SessionEnd::timed_out);
    const auto woke = stage.node.on_slept(now, 2h);
    CHECK(std::ranges::count(woke.changes, Cause::expired, &MemberChange::cause) == 4);
    (void)stage.node.on_session_up(now, test_id(1));
    (void)stage.node.on_message(now, test_id(1), facts_of({record_of(1, 2)}));
    const Facts view = view_of(stage, now);
    CHECK(age_in(view, test_id(1)) == 0);
    CHECK(view.records.size() == 2);  // with this node's own
  }

  TEST_CASE("what a node knew before it slept is as old for others as it is") {
    Stage stage;
    meet_four(stage);
    const TimePoint now = kStart + 1s;
    (void)stage.node.on_slept(now, 10min);
    (void)stage.node.on_slept(now, 5min);
    const Facts view = view_of(stage, now);
    REQUIRE(age_in(view, test_id(3)));
    CHECK(*age_in(view, test_id(3)) == 15 * 60 + 1);
    CHECK(age_in(view, stage.node.self().id) >= 15 * 60);
  }

  TEST_CASE("a node that slept signs anew, accuses nobody for it and asks again who is there") {
    Stage stage;
    meet_four(stage);
    const auto before = stage.node.self().incarnation;
    const TimePoint now = kStart + 1s;
    (void)stage.node.on_tick(now);
    const auto woke = stage.node.on_slept(now, 30min);
    CHECK(woke.changes.empty());
    const auto asked = stage.node.on_tick(now + 300ms);
    CHECK(count_sent<Heartbeat>(asked) == 3);
    CHECK(stage.node.self().incarnation > before);
    for (const auto& outgoing : asked.send)
      if (const auto* facts = std::get_if<Facts>(&outgoing.message))
        CHECK(facts->accusations.empty());
  }
}
