// What Membership takes from its peers, and at what price; what it asks of them, and of its own
// disk.
#include "tests/gossip/membership/stage.h"

#include <doctest/doctest.h>

#include <optional>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

// A node that has not begun to train.
struct Newcomer {
  TestSigner signer{test_id(0)};
  CountingVerifier verifier;
  Membership node;

  explicit Newcomer(const MembershipOptions& options = {})
      : node(kStart, {SwarmId{}, Stage::prepared({}), options, signer, verifier}, Rng(1)) {}
};

// Two processes with one identity, each with a peer of its own: the swarm takes what one signs to
// the other in 100 ms.
struct Clones {
  static constexpr Duration kWay = 100ms;
  TestSigner signer{test_id(0)};
  TestVerifier verifier;
  struct Process {
    Membership node;
    std::size_t named = 0;     // times that it said that there is a clone
    std::size_t signings = 0;  // records that it sent
  };
  struct Flying {
    TimePoint at;
    std::size_t to = 0;
    AgedRecord record;
  };
  std::vector<Process> both;
  std::vector<Flying> air;

  Clones() {
    for (const std::uint64_t number : {1U, 2U}) {
      SelfDescription self = Stage::prepared({});
      self.instance = {number};
      self.first = {1};
      self.ceiling = {1'000'000};
      both.push_back(
          {Membership(kStart, {SwarmId{}, self, {}, signer, verifier}, Rng(number)), 0, 0});
    }
    for (std::size_t i : {0U, 1U}) {
      take(kStart, i, both[i].node.set_state(kStart, RecordState::alive));
      take(kStart, i, both[i].node.on_session_up(kStart, test_id(1 + i)));
    }
  }
  void take(TimePoint now, std::size_t who, const MembershipEffects& effects) {
    both[who].named +=
        static_cast<std::size_t>(std::ranges::count(effects.notices, Notice::clone_seen));
    for (const auto& outgoing : effects.send) {
      const auto* facts = std::get_if<Facts>(&outgoing.message);
      if (facts == nullptr) continue;
      for (const auto& record : facts->records) {
        ++both[who].signings;
        air.push_back({now + kWay, 1 - who, record});
      }
    }
  }
  void run(TimePoint from, TimePoint to) {
    for (TimePoint now = from; now < to; now += 10ms) {
      for (std::size_t i : {0U, 1U}) {
        take(now, i, both[i].node.on_heard(now, test_id(1 + i), Traffic::use));
        take(now, i, both[i].node.on_tick(now));
      }
      for (const auto& flying : std::exchange(air, {})) {
        if (flying.at > now) {
          air.push_back(flying);
          continue;
        }
        Facts facts;
        facts.records.push_back(flying.record);
        const NodeId relay = test_id(1 + flying.to);
        take(now, flying.to, both[flying.to].node.on_message(now, relay, facts));
      }
    }
  }
};

}  // namespace

