#include "gossip/membership/progress.h"

#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

ProgressReport report_of(std::uint64_t node, std::uint64_t samples, std::uint64_t rate,
                         Duration age = 0s) {
  ProgressReport report;
  report.id = test_id(node);
  report.incarnation = {1};
  report.samples = samples;
  report.rate_millisamples = rate * 1000;
  report.run_age_ms = static_cast<std::uint64_t>(age.count() / 1000);
  return report;
}

Hash settings(std::uint8_t number) {
  Hash hash;
  hash.bytes[0] = std::byte{number};
  return hash;
}

// Trains at `rate` for `time` from `from` on, told once a second.
void train(Progress& progress, TimePoint from, Duration time, std::uint64_t rate) {
  for (Duration at{0}; at <= time; at += 1s)
    progress.on_local_samples(from + at, rate * static_cast<std::uint64_t>(at / 1s));
}

// This node and member 1 train 10 samples a second, member 2 trains 3,000.
void hear_of_a_gpu(Progress& progress, TimePoint now, std::uint64_t second) {
  progress.set_members(now, 3);
  progress.on_local_samples(now, 10 * second);
  progress.on_report(now, report_of(1, 10 * second, 10));
  progress.on_report(now, report_of(2, 3'000 * second, 3'000));
}

}  // namespace

