#include "gossip/membership/announcements.h"

#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

FactName report(std::uint64_t subject, std::uint64_t samples) {
  return {subject, FactName::Kind::report, samples};
}
FactName record(std::uint64_t subject, std::uint64_t incarnation) {
  return {subject, FactName::Kind::record, incarnation};
}

Announcements with_peers(std::uint64_t count, AnnouncementOptions options = {}) {
  Announcements announcements(options);
  for (std::uint64_t peer = 1; peer <= count; ++peer) announcements.on_session_up(test_id(peer));
  return announcements;
}

}  // namespace

TEST_SUITE("gossip/membership_announcements") {
  TEST_CASE("what is missing is asked of the first that has it, and of nobody else meanwhile") {
    auto announcements = with_peers(3);
    CHECK(announcements.on_announced(kStart, test_id(1), record(7, 2)));
    CHECK(!announcements.on_announced(kStart, test_id(2), record(7, 2)));
    CHECK(announcements.take_overdue(kStart + 400ms).empty());

    const auto holders = announcements.on_held(record(7, 2));
    CHECK(holders == std::vector{test_id(1), test_id(2)});
    CHECK(announcements.missing() == 0);
    CHECK(announcements.take_overdue(kStart + 10s).empty());
  }

  TEST_CASE("whoever does not deliver is followed by the next, and no longer asked first") {
    auto announcements = with_peers(3);
    CHECK(announcements.on_announced(kStart, test_id(1), record(7, 2)));
    CHECK(!announcements.on_announced(kStart, test_id(2), record(7, 2)));
    const auto asks = announcements.take_overdue(kStart + 500ms);
    REQUIRE(asks.size() == 1);
    CHECK(asks[0].peer == test_id(2));
    CHECK(asks[0].names == std::vector{record(7, 2)});

    CHECK(!announcements.on_announced(kStart + 1s, test_id(1), record(8, 1)));
    CHECK(announcements.on_announced(kStart + 1s, test_id(3), record(8, 1)));
    // Nobody else has this one.
    CHECK(!announcements.on_announced(kStart + 1s, test_id(1), record(9, 1)));
    const auto late = announcements.take_overdue(kStart + 1501ms);
    REQUIRE(!late.empty());
    CHECK(late[0].peer == test_id(1));
    CHECK(announcements.on_announced(kStart + 12s, test_id(1), record(10, 1)));
  }

  TEST_CASE("a newer statement makes an older one superfluous, and not the other way round") {
    auto announcements = with_peers(2);
    (void)announcements.on_announced(kStart, test_id(1), report(7, 100));
    (void)announcements.on_announced(kStart, test_id(1), report(7, 200));
    (void)announcements.on_announced(kStart, test_id(1), record(7, 300));
    CHECK(announcements.on_held(report(7, 150)).empty());
    CHECK(announcements.missing() == 2);
    CHECK(announcements.on_held(report(7, 200)) == std::vector{test_id(1)});
    CHECK(announcements.missing() == 1);
  }

  TEST_CASE("reports are expected from whoever sent the last one, until it does not") {
    auto announcements = with_peers(2);
    const auto asked = [&](TimePoint now, std::uint64_t peer, const FactName& name) {
      CHECK(!announcements.on_announced(now, test_id(peer), name));
      const auto asks = announcements.take_overdue(now);
      return asks.size() == 1 && asks[0].peer == test_id(peer) &&
             asks[0].names == std::vector{name};
    };
    CHECK(asked(kStart, 1, report(7, 100)));
    (void)announcements.on_held(report(7, 100));

    CHECK(!asked(kStart + 1s, 2, report(7, 200)));
    CHECK(announcements.on_held(report(7, 200)) == std::vector{test_id(2)});

    CHECK(!asked(kStart + 2s, 2, report(7, 300)));
    const auto asks = announcements.take_overdue(kStart + 2500ms);
    REQUIRE(asks.size() == 1);
    CHECK(asks[0].peer == test_id(2));
    (void)announcements.on_held(report(7, 300));
    CHECK(asked(kStart + 3s, 2, report(7, 400)));
    announcements.on_session_down(kStart + 3s, test_id(2));
    CHECK(asked(kStart + 4s, 1, report(7, 500)));
  }

  TEST_CASE("a peer that announces what is not there fills its own account and nobody else's") {
    auto announcements = with_peers(2, {.max_missing_per_peer = 10});
    for (std::uint64_t i = 0; i < 1000; ++i)
      (void)announcements.on_announced(kStart, test_id(1), record(i, 1));
    CHECK(announcements.missing() == 10);
    CHECK(announcements.on_announced(kStart, test_id(2), record(5'000, 1)));
    for (int turn = 1; turn < 5; ++turn) (void)announcements.take_overdue(kStart + turn * 1s);
    CHECK(announcements.missing() == 0);
    for (std::uint64_t i = 0; i < 1000; ++i)
      (void)announcements.on_announced(kStart + 20s, test_id(1), record(i, 1));
    CHECK(announcements.missing() == 10);
    announcements.on_session_down(kStart + 20s, test_id(1));
    CHECK(announcements.missing() == 0);
  }

  TEST_CASE("when the one that was asked goes, the next one is asked without delay") {
    auto announcements = with_peers(2);
    (void)announcements.on_announced(kStart, test_id(1), record(7, 2));
    (void)announcements.on_announced(kStart, test_id(2), record(7, 2));
    announcements.on_session_down(kStart + 10ms, test_id(1));
    const auto asks = announcements.take_overdue(kStart + 10ms);
    REQUIRE(asks.size() == 1);
    CHECK(asks[0].peer == test_id(2));
  }
}