TEST_SUITE("gossip/membership_intake") {
  TEST_CASE(
      "records that somebody forged of this node itself are an offence, and not checked for "
      "ever") {
    MembershipOptions options;
    options.spread.fact_burst = 50;
    Newcomer newcomer(options);
    (void)newcomer.node.on_session_up(kStart, test_id(1));
    auto forged = record_of(0, 1'000);
    forged.name = "somebody else";  // and the signature is of another record
    std::size_t offences = 0;
    for (int i = 0; i < 1'000; ++i)
      offences +=
          newcomer.node.on_message(kStart + 1s, test_id(1), facts_of({forged})).offences.size();
    CHECK(offences >= 1);
    CHECK(newcomer.verifier.asked <= 50);
    CHECK(newcomer.node.self().incarnation == Incarnation{1});
  }

  TEST_CASE(
      "a newcomer that waits long for a model signs anew as often as those that know it "
      "forget") {
    Newcomer newcomer;
    (void)newcomer.node.on_session_up(kStart, test_id(1));
    (void)newcomer.node.on_message(kStart, test_id(1), facts_of({record_of(1)}));
    for (TimePoint now = kStart; now < kStart + 65min; now += 250ms) {
      (void)newcomer.node.on_message(now, test_id(1), Heartbeat{1});
      (void)newcomer.node.on_tick(now);
    }
    CHECK(newcomer.node.self().incarnation >= Incarnation{4});
  }

  TEST_CASE("whoever asks for many probes leaves room for the questions of others") {
    Stage stage;
    std::vector<MemberRecord> records;
    for (std::uint64_t number = 1; number <= 100; ++number) {
      (void)stage.node.on_session_up(kStart, test_id(number));
      records.push_back(record_of(number));
    }
    (void)stage.node.on_message(kStart, test_id(1), facts_of(std::move(records)));
    const auto asks = [&](std::uint64_t asker, std::uint64_t subject) {
      return stage.node.on_message(kStart, test_id(asker), ProbeRequest{7, test_id(subject)});
    };
    std::size_t taken = 0;
    for (std::uint64_t subject = 3; subject <= 100; ++subject)
      taken += count_sent<Heartbeat>(asks(1, subject));
    CHECK(taken >= 16);  // all that a node may miss at once when a rack loses its power

    const auto honest = asks(2, 50);
    CHECK(count_sent<Heartbeat>(honest) == 1);
    CHECK(count_sent<ProbeReply>(honest) == 0);
  }

  TEST_CASE("an accusation of this node is refuted, whoever makes it") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    std::vector<MemberRecord> records{record_of(1), record_of(2), record_of(3),
                                      record_of(4, 1, RecordState::left)};
    (void)stage.node.on_message(kStart, test_id(1), facts_of(records));
    // Nobody listens to 2 any more: what it says of 3 is refuted at once, again and again.
    TimePoint now = kStart + 1s;
    for (std::uint64_t incarnation = 1; incarnation <= 8; ++incarnation, now += 100ms) {
      const auto lie = accusation_of(3, 2, AccusationKind::suspect, incarnation);
      (void)stage.node.on_message(now, test_id(1), facts_of({}, {lie}));
      (void)stage.node.on_message(now + 50ms, test_id(1),
                                  facts_of({record_of(3, incarnation + 1)}));
    }
    const auto lie = accusation_of(3, 2, AccusationKind::suspect, 9);
    (void)stage.node.on_message(now, test_id(1), facts_of({}, {lie}));
    REQUIRE(stage.node.state_of(test_id(3)) == MemberState::alive);

    // Others may believe it yet, or know whom this node does not know.
    for (const std::uint64_t accuser : {2U, 4U, 99U}) {
      CAPTURE(accuser);
      now += 1s;
      const auto before = stage.node.self().incarnation;
      (void)stage.node.on_message(
          now, test_id(1),
          facts_of({}, {accusation_of(0, accuser, AccusationKind::dead, before.value)}));
      CHECK(stage.node.self().incarnation > before);
    }
  }

  TEST_CASE("one accuser alone does not make a node doubt itself for long") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1)}));
    std::int32_t highest = 0;
    for (TimePoint now = kStart + 1s; now < kStart + 40s; now += 50ms) {
      const auto incarnation = stage.node.self().incarnation.value;
      const auto lie = accusation_of(0, 1, AccusationKind::dead, incarnation);
      (void)stage.node.on_message(now, test_id(1), facts_of({}, {lie}));
      (void)stage.node.on_tick(now);
      highest = std::max(highest, stage.node.local_health());
    }
    CHECK(highest > 0);
    CHECK(stage.node.local_health() == 0);
  }

  TEST_CASE("a ceiling that could not be written is asked for again") {
    SelfDescription self;
    self.ceiling = {1'001};
    Stage stage({}, self);
    (void)stage.node.on_session_up(kStart, test_id(1));
    TimePoint now = kStart;
    std::optional<Incarnation> wanted;
    const auto renew = [&] {
      const auto number = static_cast<std::uint8_t>(stage.node.self().incarnation.value % 2 + 1);
      wanted = stage.node.set_settings(now, test_hash_like(number)).persist_incarnation;
    };
    while (!wanted) renew();
    CHECK(wanted->value >= 1'500);  // and the disk was full
    now += 1s;
    renew();
    CHECK_FALSE(wanted);  // it may be under way
    now += 2min;
    renew();
    REQUIRE(wanted);
    (void)stage.node.on_incarnations_persisted(now, *wanted);
    renew();
    CHECK_FALSE(wanted);
  }

  TEST_CASE("where every incarnation is used up the disk is tried until it takes the next ones") {
    SelfDescription self;
    self.ceiling = {3};  // used up once the node is alive
    Stage stage({}, self);
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.set_settings(kStart, test_hash_like(1));
    REQUIRE(stage.node.self().incarnation == Incarnation{2});
    std::optional<Incarnation> wanted;
    for (TimePoint now = kStart + 1s; !wanted && now < kStart + 3min; now += 250ms) {
      (void)stage.node.on_message(now, test_id(1), Heartbeat{1});
      wanted = stage.node.on_tick(now).persist_incarnation;
    }
    REQUIRE(wanted);
    const auto written = stage.node.on_incarnations_persisted(kStart + 3min, *wanted);
    CHECK(stage.node.self().incarnation == Incarnation{3});
    CHECK(count_sent<Facts>(written) == 1);
  }

  TEST_CASE("whoever announces as much as a message holds is asked for it in messages that fit") {
    for (const std::uint64_t names : {950U, 960U, 961U, 1'018U}) {
      CAPTURE(names);
      Stage stage;
      (void)stage.node.on_session_up(kStart, test_id(1));
      Facts all;
      for (std::uint64_t i = 1; i <= names; ++i)
        all.has.push_back({i * 977, FactName::Kind::record, 5});
      // A body of 16 KiB holds 1,018 of them, or 1,020 if nothing else is said.
      const auto said = decode_membership(encode(all));
      CHECK(said.has_value() == (names <= 960));

      const auto effects = stage.node.on_message(kStart + 1s, test_id(1), all);
      std::size_t asked = 0;
      for (const auto& outgoing : effects.send) {
        CHECK(decode_membership(encode(outgoing.message)).has_value());
        if (const auto* facts = std::get_if<Facts>(&outgoing.message)) asked += facts->wants.size();
      }
      CHECK(asked == names);
    }
  }

  TEST_CASE("two processes with one identity name each other, and do not flood the swarm") {
    Clones clones;
    // One is ahead, so that they never sign the same incarnation.
    clones.take(kStart, 0, clones.both[0].node.set_settings(kStart, test_hash_like(1)));
    clones.run(kStart, kStart + 2min);
    for (const auto& process : clones.both) {
      CHECK(process.named >= 1);
      CHECK(process.named <= 12);
      CHECK(process.signings <= 16);
      CHECK(process.node.self().incarnation < Incarnation{50});
    }
    // A person must do something about it; until then it is as bad as it was.
    const auto named = clones.both[0].named;
    clones.run(kStart + 2min, kStart + 7min);
    CHECK(clones.both[0].named > named);
    CHECK(clones.both[0].signings <= 16 + 6);
  }

  TEST_CASE("what earlier processes signed of this node is outbid, and no clone") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    // Its state is lost, and two halves of the swarm remember different ones of its records.
    TimePoint now = kStart;
    for (const std::uint64_t incarnation : {500U, 600U, 700U}) {
      now += 20s;
      auto old = facts_of({record_of(0, incarnation)});
      // Three members have passed it on, and lost three seconds.
      old.records.front().age_s = static_cast<std::uint32_t>((now - kStart) / 1s) - 3;
      const auto effects = stage.node.on_message(now, test_id(1), old);
      CHECK(std::ranges::count(effects.notices, Notice::clone_seen) == 0);
      CHECK(stage.node.self().incarnation == Incarnation{incarnation + 1});
    }
  }

  TEST_CASE("what is known of a member's settings decides whether its report counts") {
    Stage stage;
    (void)stage.node.set_settings(kStart, test_hash_like(1));
    (void)stage.node.on_session_up(kStart, test_id(1));
    const auto says = [](std::uint64_t number, std::uint64_t incarnation, std::uint8_t settings) {
      auto record = record_of(number, incarnation);
      record.settings = test_hash_like(settings);
      sign_record(record, SwarmId{}, TestSigner(test_id(number)));
      return facts_of({record});
    };
    stage.node.on_local_samples(kStart, 0);
    stage.node.on_local_samples(kStart + 10s, 1'000);
    const TimePoint now = kStart + 10s;
    (void)stage.node.on_message(now, test_id(1), facts_of({record_of(1), record_of(2)}));
    for (const std::uint64_t number : {1U, 2U})
      (void)stage.node.on_message(now, test_id(1), facts_of(report_of(number, 500)));
    CHECK(stage.node.progress().total(now) == 1'000);

    (void)stage.node.on_message(now, test_id(1), says(1, 2, 1));
    (void)stage.node.on_message(now, test_id(1), says(2, 2, 2));
    CHECK(stage.node.progress().total(now + 1s) == 1'500);

    // Of those who said so before.
    (void)stage.node.on_message(now, test_id(1), says(3, 1, 1));
    (void)stage.node.on_message(now, test_id(1), says(4, 1, 2));
    for (const std::uint64_t number : {3U, 4U})
      (void)stage.node.on_message(now, test_id(1), facts_of(report_of(number, 300)));
    CHECK(stage.node.progress().total(now + 2s) == 1'800);
  }

  TEST_CASE("a session whose peer never says who it is is given up after a minute") {
    for (const bool says : {false, true}) {
      CAPTURE(says);
      Stage stage;
      meet_four(stage);
      (void)stage.node.on_session_up(kStart, test_id(9));
      std::optional<Duration> given_up;
      for (Duration after{0}; after < 100s && !given_up; after += 100ms) {
        const TimePoint now = kStart + after;
        if (says && after == 50s)
          (void)stage.node.on_message(now, test_id(9), facts_of({record_of(9)}));
        (void)stage.node.on_message(now, test_id(9), HeartbeatAck{});
        for (const auto& offence : stage.node.on_tick(now).offences)
          if (offence.peer == test_id(9)) given_up = after;
      }
      CHECK(given_up.has_value() != says);
      if (given_up) CHECK((*given_up >= 60s && *given_up < 62s));
    }
  }
}