TEST_SUITE("gossip/progress") {
  TEST_CASE("P is the sum of the counters, by maximum, in any order of reports") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 1h);
    train(progress, kStart, 10s, 100);
    progress.on_report(kStart + 10s, report_of(1, 900, 100));
    progress.on_report(kStart + 10s, report_of(2, 700, 100));
    CHECK(progress.on_report(kStart + 10s, report_of(1, 800, 100)) == Progress::News::known);
    CHECK(progress.total(kStart + 10s) == 1000 + 900 + 700);
    CHECK(progress.samples_of(test_id(1)) == 900);
  }

  TEST_CASE("between reports a counter is extrapolated, for two intervals and no longer") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 1h);
    train(progress, kStart, 10s, 100);
    const TimePoint reported = kStart + 10s;
    progress.on_report(reported, report_of(1, 1000, 100));
    CHECK(progress.total(reported + 1s) == 1000 + 1100);
    CHECK(progress.total(reported + 2s) == 1000 + 1200);
    CHECK(progress.total(reported + 60s) == 1000 + 1200);
  }

  TEST_CASE("P never decreases, and the counters of those who left stay in it") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 1h);
    train(progress, kStart, 10s, 100);
    const double own = progress.rate(kStart + 10s);
    const TimePoint reported = kStart + 10s;
    progress.on_report(reported, report_of(1, 1000, 100));
    const auto before = progress.total(reported + 2s);
    CHECK(before == 1000 + 1200);
    progress.on_departed(reported + 2s, test_id(1));
    CHECK(progress.rate(reported + 2s) == own);
    CHECK(progress.total(reported + 10s) == before);
    CHECK(progress.samples_of(test_id(1)) == 1000);
    CHECK(progress.saved().size() == 2);
  }

  TEST_CASE(
      "the speed of a member that is alive and trains no more fades, until it reports again") {
    Progress progress(test_id(0));
    train(progress, kStart, 10s, 100);
    progress.on_report(kStart + 9s, report_of(1, 800, 100));
    progress.on_report(kStart + 10s, report_of(1, 900, 100));
    const auto together = [&](Duration at) {
      train(progress, kStart, at, 100);  // we go on
      return progress.rate(kStart + at);
    };
    CHECK(together(12s) == doctest::Approx(100 + 100));
    CHECK(together(14s) == doctest::Approx(100 + 50));
    CHECK(together(1h) < 100 + 1);
    // However long it was silent: what it then does in a second is its usual gap as before.
    progress.on_report(kStart + 1h, report_of(1, 1000, 100));
    CHECK(together(1h) == doctest::Approx(100 + 100));
    CHECK(together(1h + 20s) == doctest::Approx(100 + 10));
  }

  TEST_CASE("between the reports of a slow member its speed stays") {
    Progress progress(test_id(0));
    progress.set_members(kStart, 3);
    for (std::uint64_t report = 1; report <= 3; ++report) {
      // Of the first one nobody can say how long the next one takes.
      const TimePoint now = kStart + std::chrono::seconds(20 * report);
      if (report > 2) CHECK(progress.rate(now) == doctest::Approx(2 * 3));
      progress.on_report(now, report_of(1, 60 * report, 3));
      progress.on_report(now, report_of(2, 60 * report, 3));
    }
    CHECK(progress.rate(kStart + 60s + 40s) == doctest::Approx(2 * 3));
    CHECK(progress.rate(kStart + 60s + 80s) == doctest::Approx(3));
  }

  TEST_CASE("where reports are rare a member's speed stays for two intervals") {
    Progress progress(test_id(0));
    progress.set_members(kStart, 6400);
    progress.on_report(kStart, report_of(1, 900, 100));
    progress.on_report(kStart, report_of(2, 900, 100));
    CHECK(progress.rate(kStart + 2 * progress.report_interval()) == doctest::Approx(200));
    CHECK(progress.rate(kStart + 4 * progress.report_interval()) == doctest::Approx(100));
  }

  TEST_CASE("this node's own speed fades while it ends no step") {
    Progress progress(test_id(0));
    train(progress, kStart, 10s, 100);
    CHECK(progress.rate(kStart + 12s) == doctest::Approx(100));
    CHECK(progress.rate(kStart + 30s) == doctest::Approx(10));
    CHECK(progress.rate(kStart + 10min) < 1);
    // One step after a long pause is a slower second, and no longer gap.
    progress.on_local_samples(kStart + 10min, 1100);
    CHECK(progress.rate(kStart + 10min) > 50);
    CHECK(progress.rate(kStart + 10min + 30s) < 10);
  }

  TEST_CASE("between this node's own slow steps its speed stays") {
    Progress progress(test_id(0));
    for (std::uint64_t step = 0; step <= 3; ++step)
      progress.on_local_samples(kStart + std::chrono::seconds(20 * step), 60 * step);
    CHECK(progress.rate(kStart + 60s + 40s) == doctest::Approx(3));
    CHECK(progress.rate(kStart + 60s + 80s) == doctest::Approx(1.5));
  }

  TEST_CASE("a counter that leaps is believed no longer than one that does not") {
    Progress progress(test_id(0));
    train(progress, kStart, 10s, 100);
    for (const std::uint64_t member : {1U, 2U, 3U})
      progress.on_report(kStart, report_of(member, 900, 100));
    progress.on_report(kStart + 1s, report_of(1, std::uint64_t{1} << 60, 100));
    CHECK(progress.rate(kStart + 1h) < 1);
  }

  TEST_CASE("only members that train the same count, and no age but theirs") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 1h);
    progress.set_settings(kStart, settings(1));
    train(progress, kStart, 10s, 100);
    const TimePoint then = kStart + 10s;
    progress.on_report(then, report_of(1, 900, 100), settings(1));
    for (const std::uint64_t stranger : {2U, 3U, 4U})
      progress.on_report(then, report_of(stranger, 500'000, 100'000, 9h), settings(2));
    CHECK(progress.total(then) == 1000 + 900);
    CHECK(progress.total(then + 60s) == 1000 + 900 + 200);
    CHECK(progress.rate(then) < 300);
    CHECK(progress.run_age(then) < 2h);
    CHECK(progress.saved().size() == 2);
    // Nor do they make anybody a liar.
    const double others = progress.rate(then);
    progress.on_report(then, report_of(5, 1600, 160'000), settings(1));
    CHECK(progress.rate(then) == others + 1600);
  }

  TEST_CASE("a report that comes before its author's settings waits for them") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 1h);
    progress.set_settings(kStart, settings(1));
    train(progress, kStart, 10s, 100);
    const TimePoint then = kStart + 10s;
    progress.merge(then, {{test_id(3), 70}});
    progress.on_report(then, report_of(1, 900, 100, 5h));
    progress.on_report(then, report_of(2, 800, 100, 5h));
    progress.on_report(then, report_of(4, 700, 100, 5h));
    CHECK(progress.total(then) == 1000 + 70);
    progress.on_settings(then + 1s, test_id(1), settings(1));
    progress.on_settings(then + 1s, test_id(2), settings(2));
    progress.on_settings(then + 1s, test_id(3), {});  // a process that has just begun
    progress.on_settings(then + 1s, test_id(4), settings(1));
    CHECK(progress.samples_of(test_id(1)) == 900);
    CHECK(progress.samples_of(test_id(2)) == 0);
    CHECK(progress.samples_of(test_id(3)) == 70);
    CHECK(progress.samples_of(test_id(4)) == 700);
    CHECK(progress.run_age(then + 1s) >= 5h);
  }

  TEST_CASE("who takes other settings stays in P as it was, and grows no more") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 1h);
    progress.set_settings(kStart, settings(1));
    train(progress, kStart, 10s, 100);
    const double own = progress.rate(kStart + 10s);
    progress.on_report(kStart + 10s, report_of(1, 900, 100), settings(1));
    progress.on_settings(kStart + 11s, test_id(1), {});
    CHECK(progress.rate(kStart + 11s) > own);
    progress.on_settings(kStart + 12s, test_id(1), settings(2));
    const auto before = progress.total(kStart + 12s);
    progress.on_report(kStart + 20s, report_of(1, 5000, 100), settings(2));
    CHECK(progress.total(kStart + 30s) == before);
    CHECK(progress.samples_of(test_id(1)) == 900);
    CHECK(progress.saved().size() == 2);
  }

  TEST_CASE("with other settings another run begins") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 9h);
    progress.merge(kStart, {{test_id(1), 700}, {test_id(4), 60}});
    train(progress, kStart, 10s, 100);
    const TimePoint then = kStart + 10s;
    progress.on_report(then, report_of(1, 900, 100, 9h), settings(1));
    progress.on_report(then, report_of(2, 800, 100, 1h), settings(2));
    progress.on_report(then, report_of(3, 600, 100, 1h), settings(2));
    CHECK(progress.total(then) == 1000 + 900 + 800 + 600 + 60);

    progress.set_settings(then, settings(2));
    CHECK(progress.total(then) == 1000 + 700 + 800 + 600 + 60);  // what the map said stays
    progress.set_settings(then + 1s, {});  // whoever adopts forgets the old run
    progress.merge(then + 1s, {{test_id(1), 50}});
    progress.set_settings(then + 2s, settings(1));
    progress.on_settings(then + 2s, test_id(1), settings(2));
    CHECK(progress.samples_of(test_id(2)) == 0);
    CHECK(progress.samples_of(test_id(4)) == 0);
    CHECK(progress.run_age(then + 2s) < 5s);
  }

  TEST_CASE("what a map held of another run does not count in the next one") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 0s);
    progress.set_settings(kStart, settings(1));
    progress.merge(kStart, {{test_id(1), 1'000'000'000}, {test_id(2), 1'000'000'000}});
    train(progress, kStart, 10s, 100);
    const TimePoint then = kStart + 10s;
    progress.set_settings(then, settings(2));
    progress.on_report(then, report_of(1, 5, 100), settings(2));
    progress.on_report(then + 60s, report_of(1, 6000, 100), settings(2));
    progress.on_settings(then + 60s, test_id(2), settings(2));
    CHECK(progress.samples_of(test_id(1)) == 6000);
    CHECK(progress.samples_of(test_id(2)) == 0);
  }

  TEST_CASE("a liar counts at most sixteen times the median rate") {
    Progress progress(test_id(0));
    TimePoint now = kStart;
    for (std::uint64_t second = 1; second <= 100; ++second) {
      now = kStart + std::chrono::seconds(second);
      progress.on_local_samples(now, 100 * second);
      progress.on_report(now, report_of(1, 100 * second, 100));
      progress.on_report(now, report_of(2, 100 * second, 100));
      progress.on_report(now, report_of(3, ~std::uint64_t{0} - 1000 + second, ~std::uint64_t{0}));
    }
    progress.merge_age(now, 0s);
    const auto honest = std::uint64_t{300} * 100;
    CHECK(progress.total(now) >= honest);
    CHECK(progress.total(now) <= honest + 16 * 100 * 103 + 4 * 100);
  }

  TEST_CASE("a liar gains nothing from a restart of who listens to it") {
    const ProgressReport lie = report_of(3, std::uint64_t{1} << 62, 100);
    std::vector<SavedCounter> saved;
    for (std::uint64_t life = 0; life < 5; ++life) {
      const TimePoint begin = kStart + std::chrono::seconds(100 * life);
      Progress progress(test_id(0));
      progress.merge(begin, saved);
      progress.merge_age(begin, begin - kStart);
      progress.set_settings(begin, settings(1));
      train(progress, begin, 100s, 100);
      progress.on_report(begin + 100s, lie, settings(1));
      CHECK(progress.samples_of(test_id(3)) <= 16 * 100 * (101 + 100 * life));
      CHECK(progress.samples_of(test_id(3)) > 16 * 100 * 90 * (life + 1));
      saved = progress.saved();
    }
  }

  TEST_CASE("a sponsor that lies moves whoever it sponsors, and nobody who hears both") {
    constexpr Duration kCentury = 100 * 365 * 24h;
    constexpr std::uint64_t kLie = std::uint64_t{1} << 62;
    Progress joiner(test_id(2));
    joiner.merge_age(kStart, 0s);
    joiner.merge_of_sponsor(kStart, {{test_id(2), kLie}, {test_id(3), 500}}, kCentury);
    CHECK(joiner.run_age(kStart + 1s) > kCentury - 1h);
    CHECK(joiner.total(kStart + 1s) == 500);
    Progress victim(test_id(0));
    victim.merge_age(kStart, 0s);
    for (std::uint64_t second = 1; second <= 60; ++second) {
      const TimePoint now = kStart + std::chrono::seconds(second);
      victim.set_members(now, 4);
      victim.on_local_samples(now, 100 * second);
      victim.on_report(now, report_of(3, 100 * second, 100, std::chrono::seconds(second)));
      victim.on_report(now, report_of(1, 100 * second, 100, kCentury));
      joiner.set_members(now, 4);
      joiner.on_report(now, report_of(1, 100 * second, 100, kCentury));
      joiner.on_local_samples(now, 100 * second);
      if (const auto signed_report = joiner.take_due_report(now, {1}))
        victim.on_report(now, *signed_report);
    }
    // Nor does it when it has started again, from what its checkpoint keeps.
    Progress again(test_id(2));
    again.merge_age(kStart + 60s, joiner.own_age(kStart + 60s));
    again.merge_of_sponsor(kStart + 60s, {}, joiner.sponsors_age(kStart + 60s));
    CHECK(again.run_age(kStart + 61s) > kCentury - 1h);
    again.on_local_samples(kStart + 61s, 7000);
    const auto signed_again = again.take_due_report(kStart + 61s, {2});
    REQUIRE(signed_again);
    victim.on_report(kStart + 61s, *signed_again);
    CHECK(victim.run_age(kStart + 60s) <= 61s);
    CHECK(victim.total(kStart + 60s) <= 4 * 100 * 64);
  }

  TEST_CASE("a slow node beside a fast one is no liar, and neither is the fast one of two") {
    Progress slow(test_id(0));
    for (std::uint64_t second = 1; second <= 60; ++second) {
      const TimePoint now = kStart + std::chrono::seconds(second);
      slow.set_members(now, 2);
      slow.on_local_samples(now, 10 * second);
      slow.on_report(now, report_of(1, 3000 * second, 3000));
    }
    CHECK(slow.total(kStart + 60s) >= 60 * 3010 - 3000);
  }

  TEST_CASE("a GPU beside processors counts in full where the ratio allows it") {
    for (const std::uint64_t ratio : {16U, 1'000U}) {
      CAPTURE(ratio);
      Progress slow(test_id(0), {.max_rate_ratio = ratio});
      slow.merge_age(kStart, 0s);
      for (std::uint64_t second = 1; second <= 300; ++second)
        hear_of_a_gpu(slow, kStart + std::chrono::seconds(second), second);
      const std::uint64_t gpu = ratio == 16 ? 16 * 10 : 3'000;
      CHECK(slow.total(kStart + 300s) >= 298 * (20 + gpu));
      CHECK(slow.total(kStart + 300s) <= 303 * (20 + gpu));
    }
  }

  TEST_CASE("a member that is counted short for a minute is told, once") {
    Progress slow(test_id(0));
    std::vector<std::pair<TimePoint, CountedShort>> told;
    for (std::uint64_t second = 1; second <= 300; ++second) {
      const TimePoint now = kStart + std::chrono::seconds(second);
      hear_of_a_gpu(slow, now, second);
      slow.on_report(now, report_of(4, 10 * second, 10));
      if (second > 100) slow.on_report(now, report_of(3, 200 * second, 200));
      if (const auto news = slow.take_counted_short(now)) told.emplace_back(now, *news);
    }
    REQUIRE(told.size() == 2);
    CHECK(told[0].second.id == test_id(2));
    CHECK(told[0].second.said == 3'000);
    CHECK(told[0].second.counted == 160);
    CHECK(told[0].first >= kStart + 60s);
    CHECK(told[0].first <= kStart + 63s);
    CHECK(told[1].second.id == test_id(3));
    CHECK(told[1].first >= kStart + 160s);
    CHECK(told[1].first <= kStart + 163s);
  }

  TEST_CASE("who was too fast for less than a minute is not told") {
    Progress slow(test_id(0));
    bool told = false;
    for (std::uint64_t second = 1; second <= 300; ++second) {
      const TimePoint now = kStart + std::chrono::seconds(second);
      slow.set_members(now, 3);
      slow.on_local_samples(now, 10 * second);
      slow.on_report(now, report_of(1, 10 * second, 10));
      slow.on_report(now, report_of(2, 100 * second, second % 50 == 0 ? 100 : 1'000));
      told = told || slow.take_counted_short(now);
    }
    CHECK_FALSE(told);
  }

  TEST_CASE("a liar who is heard first counts only when there is somebody to compare it with") {
    const ProgressReport lie = report_of(9, std::uint64_t{1} << 62, std::uint64_t{1} << 50, 1h);
    for (const bool trains : {true, false}) {
      CAPTURE(trains);
      Progress progress(test_id(0));
      progress.merge_age(kStart, 0s);
      // What the sponsor's map held stays; the liar is the only one in view so far.
      progress.merge(kStart, {{test_id(1), 5'000'000'000}, {test_id(2), 4'000'000'000}});
      if (trains) train(progress, kStart, 2s, 100);
      progress.set_members(kStart + 2s, 2);
      progress.on_report(kStart + 2s, lie);
      const std::uint64_t own = trains ? 200 : 0;
      CHECK(progress.total(kStart + 4s) <= 9'000'000'000 + own + 16 * 100 * 10);
      CHECK(progress.rate(kStart + 4s) <= 1700);

      progress.set_members(kStart + 5s, 4);
      progress.on_report(kStart + 5s, report_of(1, 5'000'000'300, 100, 100h));
      progress.on_report(kStart + 5s, report_of(2, 4'000'000'300, 100, 100h));
      CHECK(progress.samples_of(test_id(1)) == 5'000'000'300);
      CHECK(progress.samples_of(test_id(2)) == 4'000'000'300);
      // From now on by the age of the run that two know of and the usual rate.
      CHECK(progress.total(kStart + 10min) <= 9'000'000'600 + own + 16 * 100 * 101 * 3600ULL);
    }
  }

  TEST_CASE("the word of the only other member counts in full after a while, not at once") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 0s);
    for (Duration at{0}; at < 29s; at += 1s) {
      progress.set_members(kStart + at, 2);
      progress.on_report(kStart + at,
                         report_of(1, 1'000'000 + static_cast<std::uint64_t>(at / 1s), 100, 10h));
      CHECK(progress.total(kStart + at) == 0);
      CHECK(progress.run_age(kStart + at) == at);
    }
    progress.on_departed(kStart + 29s, test_id(1));  // what it did stays, also if it goes meanwhile
    progress.set_members(kStart + 31s, 2);
    CHECK(progress.total(kStart + 31s) == 1'000'028);
    CHECK(progress.run_age(kStart + 31s) > 10h);
  }

  TEST_CASE("where a third member has gone the word of the other one waits again") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 0s);
    progress.set_members(kStart, 3);
    train(progress, kStart, 40s, 100);
    progress.on_report(kStart + 40s, report_of(1, 4000, 100));
    progress.on_report(kStart + 40s, report_of(2, 4000, 100));
    progress.on_departed(kStart + 41s, test_id(1));
    progress.set_members(kStart + 41s, 2);
    progress.on_report(kStart + 42s, report_of(2, std::uint64_t{1} << 62, std::uint64_t{1} << 50));
    CHECK(progress.total(kStart + 60s) <= 12'000 + 16 * 100 * 10);
  }

  TEST_CASE("at a join the counter continues from what the swarm holds for this identity") {
    Progress progress(test_id(0));
    progress.on_local_samples(kStart, 500);  // the checkpoint knew this much
    progress.merge(kStart, {{test_id(0), 800}, {test_id(1), 50}});
    CHECK(progress.own_samples() == 800);
    progress.on_local_samples(kStart + 1s, 560);
    CHECK(progress.own_samples() == 860);
    CHECK(progress.total(kStart + 1s) == 910);
    progress.merge(kStart, {{test_id(0), 700}});
    CHECK(progress.own_samples() == 860);
    CHECK(progress.rate(kStart + 1s) < 100);  // what an earlier process did is no speed of this one
  }

  TEST_CASE("nothing counts twice where the swarm's word comes before the checkpoint's") {
    Progress progress(test_id(0));
    progress.merge(kStart, {{test_id(0), 500}});         // the map beside the checkpoint
    progress.on_report(kStart, report_of(0, 800, 100));  // what others heard before the crash
    progress.on_local_samples(kStart, 500);
    CHECK(progress.own_samples() == 800);
    progress.on_local_samples(kStart + 1s, 560);
    CHECK(progress.own_samples() == 860);
    progress.on_report(kStart + 1s, report_of(0, 900, 100));
    progress.on_local_samples(kStart + 2s, 600);
    CHECK(progress.own_samples() == 940);
    CHECK(progress.total(kStart + 2s) == 940);
  }

  TEST_CASE("reports are due once an interval, and only when there is something new") {
    Progress progress(test_id(0));
    CHECK(!progress.take_due_report(kStart, {1}).has_value());
    progress.on_local_samples(kStart, 10);
    CHECK(progress.take_due_report(kStart, {1}).has_value());
    progress.on_local_samples(kStart + 500ms, 20);
    CHECK(!progress.take_due_report(kStart + 500ms, {1}).has_value());
    CHECK(progress.take_due_report(kStart + 1s, {1})->samples == 20);
    CHECK(!progress.take_due_report(kStart + 9s, {1}).has_value());
    progress.set_members(kStart + 9s, 6400);
    CHECK(progress.report_interval() == 100s);
  }

  TEST_CASE("the age of a run is the oldest that two members know, so one liar ages nobody") {
    Progress progress(test_id(0));
    progress.merge_age(kStart, 10s);
    CHECK(progress.run_age(kStart + 5s) == 15s);
    progress.on_report(kStart, report_of(1, 10, 1, 60s));
    CHECK(progress.run_age(kStart) == 10s);  // one other's word alone waits: see above
    progress.on_report(kStart, report_of(2, 10, 1, 60s));
    progress.on_report(kStart, report_of(3, 10, 1, 1000h));
    CHECK(progress.run_age(kStart) == 60s);
    CHECK(progress.run_age(kStart + 7s) == 67s);
  }

  TEST_CASE("the number of counters is bounded") {
    ProgressOptions options;
    options.max_ids = 10;
    Progress progress(test_id(0), options);
    for (std::uint64_t i = 1; i <= 10; ++i) progress.on_report(kStart, report_of(i, 10, 1));
    CHECK(!progress.is_news(report_of(11, 10, 1)));
    CHECK(progress.on_report(kStart, report_of(11, 10, 1)) != Progress::News::fresh);
    progress.merge(kStart, {{test_id(99), 5}});
    CHECK(progress.saved().size() == 10);
  }
}
