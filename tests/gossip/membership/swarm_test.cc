#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

// `count` nodes of which all but the first know the first only.
void grow(TestSwarm& swarm, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto node = swarm.start();
    if (node > 0) swarm.dial(node, 0);
  }
}

std::optional<MemberChange> last_change(const TestSwarm& swarm, std::size_t node,
                                        const NodeId& about) {
  for (auto at = swarm.seen(node).rbegin(); at != swarm.seen(node).rend(); ++at)
    if (at->change.id == about) return at->change;
  return std::nullopt;
}

}  // namespace

TEST_SUITE("gossip/membership") {
  TEST_CASE("nodes that know one contact know everybody within five seconds") {
    for (const std::size_t count : {2U, 5U, 12U, 32U}) {
      CAPTURE(count);
      TestSwarm swarm({.seed = count});
      grow(swarm, count);
      const auto took = swarm.run_until([&] { return swarm.settled(); }, 5s);
      REQUIRE(took.has_value());
      MESSAGE(count, " nodes: ", took->count() / 1000, " ms");
      // And the edges of the topology have their sessions.
      swarm.run(3s);
      for (std::size_t node = 0; node < count; ++node) {
        // Two cycles may share a pair, so four is the most.
        CHECK(swarm.at(node).neighbours().size() >= std::min<std::size_t>(count - 1, 2));
        CHECK(swarm.at(node).neighbours().size() <= std::min<std::size_t>(count - 1, 4));
        for (const auto& id : swarm.at(node).neighbours()) CHECK(swarm.at(node).has_session(id));
      }
    }
  }

  TEST_CASE("a swarm that announces news knows everybody as soon, and the dead as well") {
    SwarmOptions options{.seed = 32};
    options.membership.spread.send_news_up_to = 0;
    TestSwarm swarm(options);
    grow(swarm, 32);
    CHECK(swarm.run_until([&] { return swarm.settled(); }, 5s).has_value());
    swarm.run(10s);
    swarm.kill(5);
    const auto took = swarm.run_until([&] { return swarm.all_see(5, MemberState::dead); }, 5s);
    REQUIRE(took.has_value());
    CHECK(*took <= 2s);
    const auto late = swarm.start();
    swarm.dial(late, 9);
    CHECK(swarm.run_until([&] { return swarm.all_see(late, MemberState::alive); }, 1s).has_value());
    swarm.leave(3);
    CHECK(swarm.run_until([&] { return swarm.all_see(3, MemberState::left); }, 1s).has_value());
  }

  TEST_CASE("a killed process is dead in every view within two seconds, with a reason") {
    for (const std::size_t count : {2U, 3U, 4U, 5U, 8U, 16U, 40U}) {
      CAPTURE(count);
      TestSwarm swarm({.seed = 100 + count});
      grow(swarm, count);
      swarm.run(10s);
      REQUIRE(swarm.settled());
      const std::size_t victim = count / 2;

      swarm.kill(victim);
      const auto took =
          swarm.run_until([&] { return swarm.all_see(victim, MemberState::dead); }, 5s);

      REQUIRE(took.has_value());
      MESSAGE(count, " nodes: ", took->count() / 1000, " ms");
      CHECK(*took <= 2s);
      const auto change = last_change(swarm, 0, swarm.id(victim));
      REQUIRE(change.has_value());
      CHECK(change->evidence.has_value());
      CHECK(!describe(*change).empty());
    }
  }

  TEST_CASE("a host that is switched off is dead in every view within eight seconds") {
    for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U}) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 200 + seed});
      grow(swarm, 16);
      swarm.run(10s);
      REQUIRE(swarm.settled());

      swarm.silence(7);
      const auto took = swarm.run_until([&] { return swarm.all_see(7, MemberState::dead); }, 12s);

      REQUIRE(took.has_value());
      MESSAGE("seed ", seed, ": ", took->count() / 1000, " ms");
      CHECK(*took <= 8s);
      CHECK(swarm.count(MemberState::dead, {0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15}) ==
            0);
    }
  }

  TEST_CASE("a frozen node is found dead, comes back by itself when it wakes, and kills nobody") {
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 300 + seed});
      grow(swarm, 8);
      swarm.run(10s);
      REQUIRE(swarm.settled());

      swarm.freeze(3);
      const auto found = swarm.run_until([&] { return swarm.all_see(3, MemberState::dead); }, 12s);
      CHECK(found.has_value());
      swarm.run(30s);
      swarm.thaw(3);
      const auto back = swarm.run_until([&] { return swarm.settled(); }, 5s);

      REQUIRE(back.has_value());
      MESSAGE("back after ", back->count() / 1000, " ms");
      CHECK(*back <= 3s);
      CHECK(swarm.count(MemberState::dead, {0, 1, 2, 4, 5, 6, 7}) == 0);
    }
  }

  TEST_CASE("a short freeze ends without a verdict of death") {
    TestSwarm swarm({.seed = 310});
    grow(swarm, 8);
    swarm.run(10s);
    swarm.freeze(3);
    swarm.run(1500ms);
    swarm.thaw(3);
    swarm.run(5s);
    CHECK(swarm.settled());
    CHECK(swarm.count(MemberState::dead, {0, 1, 2, 3, 4, 5, 6, 7}) == 0);
  }

  TEST_CASE("a suspicion that never got to its subject is told again until it is refuted") {
    for (const bool accuser_leaves : {false, true}) {
      CAPTURE(accuser_leaves);
      TestSwarm swarm({.seed = 320});
      grow(swarm, 24);
      swarm.run(10s);
      REQUIRE(swarm.settled());
      const std::size_t accuser = 23;
      const std::size_t holder = 3;
      std::size_t subject = 4;
      for (bool witness = true; witness; ++subject) {
        REQUIRE(subject < accuser);
        if (swarm.at(holder).has_session(swarm.id(subject))) continue;
        Accusation accusation{.subject = swarm.id(subject),
                              .incarnation = swarm.at(subject).self().incarnation,
                              .accuser = swarm.id(accuser),
                              .kind = AccusationKind::suspect,
                              .evidence = Evidence::no_answer,
                              .signature = {}};
        sign_accusation(accusation, swarm.swarm(), swarm.signer(accuser));
        Facts facts;
        facts.accusations.push_back(accusation);
        // Its sessions break at this moment: every copy that it hands on is lost.
        auto lost =
            swarm.at(holder).on_message(swarm.now(), swarm.at(holder).sessions().front(), facts);
        REQUIRE(swarm.at(holder).state_of(swarm.id(subject)) == MemberState::suspect);
        // A witness makes a case of its own, and everybody hears of that.
        witness = !lost.wanted_sessions.empty();
        if (witness) swarm.carry_out(holder, std::move(lost));
      }
      --subject;
      if (accuser_leaves) swarm.leave(accuser);
      swarm.run(45s);

      CHECK(swarm.at(holder).state_of(swarm.id(subject)) == MemberState::alive);
      CHECK(swarm.settled());
    }
  }

  TEST_CASE("one liar that accuses everybody every second removes nobody") {
    TestSwarm swarm({.seed = 400});
    grow(swarm, 12);
    swarm.run(10s);
    REQUIRE(swarm.settled());
    for (int round = 0; round < 60; ++round) {
      for (std::size_t victim = 0; victim < 11; ++victim) {
        const auto record = swarm.at(11).find(swarm.id(victim))->record;
        Accusation lie{.subject = record.id,
                       .incarnation = record.incarnation,
                       .accuser = swarm.id(11),
                       .kind = AccusationKind::dead,
                       .evidence = Evidence::connection_refused,
                       .signature = {}};
        sign_accusation(lie, swarm.swarm(), swarm.signer(11));
        Facts facts;
        facts.accusations.push_back(lie);
        for (const auto& peer : swarm.at(11).sessions())
          for (std::size_t to = 0; to < 11; ++to)
            if (swarm.id(to) == peer) swarm.inject(11, to, facts);
      }
      swarm.run(1s);
    }
    CHECK(swarm.count(MemberState::dead, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) == 0);
    CHECK(swarm.settled());
  }

  TEST_CASE("two halves of a partition become one swarm again by themselves") {
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 500 + seed});
      grow(swarm, 16);
      swarm.run(10s);
      REQUIRE(swarm.settled());

      swarm.partition({0, 1, 2, 3, 4, 5, 6, 7});
      swarm.run(60s);
      // Each side has found the other one dead and nobody of its own.
      for (std::size_t node = 0; node < 16; ++node)
        for (std::size_t other = 0; other < 16; ++other)
          if (node != other)
            CHECK((swarm.at(node).state_of(swarm.id(other)) == MemberState::alive) ==
                  ((node < 8) == (other < 8)));
      swarm.heal();
      const auto took = swarm.run_until([&] { return swarm.settled(); }, 20s);

      REQUIRE(took.has_value());
      MESSAGE("healed after ", took->count() / 1000, " ms");
      CHECK(*took <= 6s);
    }
  }

  TEST_CASE("a host that was silent is back within three seconds, however long TCP would wait") {
    for (const auto silence : {4s, 8s, 14s, 20s, 29s, 50s}) {
      CAPTURE(silence.count());
      TestSwarm swarm({.seed = 520});
      grow(swarm, 16);
      swarm.run(10s);
      REQUIRE(swarm.settled());

      swarm.partition({3});
      swarm.run(silence);
      swarm.heal();
      const auto took = swarm.run_until([&] { return swarm.settled(); }, 30s);

      REQUIRE(took.has_value());
      MESSAGE("back after ", took->count() / 1000, " ms");
      CHECK(*took <= 3s);
      // And nobody is suspected again, because nothing waits for the old sessions.
      for (int i = 0; i < 20; ++i) {
        swarm.run(500ms);
        CHECK(swarm.settled());
      }
    }
  }

  TEST_CASE("the two survivors of five see the three that were killed at once as dead") {
    TestSwarm swarm({.seed = 600});
    grow(swarm, 5);
    swarm.run(10s);
    for (const std::size_t victim : {1U, 2U, 3U}) swarm.kill(victim);
    CHECK(swarm.run_until([&] { return swarm.settled(); }, 3s).has_value());
  }

  TEST_CASE("four survivors of sixteen find each other and bury the twelve") {
    TestSwarm swarm({.seed = 610});
    grow(swarm, 16);
    swarm.run(10s);
    for (std::size_t victim = 0; victim < 12; ++victim) swarm.kill(victim);
    const auto took = swarm.run_until([&] { return swarm.settled(); }, 45s);
    REQUIRE(took.has_value());
    MESSAGE("took ", took->count() / 1000, " ms");
  }

  TEST_CASE("a node that leaves is seen to have left within a second, and is not accused") {
    TestSwarm swarm({.seed = 700});
    grow(swarm, 12);
    swarm.run(10s);
    swarm.leave(4);
    const auto took = swarm.run_until([&] { return swarm.all_see(4, MemberState::left); }, 3s);
    REQUIRE(took.has_value());
    CHECK(*took <= 1s);
    swarm.run(40s);
    CHECK(swarm.all_see(4, MemberState::left));
    CHECK(swarm.count(MemberState::dead, {4}) == 0);
  }

  TEST_CASE("a restarted process is known as a new one, and dead no longer") {
    TestSwarm swarm({.seed = 800});
    grow(swarm, 6);
    swarm.run(10s);
    swarm.kill(2);
    swarm.run(4s);
    REQUIRE(swarm.all_see(2, MemberState::dead));
    swarm.restart(2);
    swarm.dial(2, 0);
    CHECK(swarm.run_until([&] { return swarm.settled(); }, 3s).has_value());
    CHECK(last_change(swarm, 5, swarm.id(2))->cause == Cause::new_process);
  }

  TEST_CASE("loss and jitter of a bad line cost nobody its membership") {
    TestSwarm swarm({.seed = 900, .delay = 50ms, .jitter = 20ms, .loss = 0.1});
    grow(swarm, 12);
    swarm.run(20s);
    REQUIRE(swarm.settled());
    swarm.run(180s);
    CHECK(swarm.settled());
    CHECK(swarm.count(MemberState::dead, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) == 0);
  }

  TEST_CASE("a starved node doubts itself and gets nobody declared dead") {
    TestSwarm swarm({.seed = 1000});
    grow(swarm, 12);
    swarm.run(10s);
    for (const std::size_t node : {2U, 5U}) swarm.starve(node, 2500ms);
    swarm.run(120s);
    CHECK(swarm.count(MemberState::dead, {0, 1, 3, 4, 6, 7, 8, 9, 10, 11}) == 0);
    CHECK(swarm.at(2).local_health() > 0);
  }

  TEST_CASE("bursts of SIGSTOP on a quarter of the nodes bring no death to the others") {
    TestSwarm swarm({.seed = 1050});
    Rng rng(7);
    grow(swarm, 16);
    swarm.run(10s);
    for (int burst = 0; burst < 20; ++burst) {
      for (const std::size_t node : {1U, 6U, 9U, 14U}) swarm.freeze(node);
      swarm.run(Duration(1s + milliseconds(rng.below(7000))));
      for (const std::size_t node : {1U, 6U, 9U, 14U}) swarm.thaw(node);
      swarm.run(Duration(1s + milliseconds(rng.below(3000))));
    }
    swarm.run(10s);
    CHECK(swarm.settled());
    CHECK(swarm.count(MemberState::dead, {0, 2, 3, 4, 5, 7, 8, 10, 11, 12, 13, 15}) == 0);
  }

  TEST_CASE("a node that can only dial out is a full member, and noticed when it dies") {
    TestSwarm swarm({.seed = 1100});
    grow(swarm, 8);
    for (int i = 0; i < 2; ++i) swarm.dial(swarm.start(TestSwarm::Reach::dials_only), 0);
    REQUIRE(swarm.run_until([&] { return swarm.settled(); }, 8s).has_value());
    swarm.run(5s);
    CHECK(swarm.at(8).neighbours().size() >= 3);
    for (const auto& id : swarm.at(8).neighbours()) CHECK(swarm.at(8).has_session(id));
    swarm.kill(9);
    CHECK(swarm.run_until([&] { return swarm.all_see(9, MemberState::dead); }, 10s).has_value());
  }

  TEST_CASE("a node that can only dial out is missed though all that it had dialled are gone") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = 1150 + seed});
      grow(swarm, 16);
      const auto lost = swarm.start(TestSwarm::Reach::dials_only);
      swarm.dial(lost, 0);
      REQUIRE(swarm.run_until([&] { return swarm.settled(); }, 8s).has_value());
      swarm.run(5s);

      std::set<std::size_t> gone{lost};
      for (std::size_t node = 0; node < lost; ++node)
        if (swarm.at(lost).has_session(swarm.id(node))) gone.insert(node);
      REQUIRE(gone.size() < 12);
      for (const auto node : gone) swarm.kill(node);
      const auto took =
          swarm.run_until([&] { return swarm.all_see(lost, MemberState::dead); }, 60s);

      REQUIRE(took.has_value());
      MESSAGE("seed ", seed, ": ", took->count() / 1000, " ms");
    }
  }

  TEST_CASE("where all that can be dialled are gone the others miss each other, and not before") {
    TestSwarm swarm({.seed = 1170});
    grow(swarm, 4);
    for (int i = 0; i < 2; ++i) swarm.dial(swarm.start(TestSwarm::Reach::dials_only), 0);
    REQUIRE(swarm.run_until([&] { return swarm.settled(); }, 8s).has_value());
    for (const std::size_t node : {1U, 2U, 3U}) swarm.kill(node);
    swarm.run(300s);
    CHECK(swarm.settled());
    CHECK(swarm.count(MemberState::suspect, {4, 5}) == 0);

    // Whether one of the two still runs the other cannot know.
    swarm.kill(0);
    const auto missed = [&] {
      return swarm.at(4).state_of(swarm.id(5)) == MemberState::dead &&
             swarm.at(5).state_of(swarm.id(4)) == MemberState::dead;
    };
    CHECK(swarm.run_until(missed, 60s).has_value());

    swarm.restart(0);
    CHECK(swarm.run_until([&] { return swarm.settled(); }, 60s).has_value());
  }

  TEST_CASE("an idle swarm sends under 100 bytes a second on a session") {
    TestSwarm swarm({.seed = 1200});
    grow(swarm, 16);
    swarm.run(20s);
    const auto before = swarm.bytes();
    swarm.run(120s);
    const double per_session = static_cast<double>(swarm.bytes() - before) / 120 /
                               static_cast<double>(swarm.session_count());
    MESSAGE("bytes per second and session, both ways: ", per_session);
    CHECK(per_session < 100);
    CHECK(swarm.count(MemberState::suspect, {0, 1, 2, 3, 4, 5, 6, 7, 8}) == 0);
  }

  TEST_CASE("sessions that the topology does not need are closed, and stay closed") {
    TestSwarm swarm({.seed = 1250});
    grow(swarm, 32);  // through one contact
    swarm.run(10s);
    CHECK(swarm.session_count() > 64);
    swarm.run(50s);
    CHECK(swarm.session_count() <= 64);  // two cycles
    std::set<std::size_t> all;
    for (std::size_t node = 0; node < 32; ++node) {
      all.insert(node);
      CHECK(swarm.at(node).sessions() == swarm.at(node).neighbours());
    }
    const auto made = swarm.sessions_made();
    const auto before = swarm.bytes();
    swarm.run(300s);
    CHECK(swarm.sessions_made() == made);
    CHECK(swarm.settled());
    CHECK(swarm.count(MemberState::suspect, all) == 0);
    const double per_node = static_cast<double>(swarm.bytes() - before) / 300 / 32;
    MESSAGE("bytes per second and node: ", per_node);
    CHECK(per_node < 130);
  }

  TEST_CASE("two neighbours whose line is cut suspect nobody: others reach both") {
    for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
      CAPTURE(seed);
      TestSwarm swarm({.seed = seed});
      grow(swarm, 16);
      swarm.run(60s);  // until only the sessions of the topology are left
      std::set<std::size_t> all;
      for (std::size_t node = 0; node < 16; ++node) all.insert(node);
      for (const std::size_t node : {0U, 5U, 10U, 15U})
        swarm.cut_line(node, swarm.index_of(swarm.at(node).neighbours().front()));
      const auto made = swarm.sessions_made();
      swarm.run(120s);
      CHECK(swarm.count(MemberState::suspect, all) == 0);
      CHECK(swarm.settled());
      MESSAGE("sessions to see for others: ", swarm.sessions_made() - made);
    }
  }

  TEST_CASE("whoever has many members probed at once gets few of them dialled") {
    TestSwarm swarm({.seed = 5});
    grow(swarm, 32);
    swarm.run(60s);
    const auto asked = swarm.index_of(swarm.at(0).neighbours().front());
    const auto made = swarm.sessions_made();
    std::size_t without_session = 0;
    for (std::size_t subject = 1; subject < 32; ++subject) {
      if (subject != asked && !swarm.at(asked).has_session(swarm.id(subject))) ++without_session;
      swarm.inject(0, asked, ProbeRequest{subject, swarm.id(subject)});
    }
    REQUIRE(without_session > 20);
    swarm.run(1s);
    CHECK(swarm.sessions_made() - made == 4);
  }

  TEST_CASE("a node that loses every session says so, once, and says when it is back") {
    TestSwarm swarm({.seed = 1300});
    grow(swarm, 6);
    swarm.run(10s);
    swarm.partition({5});
    swarm.run(60s);
    const auto count = [&](Notice notice) { return std::ranges::count(swarm.notices(5), notice); };
    CHECK(count(Notice::isolated) == 1);
    swarm.heal();
    swarm.run(10s);
    CHECK(count(Notice::connected) == 1);
    CHECK(swarm.settled());
  }

  TEST_CASE("every node knows how many samples the swarm has processed") {
    TestSwarm swarm({.seed = 1400});
    grow(swarm, 10);
    swarm.run(5s);
    std::uint64_t true_total = 0;
    for (int second = 0; second < 60; ++second) {
      true_total = 0;
      for (std::size_t node = 0; node < 10; ++node) {
        const auto samples = static_cast<std::uint64_t>(second) * (50 + 20 * node);
        true_total += samples;
        swarm.at(node).on_local_samples(swarm.now(), samples);
      }
      swarm.run(1s);
    }
    for (std::size_t node = 0; node < 10; ++node) {
      const auto known = static_cast<double>(swarm.at(node).progress().total(swarm.now()));
      CHECK(known == doctest::Approx(static_cast<double>(true_total)).epsilon(0.06));
    }
  }
}
