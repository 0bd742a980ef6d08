// What a member table that is full of names of nobody leaves to members that are there.
#include "tests/gossip/membership/stage.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kPlaces = 50;

ProgressReport says(std::uint64_t number, std::uint64_t samples) {
  ProgressReport report;
  report.id = test_id(number);
  report.incarnation = {1};
  report.samples = samples;
  report.rate_millisamples = 100'000;
  return report;
}

MembershipOptions small_table() {
  MembershipOptions options;
  options.table.max_records = kPlaces;
  return options;
}

// Member 1 has a session, and has said of enough others that they are alive.
void fill(Stage& stage) {
  (void)stage.node.on_session_up(kStart, test_id(1));
  (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1)}));
  for (std::uint64_t number = 1000; number < 999 + kPlaces; ++number)
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(number)}));
  (void)stage.node.on_tick(kStart + 300ms);
  REQUIRE(stage.node.members().size() == kPlaces);
}

}  // namespace

TEST_SUITE("gossip/full_table") {
  TEST_CASE("a newcomer with a session finds a place in a table full of members without one") {
    Stage stage(small_table());
    fill(stage);
    for (std::uint64_t newcomer = 2; newcomer <= 5; ++newcomer) {
      CAPTURE(newcomer);
      const TimePoint now = kStart + std::chrono::seconds(newcomer);
      (void)stage.node.on_session_up(now, test_id(newcomer));
      const auto effects =
          stage.node.on_message(now, test_id(newcomer), facts_of({record_of(newcomer)}));
      CHECK(stage.node.may_average_with(test_id(newcomer)));
      CHECK(stage.node.members().size() == kPlaces);
      CHECK(std::ranges::count(effects.changes, Cause::evicted, &MemberChange::cause) == 1);
    }
    // Nobody who is there made room for another.
    for (std::uint64_t member = 1; member <= 5; ++member)
      CHECK(stage.node.state_of(test_id(member)) == MemberState::alive);
  }

  TEST_CASE("a record that finds no place in a full table is neither checked nor passed on") {
    Stage stage(small_table());
    (void)stage.node.on_session_up(kStart, test_id(2));
    fill(stage);

    stage.verifier.asked = 0;
    const auto effects = stage.node.on_message(kStart + 1s, test_id(1), facts_of({record_of(9)}));
    CHECK(stage.verifier.asked == 0);
    CHECK(count_sent<Facts>(effects) == 0);
    CHECK_FALSE(stage.node.state_of(test_id(9)).has_value());
  }

  TEST_CASE("whoever is asked for its view answers with no more than a view holds") {
    MembershipOptions options;
    options.spread.answer_burst = 100;
    options.spread.answers_per_second = 10;
    Stage stage(options);
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1)}));
    std::uint64_t number = 1000;
    // Each digest differs from the one before, so that there is always something to ask for.
    for (TimePoint now = kStart; now < kStart + 20s; now += 1s) {
      Digest digest;
      digest.buckets.fill(number);
      std::optional<BucketRequest> request;
      for (const auto& outgoing : stage.node.on_message(now, test_id(1), digest).send)
        if (const auto* asked = std::get_if<BucketRequest>(&outgoing.message)) request = *asked;
      REQUIRE(request);
      Facts answer;
      answer.answers = request->nonce;
      for (int k = 0; k < 20; ++k) answer.records.push_back({record_of(++number), 0});
      (void)stage.node.on_message(now, test_id(1), answer);
    }
    CHECK(stage.node.members().size() <= 1 + 100 + 10 * 20);
  }

  TEST_CASE("progress of a member counts where the counters are full of those that are gone") {
    ProgressOptions options;
    options.max_ids = 10;
    Progress progress(test_id(0), options);
    progress.set_members(kStart, 3);
    progress.on_local_samples(kStart, 0);
    for (Duration at{0}; at <= 10s; at += 1s)
      progress.on_local_samples(kStart + at, 100 * static_cast<std::uint64_t>(at / 1s));
    const TimePoint now = kStart + 10s;
    for (std::uint64_t gone = 1000; gone < 1010; ++gone) {
      CHECK(progress.on_report(now, says(gone, gone - 900)) == Progress::News::fresh);
      if (gone != 1000) progress.on_departed(now, test_id(gone));
    }
    const std::uint64_t before = progress.total(now);

    CHECK(progress.is_news(says(1, 500)));
    CHECK(progress.on_report(now, says(1, 500)) == Progress::News::fresh);
    CHECK(progress.samples_of(test_id(1)) == 500);
    // The least of what those did that are gone made room for it, and P fell for nobody.
    CHECK(progress.samples_of(test_id(1000)) == 100);
    CHECK(progress.samples_of(test_id(1001)) == 0);
    CHECK(progress.samples_of(test_id(1002)) == 102);
    CHECK(progress.total(now + 1s) >= before);
    // It came back, and says all that it has done.
    CHECK(progress.on_report(now, says(1001, 101)) == Progress::News::fresh);
    CHECK(progress.samples_of(test_id(1001)) == 101);
  }
}
