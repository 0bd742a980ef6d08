// Single rules of Membership, one node against hand-made peers.
#include "tests/gossip/membership/stage.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

TEST_SUITE("gossip/membership_rules") {
  TEST_CASE("a session begins with the own record and a digest") {
    Stage stage;
    const auto effects = stage.node.on_session_up(kStart, test_id(1));
    REQUIRE(effects.send.size() == 2);
    const auto* facts = std::get_if<Facts>(&effects.send[0].message);
    REQUIRE(facts != nullptr);
    CHECK(facts->records.at(0).record == stage.node.self());
    CHECK(std::holds_alternative<Digest>(effects.send[1].message));
  }

  TEST_CASE("a record with a wrong signature is an offence and changes nothing") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    auto forged = record_of(2);
    forged.addresses = {"6.6.6.6:666"};
    const auto effects = stage.node.on_message(kStart, test_id(1), facts_of({forged}));
    CHECK(effects.offences.size() == 1);
    CHECK(!stage.node.state_of(test_id(2)).has_value());
  }

  TEST_CASE("old and equal incarnations are ignored, a newer one is taken and passed on once") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.on_session_up(kStart, test_id(2));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1), record_of(2)}));
    const auto fresh = stage.node.on_message(kStart, test_id(1), facts_of({record_of(3, 5)}));
    REQUIRE(count_sent<Facts>(fresh) == 1);
    CHECK(fresh.send[0].to == test_id(2));
    CHECK(fresh.changes.size() == 1);
    for (const std::uint64_t incarnation : {1U, 4U, 5U}) {
      const auto again =
          stage.node.on_message(kStart, test_id(2), facts_of({record_of(3, incarnation)}));
      CHECK(again.send.empty());
      CHECK(again.changes.empty());
    }
  }

  TEST_CASE("a record that says nothing new waits for the next round, with whoever has it") {
    Stage stage;
    meet_four(stage);

    const TimePoint then = kStart + 310ms;
    const auto renewal = facts_of({record_of(3, 2)});
    CHECK(count_sent<Facts>(stage.node.on_message(then, test_id(1), renewal)) == 0);
    CHECK(count_sent<Facts>(stage.node.on_message(then, test_id(2), renewal)) == 0);
    const auto round = stage.node.on_tick(kStart + 600ms);
    REQUIRE(count_sent<Facts>(round) == 1);
    const auto told = std::ranges::find_if(round.send, [](const auto& outgoing) {
      return std::holds_alternative<Facts>(outgoing.message);
    });
    CHECK(told->to == test_id(4));

    auto moved = record_of(3, 3);
    moved.addresses = {"10.0.0.33:7700"};
    sign_record(moved, SwarmId{}, TestSigner(test_id(3)));
    CHECK(count_sent<Facts>(stage.node.on_message(kStart + 610ms, test_id(1), facts_of({moved}))) ==
          2);
  }

  TEST_CASE("a refutation is told at once, though the record says nothing else") {
    Stage stage;
    for (const std::uint64_t peer : {1U, 2U}) (void)stage.node.on_session_up(kStart, test_id(peer));
    (void)stage.node.on_message(kStart, test_id(1),
                                facts_of({record_of(1), record_of(2), record_of(3)},
                                         {accusation_of(3, 1, AccusationKind::suspect)}));
    const auto refuted =
        stage.node.on_message(kStart + 10ms, test_id(1), facts_of({record_of(3, 2)}));
    CHECK(count_sent<Facts>(refuted) == 1);
  }

  TEST_CASE("records live longer in a large swarm, and a newcomer takes old ones") {
    const TableOptions options;
    CHECK(options.lifetime(1'000) == 1h);
    CHECK(options.lifetime(10'000) == 30'000s);
    TestSigner signer(test_id(0));
    TestVerifier verifier;
    Membership newcomer(kStart, {SwarmId{}, Stage::prepared({}), {}, signer, verifier}, Rng(1));
    (void)newcomer.on_session_up(kStart, test_id(1));
    Facts facts = facts_of({record_of(2)});
    facts.records.front().age_s = 7'200;
    (void)newcomer.on_message(kStart, test_id(1), facts);
    CHECK(newcomer.state_of(test_id(2)) == MemberState::alive);

    Stage settled;
    (void)settled.node.on_session_up(kStart, test_id(1));
    (void)settled.node.on_message(kStart, test_id(1), facts);
    CHECK(!settled.node.state_of(test_id(2)).has_value());
  }

  TEST_CASE("a direct session that answers outweighs every accusation") {
    Stage stage;
    std::vector<MemberRecord> all;
    for (std::uint64_t i = 1; i <= 6; ++i) {
      (void)stage.node.on_session_up(kStart, test_id(i));
      all.push_back(record_of(i));
    }
    (void)stage.node.on_message(kStart, test_id(1), facts_of(all));
    std::vector<Accusation> lies;
    for (std::uint64_t accuser = 2; accuser <= 6; ++accuser)
      lies.push_back(accusation_of(1, accuser, AccusationKind::dead));
    const auto effects = stage.node.on_message(kStart, test_id(2), facts_of({}, lies));
    CHECK(stage.node.state_of(test_id(1)) == MemberState::alive);
    // The accused hears of it, so that it can refute.
    const auto told = std::ranges::find(effects.send, test_id(1), &MembershipOutgoing::to);
    REQUIRE(told != effects.send.end());
    CHECK(std::get<Facts>(told->message).accusations.size() == 5);
  }

  TEST_CASE(
      "a subject that did not listen to an accuser is told again by those it has a session with") {
    Stage stage;
    for (const std::uint64_t peer : {1U, 3U}) (void)stage.node.on_session_up(kStart, test_id(peer));
    const auto accused = stage.node.on_message(
        kStart, test_id(1),
        facts_of({record_of(1), record_of(3)}, {accusation_of(3, 1, AccusationKind::suspect)}));
    const auto tells_subject = [](const MembershipEffects& effects) {
      return std::ranges::any_of(effects.send, [](const auto& outgoing) {
        const auto* facts = std::get_if<Facts>(&outgoing.message);
        return outgoing.to == test_id(3) && facts != nullptr && !facts->accusations.empty();
      });
    };
    CHECK(tells_subject(accused));
    CHECK(stage.node.state_of(test_id(3)) == MemberState::alive);  // its session answers

    bool again = false;
    for (TimePoint now = kStart + 100ms; now < kStart + 34s; now += 100ms) {
      again = again || tells_subject(stage.node.on_tick(now));
      for (std::uint64_t seq = 0; seq < 100; ++seq)
        (void)stage.node.on_message(now, test_id(3), HeartbeatAck{seq});
    }
    CHECK(again);
  }

  TEST_CASE("without a session two accusers of seven are too few, three are enough") {
    Stage stage;
    std::vector<MemberRecord> all;
    for (std::uint64_t i = 1; i <= 6; ++i) all.push_back(record_of(i));
    (void)stage.node.on_session_up(kStart, test_id(2));
    (void)stage.node.on_message(kStart, test_id(2), facts_of(all));
    TimePoint now = kStart;
    const auto wait = [&](Duration time) {
      for (const TimePoint end = now + time; now < end; now += 50ms) {
        (void)stage.node.on_message(now, test_id(2), Heartbeat{1});
        (void)stage.node.on_tick(now);
      }
    };
    const auto say = [&](std::uint64_t accuser) {
      (void)stage.node.on_message(now, test_id(2),
                                  facts_of({}, {accusation_of(1, accuser, AccusationKind::dead)}));
    };
    say(3);
    say(4);
    say(4);
    wait(900ms);
    CHECK(stage.node.state_of(test_id(1)) == MemberState::suspect);
    say(5);
    CHECK(stage.node.state_of(test_id(1)) == MemberState::suspect);  // it may refute yet
    wait(1s);
    CHECK(stage.node.state_of(test_id(1)) == MemberState::dead);
    // A higher incarnation brings it back, an old accusation does not kill it again.
    (void)stage.node.on_message(now, test_id(2), facts_of({record_of(1, 2)}));
    CHECK(stage.node.state_of(test_id(1)) == MemberState::alive);
    say(6);
    CHECK(stage.node.state_of(test_id(1)) == MemberState::alive);
  }

  TEST_CASE("strangers, the dead and the departed accuse in vain") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(2));
    (void)stage.node.on_message(
        kStart, test_id(2),
        facts_of({record_of(1), record_of(2), record_of(3, 1, RecordState::left)}));
    (void)stage.node.on_message(kStart, test_id(2),
                                facts_of({}, {accusation_of(1, 3, AccusationKind::suspect),
                                              accusation_of(1, 99, AccusationKind::suspect)}));
    CHECK(stage.node.state_of(test_id(1)) == MemberState::alive);
  }

  TEST_CASE("an accused node refutes with its next incarnation, but not in a flood") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1)}));
    TimePoint now = kStart + 1s;
    std::size_t refutations = 0;
    for (int i = 0; i < 100; ++i, now += 10ms) {
      const auto before = stage.node.self().incarnation;
      (void)stage.node.on_message(
          now, test_id(1), facts_of({}, {accusation_of(0, 1, AccusationKind::dead, before.value)}));
      (void)stage.node.on_tick(now);
      refutations += stage.node.self().incarnation > before ? 1 : 0;
    }
    CHECK(refutations >= 4);
    CHECK(refutations <= 6);
  }

  TEST_CASE("a new ceiling is asked for before incarnations run out, and never overtaken") {
    SelfDescription self;
    self.first = {100};
    self.ceiling = {103};
    Stage stage({}, self);
    (void)stage.node.set_settings(kStart, test_hash_like(1));
    (void)stage.node.set_settings(kStart, test_hash_like(2));
    (void)stage.node.set_settings(kStart, test_hash_like(3));
    const auto starved = stage.node.set_settings(kStart, test_hash_like(4));
    CHECK(stage.node.self().incarnation.value == 102);
    CHECK(std::ranges::count(starved.notices, Notice::incarnations_spent) == 1);
    (void)stage.node.on_incarnations_persisted(kStart, {1103});
    CHECK(stage.node.self().incarnation.value == 103);
    CHECK(stage.node.self().settings == test_hash_like(4));
  }

  TEST_CASE("a refutation that waits for the disk does not keep the node busy") {
    SelfDescription self;
    self.ceiling = {3};  // used up once the node is alive
    Stage stage({}, self);
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.on_message(
        kStart, test_id(1),
        facts_of({record_of(1)}, {accusation_of(0, 1, AccusationKind::suspect,
                                                stage.node.self().incarnation.value)}));
    const TimePoint later = kStart + 1s;
    (void)stage.node.on_tick(later);
    CHECK(stage.node.next_deadline() > later);
    const auto written = stage.node.on_incarnations_persisted(later, {1000});
    CHECK(stage.node.self().incarnation == Incarnation{3});
    CHECK(count_sent<Facts>(written) == 1);
  }

  TEST_CASE("a node that lost its state outbids the record that the swarm still holds of it") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    auto old = record_of(0, 500);
    (void)stage.node.on_message(kStart + 1s, test_id(1), facts_of({old}));
    CHECK(stage.node.self().incarnation.value == 501);
  }

  TEST_CASE("another process with this identity is noticed") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    const auto twin = record_of(0, stage.node.self().incarnation.value);
    const auto effects = stage.node.on_message(kStart + 1s, test_id(1), facts_of({twin}));
    CHECK(std::ranges::count(effects.notices, Notice::clone_seen) == 1);
  }

  TEST_CASE("a flood of signed records fills neither the table nor the day") {
    MembershipOptions options;
    options.table.max_records = 500;
    options.spread.fact_burst = 300;
    Stage stage(options);
    (void)stage.node.on_session_up(kStart, test_id(1));
    std::size_t passed_on = 0;
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const auto effects = stage.node.on_message(kStart + milliseconds(i), test_id(1),
                                                 facts_of({record_of(i + 1000)}));
      passed_on += effects.changes.size();
    }
    CHECK(passed_on <= 300 + 2 * 10 + 1);
  }

  TEST_CASE("a whole view is loaded bucket by bucket, at the asker's pace") {
    Stage full;
    (void)full.node.on_session_up(kStart, test_id(1));
    for (std::uint64_t i = 1; i <= 900; ++i)
      (void)full.node.on_message(kStart, test_id(1), facts_of({record_of(i)}));
    SelfDescription self;
    TestSigner signer(test_id(5000));
    TestVerifier verifier;
    Membership newcomer(kStart, {SwarmId{}, Stage::prepared(self), {}, signer, verifier}, Rng(2));
    const TimePoint now = kStart + 1s;
    auto to_new = full.node.on_session_up(now, test_id(5000)).send;
    auto to_full = newcomer.on_session_up(now, test_id(0)).send;
    std::size_t rounds = 0;
    while ((!to_new.empty() || !to_full.empty()) && ++rounds < 500) {
      std::vector<MembershipOutgoing> next_new;
      std::vector<MembershipOutgoing> next_full;
      for (const auto& outgoing : to_new) {
        if (outgoing.to != test_id(5000)) continue;
        CHECK(encode(outgoing.message).body.size() <= kMaxMembershipBody);
        for (auto& reply : newcomer.on_message(now, test_id(0), outgoing.message).send)
          next_full.push_back(std::move(reply));
      }
      for (const auto& outgoing : to_full)
        for (auto& reply : full.node.on_message(now, test_id(5000), outgoing.message).send)
          next_new.push_back(std::move(reply));
      to_new = std::move(next_new);
      to_full = std::move(next_full);
    }
    CHECK(rounds < 200);
    CHECK(newcomer.members().size() == 901);
  }

  TEST_CASE("views are compared by one hash, and only those that differ are sent") {
    Stage here;
    Stage there;
    const NodeId peer = test_id(1);
    (void)here.node.on_session_up(kStart, peer);
    (void)here.node.on_message(kStart, peer, facts_of({record_of(1), record_of(2)}));
    Heartbeat said;
    for (TimePoint now = kStart; said.view == 0 && now < kStart + 40s; now += 250ms) {
      (void)here.node.on_message(now, peer, HeartbeatAck{1});
      for (const auto& outgoing : here.node.on_tick(now).send)
        if (const auto* heartbeat = std::get_if<Heartbeat>(&outgoing.message))
          if (heartbeat->view != 0) said = *heartbeat;
    }
    REQUIRE(said.view != 0);

    (void)there.node.on_session_up(kStart, peer);
    (void)there.node.on_message(kStart, peer, facts_of({record_of(1)}));
    const auto differs = there.node.on_message(kStart + 1s, peer, said);
    CHECK(count_sent<Digest>(differs) == 1);
    CHECK(count_sent<HeartbeatAck>(differs) == 1);
    // Its hash takes a walk over all members: not for everybody who asks all the time.
    CHECK(count_sent<Digest>(there.node.on_message(kStart + 1100ms, peer, said)) == 0);
    (void)there.node.on_message(kStart + 1s, peer, facts_of({record_of(2)}));
    CHECK(count_sent<Digest>(there.node.on_message(kStart + 2s, peer, said)) == 0);
    // An older build says nothing of its view.
    CHECK(count_sent<Digest>(there.node.on_message(kStart + 3s, peer, Heartbeat{9})) == 0);
  }

  TEST_CASE("a silent session and an accuser are a suspicion, without asking others first") {
    for (const bool accused : {false, true}) {
      CAPTURE(accused);
      Stage stage;
      meet_four(stage);
      TimePoint now = kStart + 300ms;
      const auto wait_for = [&](auto found) {
        for (const TimePoint end = now + 5s; now < end; now += 10ms) {
          for (const std::uint64_t peer : {2U, 4U})
            (void)stage.node.on_message(now, test_id(peer), Heartbeat{1});
          if (found(stage.node.on_tick(now))) return;
        }
      };
      wait_for([](const auto& effects) { return count_sent<ProbeRequest>(effects) > 0; });
      const TimePoint asked = now;
      CHECK(stage.node.state_of(test_id(1)) == MemberState::alive);
      if (accused)
        (void)stage.node.on_message(now, test_id(2),
                                    facts_of({}, {accusation_of(1, 3, AccusationKind::suspect)}));
      bool own = false;
      wait_for([&](const auto& effects) {
        for (const auto& [to, facts] : facts_by_peer(effects))
          own = own || std::ranges::any_of(facts.accusations, [](const Accusation& accusation) {
                  return accusation.accuser == test_id(0);
                });
        return own;
      });
      REQUIRE(own);
      CHECK((now - asked < 100ms) == accused);
      CHECK((now - asked >= 490ms) == !accused);
    }
  }

  TEST_CASE("a refused dial after a lost session is a verdict at once") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1)}));
    const auto lost = stage.node.on_session_down(kStart + 1s, test_id(1), SessionEnd::reset);
    REQUIRE(lost.wanted_sessions.size() == 1);
    CHECK(lost.wanted_sessions[0].id == test_id(1));
    CHECK(stage.node.state_of(test_id(1)) == MemberState::alive);
    const auto refused = stage.node.on_dial_refused(kStart + 1s, test_id(1));
    REQUIRE(refused.changes.size() == 1);
    CHECK(refused.changes[0].after == MemberState::dead);
    CHECK(refused.changes[0].evidence == Evidence::connection_refused);
    CHECK(describe(refused.changes[0]).find("connection refused") != std::string::npos);
  }

  TEST_CASE("a record that nobody refreshes expires, an own one is refreshed in time") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1), record_of(2)}));
    const auto first = stage.node.self().incarnation;
    for (TimePoint now = kStart; now < kStart + 70min; now += 250ms) {
      (void)stage.node.on_message(now, test_id(1), Heartbeat{1});
      (void)stage.node.on_tick(now);
    }
    CHECK(!stage.node.state_of(test_id(2)).has_value());
    CHECK(stage.node.self().incarnation.value >= first.value + 3);
  }

  TEST_CASE("a neighbour that never dials us is doubted when it falls silent, and then ever less") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    auto hidden = record_of(2);
    hidden.capabilities = 0;
    sign_record(hidden, SwarmId{}, TestSigner(test_id(2)));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1), hidden}));
    REQUIRE(stage.node.neighbours().size() == 2);
    std::size_t asked = 0;
    std::size_t accused = 0;
    std::uint64_t samples = 0;
    const auto run = [&](TimePoint from, TimePoint to, bool reports) {
      for (TimePoint now = from; now < to; now += 250ms) {
        (void)stage.node.on_message(now, test_id(1), Heartbeat{1});
        if (reports) {
          ProgressReport report;
          report.id = test_id(2);
          report.incarnation = hidden.incarnation;
          report.samples = ++samples;
          sign_report(report, SwarmId{}, TestSigner(test_id(2)));
          Facts facts;
          facts.reports.push_back(report);
          (void)stage.node.on_message(now, test_id(1), facts);
        }
        asked += count_sent<ProbeRequest>(stage.node.on_tick(now));
        if (stage.node.state_of(test_id(2)) == MemberState::alive) continue;
        ++accused;  // it hears of it, and refutes
        hidden.incarnation = hidden.incarnation.next();
        sign_record(hidden, SwarmId{}, TestSigner(test_id(2)));
        (void)stage.node.on_message(now, test_id(1), facts_of({hidden}));
      }
    };

    run(kStart, kStart + 10min, true);
    CHECK(asked == 0);
    CHECK(accused == 0);
    run(kStart + 10min, kStart + 11min, false);
    CHECK(accused >= 1);
    run(kStart + 11min, kStart + 70min, false);

    // After 20, 40, ... 320 s, and from then on every ten minutes.
    CHECK(accused >= 8);
    CHECK(accused <= 12);
    CHECK(asked == accused);
  }

  TEST_CASE("members that train something else are members, and no neighbours") {
    Stage stage;
    (void)stage.node.on_session_up(kStart, test_id(1));
    auto other = record_of(2);
    other.settings = test_hash_like(2);
    sign_record(other, SwarmId{}, TestSigner(test_id(2)));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1), other}));
    CHECK(stage.node.neighbours().size() == 2);  // nobody has said what this node trains
    (void)stage.node.set_settings(kStart, test_hash_like(1));
    CHECK(stage.node.neighbours() == std::vector<NodeId>{test_id(1)});
    CHECK(stage.node.state_of(test_id(2)) == MemberState::alive);
    CHECK(stage.node.alive_count_with(test_hash_like(2)) == 1);
    (void)stage.node.set_settings(kStart, test_hash_like(2));
    CHECK(stage.node.neighbours().size() == 2);
  }

  TEST_CASE("where strangers may be members, guests are of networks that no neighbour is of") {
    MembershipOptions options;
    options.strangers = true;
    Stage stage(options);
    std::map<NodeId, std::optional<Network>> networks;
    std::vector<MemberRecord> records;
    for (std::uint64_t number = 1; number <= 30; ++number) {
      const std::string host = "9." + std::to_string(number % 12) + ".1." + std::to_string(number);
      networks[test_id(number)] = network_of(host);
      (void)stage.node.on_session_up(kStart, test_id(number), host);
      records.push_back(record_of(number));
    }
    (void)stage.node.on_message(kStart, test_id(1), facts_of(std::move(records)));
    (void)stage.node.on_tick(kStart + milliseconds(300));

    std::set<std::optional<Network>> seen;
    for (const auto& id : stage.node.neighbours()) seen.insert(networks.at(id));
    CHECK(seen.size() >= 4);
    const auto guests = stage.node.guests();
    CHECK(guests.size() == 12 - seen.size());
    for (const auto& id : guests) CHECK(seen.insert(networks.at(id)).second);
  }

  TEST_CASE("members that share a secret have neighbours by name alone, and no guests") {
    Stage stage;
    std::vector<MemberRecord> records;
    for (std::uint64_t number = 1; number <= 30; ++number) {
      (void)stage.node.on_session_up(kStart, test_id(number), "9.1.1.1");
      records.push_back(record_of(number));
    }
    (void)stage.node.on_message(kStart, test_id(1), facts_of(std::move(records)));
    (void)stage.node.on_tick(kStart + milliseconds(300));

    std::vector<NodeId> all{test_id(0)};
    for (std::uint64_t number = 1; number <= 30; ++number) all.push_back(test_id(number));
    CHECK(stage.node.neighbours() == neighbours(all, test_id(0), SwarmId{}));
    CHECK(stage.node.guests().empty());
  }
}
