#include "gossip/membership/failure_detector.h"

#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

TEST_SUITE("gossip/failure_detector") {
  TEST_CASE("a deadline follows the measured round trip between its floor and its ceiling") {
    const DetectorOptions options;
    AnswerDeadline near(options);
    AnswerDeadline far(options);
    for (int i = 0; i < 50; ++i) {
      near.on_answer(1ms);
      far.on_answer(Duration(600ms) + (i % 2 == 0 ? 50ms : -50ms));
    }
    CHECK(near.wait() == options.min_deadline);
    CHECK(far.wait() > 600ms);
    CHECK(far.wait() < 1200ms);
    for (int i = 0; i < 50; ++i) far.on_answer(60s);
    CHECK(far.wait() == options.max_deadline);
    far.on_answer(-5s);  // a clock that stepped counts as zero
    CHECK(far.wait() <= options.max_deadline);
  }

  TEST_CASE("the quorum of death grows from one to three accusers") {
    for (const auto& [members, quorum] :
         {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}, {5, 3}, {6, 3}, {1000, 3}})
      CHECK(death_quorum(static_cast<std::size_t>(members)) == static_cast<std::size_t>(quorum));
  }

  TEST_CASE("every further accuser shortens a suspicion, down to its minimum") {
    const DetectorOptions options;
    CHECK(suspicion_time(1, 3, options) == options.max_suspicion);
    CHECK(suspicion_time(2, 3, options) < suspicion_time(1, 3, options));
    CHECK(suspicion_time(3, 3, options) < suspicion_time(2, 3, options));
    CHECK(suspicion_time(4, 3, options) == options.min_suspicion);
    CHECK(suspicion_time(40, 3, options) == options.min_suspicion);
    // Nobody can confirm in a swarm of two or three.
    CHECK(suspicion_time(1, 1, options) == 3s);
  }

  TEST_CASE("a heartbeat goes out every interval, and one only after a pause") {
    HeartbeatWatch watch(kStart, {});
    CHECK(watch.take_due(kStart).has_value());
    CHECK(!watch.take_due(kStart + 499ms).has_value());
    CHECK(watch.take_due(kStart + 500ms).has_value());
    int sent = 0;
    for (int i = 0; i < 20; ++i)
      sent += watch.take_due(kStart + 60s + std::chrono::milliseconds(i)) ? 1 : 0;
    CHECK(sent == 1);
  }

  TEST_CASE("a peer that says something is not asked, but its round trip is measured at times") {
    HeartbeatWatch watch(kStart, {});
    const auto first = watch.take_due(kStart);
    REQUIRE(first.has_value());
    watch.on_answer(kStart + 1ms, *first);
    int sent = 0;
    for (auto at = 300ms; at < 20s; at += 300ms) {
      sent += watch.take_due(kStart + at) ? 1 : 0;
      watch.on_heard(kStart + at);
    }
    CHECK(sent == 3);
    CHECK(!watch.take_due(kStart + 20s + 199ms).has_value());
    CHECK(watch.take_due(kStart + 20s + 300ms).has_value());
  }

  TEST_CASE("of two that have nothing else to say each asks every other time") {
    const DetectorOptions options;
    std::array<HeartbeatWatch, 2> ends{HeartbeatWatch(kStart, options),
                                       HeartbeatWatch(kStart, options)};
    std::array<int, 2> asked{};
    for (auto at = 0ms; at < 60s; at += 1ms) {
      for (std::size_t end = 0; end < 2; ++end) {
        const auto seq = ends[end].take_due(kStart + at);
        if (!seq) continue;
        ++asked[end];
        ends[1 - end].on_heard(kStart + at);
        ends[1 - end].on_asked(kStart + at);
        ends[end].on_answer(kStart + at, *seq);
      }
    }
    CHECK(asked[0] + asked[1] <= 61);
    CHECK(asked[0] + asked[1] >= 58);
    CHECK(std::abs(asked[0] - asked[1]) <= 2);
  }

  TEST_CASE(
      "after anything but a heartbeat the next one comes half a second later, else a second") {
    HeartbeatWatch watch(kStart, {});
    const auto first = watch.take_due(kStart);
    REQUIRE(first.has_value());
    watch.on_answer(kStart + 1ms, *first);
    CHECK(watch.next_heartbeat() == kStart + 1101ms);
    watch.on_heard(kStart + 700ms);
    CHECK(watch.next_heartbeat() == kStart + 1200ms);
    watch.on_heard(kStart + 1s);
    watch.on_asked(kStart + 1s);
    CHECK(watch.next_heartbeat() == kStart + 2s);
  }

  TEST_CASE("silence is an unanswered heartbeat past its deadline, and any message ends it") {
    HeartbeatWatch watch(kStart, {});
    const LocalHealth health;
    const auto seq = watch.take_due(kStart);
    watch.on_answer(kStart + 2ms, *seq);
    CHECK(!watch.silent(kStart + 10s, health));
    CHECK(watch.take_due(kStart + 1102ms).has_value());
    CHECK(!watch.silent(kStart + 1302ms, health));
    CHECK(watch.silent(kStart + 1402ms, health));
    CHECK(watch.next_deadline(health) <= kStart + 1402ms);
    watch.on_heard(kStart + 1390ms);
    CHECK(!watch.silent(kStart + 1402ms, health));
    CHECK(watch.silent(kStart + 1800ms, health));
    watch.forgive(kStart + 1800ms);
    CHECK(!watch.silent(kStart + 5s, health));
  }

  TEST_CASE("answers with invented numbers teach nothing") {
    HeartbeatWatch watch(kStart, {});
    (void)watch.take_due(kStart);
    watch.on_answer(kStart + 1ms, 999);
    CHECK(watch.round_trip() == Duration{0});
  }

  TEST_CASE("a node that ran late waits longer before it accuses, and recovers slowly") {
    LocalHealth health;
    CHECK(health.stretch(1s) == 1s);
    health.on_late_tick();
    CHECK(health.stretch(1s) == 3s);
    for (int i = 0; i < 100; ++i) health.on_late_tick();
    CHECK(health.score() == LocalHealth::kMax);
    for (int i = 0; i < 2 * LocalHealth::kMax; ++i) health.on_good_interval();
    CHECK(health.score() == 0);
  }

  TEST_CASE("what is outstanding on a dead session stays bounded") {
    HeartbeatWatch watch(kStart, {});
    for (int i = 0; i < 1000; ++i) (void)watch.take_due(kStart + i * 500ms);
    // The first one is still the one whose deadline counts.
    CHECK(watch.silent(kStart + 500s, {}));
  }
}
