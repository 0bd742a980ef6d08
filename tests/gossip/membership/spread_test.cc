// What one membership passes on to its peers, and how.
#include "tests/gossip/membership/stage.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

TEST_SUITE("gossip/membership_spread") {
  TEST_CASE("a report is announced, sent to whoever asks, and its next ones unasked") {
    Stage stage;
    meet_four(stage);
    const auto first = report_of(3, 64);
    (void)stage.node.on_message(kStart + 310ms, test_id(1), facts_of(first));
    auto round = facts_by_peer(stage.node.on_tick(kStart + 600ms));
    REQUIRE(round.size() == 2);
    CHECK(!round.contains(test_id(1)));
    CHECK(round.at(test_id(2)).has == std::vector{name_of(first)});
    CHECK(round.at(test_id(2)).reports.empty());

    CHECK(facts_by_peer(stage.node.on_message(kStart + 610ms, test_id(2), wanted(name_of(first))))
              .empty());
    round = facts_by_peer(stage.node.on_tick(kStart + 860ms));
    REQUIRE(round.size() == 1);
    CHECK(round.at(test_id(2)).reports == std::vector{first});

    // Asked for again while a newer one waits: one of them is enough.
    const auto second = report_of(3, 128);
    (void)stage.node.on_message(kStart + 870ms, test_id(2), wanted(name_of(first)));
    (void)stage.node.on_message(kStart + 880ms, test_id(1), facts_of(second));
    round = facts_by_peer(stage.node.on_tick(kStart + 1120ms));
    CHECK(round.at(test_id(2)).reports == std::vector{second});
    CHECK(round.at(test_id(4)).has == std::vector{name_of(second)});

    // Peer 2 has the third one before us.
    const auto third = report_of(3, 192);
    Facts announced;
    announced.has = {name_of(third)};
    (void)stage.node.on_message(kStart + 1130ms, test_id(2), announced);
    (void)stage.node.on_message(kStart + 1140ms, test_id(1), facts_of(third));
    round = facts_by_peer(stage.node.on_tick(kStart + 1400ms));
    CHECK(!round.contains(test_id(2)));
    CHECK(round.at(test_id(4)).has == std::vector{name_of(third)});
    (void)stage.node.on_message(kStart + 1410ms, test_id(2), announced);
    const auto fourth = report_of(3, 256);
    (void)stage.node.on_message(kStart + 1420ms, test_id(1), facts_of(fourth));
    round = facts_by_peer(stage.node.on_tick(kStart + 1700ms));
    CHECK(round.at(test_id(2)).reports.empty());
    CHECK(round.at(test_id(2)).has == std::vector{name_of(fourth)});
  }

  TEST_CASE("whoever sends a report that is known already is told so, and is not sent it") {
    Stage stage;
    for (const std::uint64_t peer : {1U, 2U}) (void)stage.node.on_session_up(kStart, test_id(peer));
    (void)stage.node.on_message(kStart, test_id(1),
                                facts_of({record_of(1), record_of(2), record_of(3)}));
    (void)stage.node.on_tick(kStart + 300ms);
    const auto said = report_of(3, 64);
    (void)stage.node.on_message(kStart + 310ms, test_id(1), facts_of(said));
    (void)stage.node.on_message(kStart + 320ms, test_id(2), facts_of(said));
    const auto round = facts_by_peer(stage.node.on_tick(kStart + 600ms));
    REQUIRE(round.size() == 1);
    CHECK(round.at(test_id(2)).reports.empty());
    CHECK(round.at(test_id(2)).has == std::vector{name_of(said)});
  }

  TEST_CASE("reports are asked for with the next round, all in one message") {
    Stage stage;
    for (const std::uint64_t peer : {1U, 2U}) (void)stage.node.on_session_up(kStart, test_id(peer));
    (void)stage.node.on_message(kStart, test_id(1),
                                facts_of({record_of(1), record_of(2), record_of(3), record_of(4)}));
    (void)stage.node.on_tick(kStart + 300ms);
    Facts announced;
    announced.has = {name_of(report_of(3, 64))};
    CHECK(facts_by_peer(stage.node.on_message(kStart + 310ms, test_id(1), announced)).empty());
    announced.has = {name_of(report_of(3, 64)), name_of(report_of(4, 32))};
    CHECK(facts_by_peer(stage.node.on_message(kStart + 320ms, test_id(2), announced)).empty());
    announced.has = {name_of(report_of(4, 32)), name_of(report_of(2, 16))};
    CHECK(facts_by_peer(stage.node.on_message(kStart + 330ms, test_id(1), announced)).empty());
    auto round = facts_by_peer(stage.node.on_tick(kStart + 600ms));
    REQUIRE(round.size() == 2);
    // Of the first that said it, whatever others have said since.
    CHECK(round.at(test_id(1)).wants.size() == 2);
    CHECK(round.at(test_id(2)).wants == std::vector{name_of(report_of(4, 32))});

    // Who is asked looks around only after a quarter of a second, and the way is long.
    CHECK(facts_by_peer(stage.node.on_tick(kStart + 1300ms)).empty());
    (void)stage.node.on_message(kStart + 1310ms, test_id(1), facts_of(report_of(3, 64)));
    round = facts_by_peer(stage.node.on_tick(kStart + 1700ms));
    REQUIRE(round.contains(test_id(1)));
    CHECK(round.at(test_id(1)).wants == std::vector{name_of(report_of(4, 32))});
  }

  TEST_CASE("what was announced is asked for once, and of another one if it does not come") {
    Stage stage;
    for (const std::uint64_t peer : {1U, 2U}) (void)stage.node.on_session_up(kStart, test_id(peer));
    (void)stage.node.on_message(kStart, test_id(1), facts_of({record_of(1), record_of(2)}));
    Facts announced;
    announced.has = {name_of(record_of(3, 5)), name_of(record_of(2)), name_of(report_of(9, 64)),
                     name_of(stage.node.self())};
    auto asked = facts_by_peer(stage.node.on_message(kStart, test_id(1), announced));
    REQUIRE(asked.size() == 1);
    // What is held, and reports of members that nobody knows, are not asked for.
    CHECK(asked.at(test_id(1)).wants == std::vector{name_of(record_of(3, 5))});
    CHECK(facts_by_peer(stage.node.on_message(kStart, test_id(2), announced)).empty());

    asked = facts_by_peer(stage.node.on_tick(kStart + 600ms));
    REQUIRE(asked.contains(test_id(2)));
    CHECK(asked.at(test_id(2)).wants == std::vector{name_of(record_of(3, 5))});
    const auto came =
        stage.node.on_message(kStart + 610ms, test_id(2), facts_of({record_of(3, 5)}));
    CHECK(came.changes.size() == 1);
    // Peer 1 did not deliver: it may as well not have it.
    CHECK(facts_by_peer(came).contains(test_id(1)));
    CHECK(!facts_by_peer(came).contains(test_id(2)));
  }

  TEST_CASE("in a large swarm news is announced at once, except by the author and its neighbours") {
    MembershipOptions options;
    options.spread.send_news_up_to = 0;
    Stage stage(options);
    for (const std::uint64_t peer : {1U, 2U}) (void)stage.node.on_session_up(kStart, test_id(peer));
    auto told = facts_by_peer(
        stage.node.on_message(kStart, test_id(1), facts_of({record_of(1), record_of(2)})));
    CHECK(told.at(test_id(2)).records.size() == 1);
    told = facts_by_peer(stage.node.on_message(kStart, test_id(1), facts_of({record_of(3, 5)})));
    REQUIRE(told.size() == 1);
    CHECK(told.at(test_id(2)).records.empty());
    CHECK(told.at(test_id(2)).has == std::vector{name_of(record_of(3, 5))});
    told =
        facts_by_peer(stage.node.on_message(kStart, test_id(2), wanted(name_of(record_of(3, 5)))));
    CHECK(told.at(test_id(2)).records.at(0).record == record_of(3, 5));

    // A refutation is for everybody.
    told = facts_by_peer(stage.node.on_message(
        kStart, test_id(1), facts_of({}, {accusation_of(3, 1, AccusationKind::suspect, 5)})));
    CHECK(told.at(test_id(2)).accusations.size() == 1);
    told = facts_by_peer(stage.node.on_message(kStart, test_id(1), facts_of({record_of(3, 6)})));
    CHECK(told.at(test_id(2)).records.size() == 1);
  }
}
