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

class CountingVerifier final : public Verifier {
 public:
  [[nodiscard]] Verdict verify(const NodeId& signer, std::string_view domain, ByteView message,
                               const Signature& signature) const override {
    ++asked;
    return TestVerifier{}.verify(signer, domain, message, signature);
  }
  mutable std::size_t asked = 0;
};

// A node that has not begun to train.
struct Newcomer {
  TestSigner signer{test_id(0)};
  CountingVerifier verifier;
  Membership node;

  explicit Newcomer(const MembershipOptions& options = {})
      : node(kStart, {SwarmId{}, Stage::prepared({}), options, signer, verifier}, Rng(1)) {}
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
      wanted = stage.node.set_data_set(now, test_hash_like(number)).persist_incarnation;
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
    (void)stage.node.set_data_set(kStart, test_hash_like(1));
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
