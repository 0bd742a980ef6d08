#include "gossip/membership/member_table.h"

#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
using namespace std::chrono_literals;

namespace {

MemberRecord bare_record(std::uint64_t number, std::uint64_t incarnation = 1) {
  MemberRecord record;
  record.id = test_id(number);
  record.incarnation = {incarnation};
  record.state = RecordState::alive;
  return record;
}

Accusation accuse(std::uint64_t subject, std::uint64_t accuser,
                  AccusationKind kind = AccusationKind::suspect) {
  Accusation accusation;
  accusation.subject = test_id(subject);
  accusation.incarnation = {1};
  accusation.accuser = test_id(accuser);
  accusation.kind = kind;
  return accusation;
}

}  // namespace

TEST_SUITE("gossip/member_table") {
  TEST_CASE(
      "a full table makes room by forgetting who left first, never by forgetting the living") {
    MemberTable table(test_id(0), {.max_records = 4});
    for (std::uint64_t i = 1; i <= 4; ++i)
      table.set_state(*table.put(bare_record(i), kStart).member, MemberState::alive, kStart);
    CHECK(table.put(bare_record(5), kStart).member == nullptr);
    table.set_state(*table.find(test_id(3)), MemberState::dead, kStart + 2s);
    table.set_state(*table.find(test_id(2)), MemberState::left, kStart + 1s);
    const auto placed = table.put(bare_record(5), kStart);
    REQUIRE(placed.member != nullptr);
    REQUIRE(placed.evicted.has_value());
    CHECK(placed.evicted->record.id == test_id(2));
    CHECK(table.size() == 4);
    CHECK(table.count(MemberState::dead) == 1);
    CHECK(table.count(MemberState::left) == 0);
  }

  TEST_CASE("one accuser counts once, and invented accusers cannot keep real ones out") {
    MemberTable table(test_id(0), {.max_accusers = 4});
    auto& subject = *table.put(bare_record(1), kStart).member;
    for (std::uint64_t i = 10; i < 14; ++i) table.put(bare_record(i), kStart);
    for (std::uint64_t i = 100; i < 104; ++i)
      CHECK(table.accuse(subject, accuse(1, i), kStart) == MemberTable::Added::added);
    CHECK(table.accuse(subject, accuse(1, 104), kStart) == MemberTable::Added::full);
    for (std::uint64_t i = 10; i < 14; ++i)
      CHECK(table.accuse(subject, accuse(1, i), kStart) == MemberTable::Added::added);
    CHECK(table.accuse(subject, accuse(1, 10), kStart) == MemberTable::Added::known);
    CHECK(table.accuse(subject, accuse(1, 10, AccusationKind::dead), kStart) ==
          MemberTable::Added::stronger);
    CHECK(accusers(subject, AccusationKind::suspect) == 4);
    CHECK(accusers(subject, AccusationKind::dead) == 1);
    // This node's own word always finds a place.
    CHECK(table.accuse(subject, accuse(1, 0), kStart) == MemberTable::Added::added);
    CHECK(accusers(subject, AccusationKind::suspect) == 4);
  }

  TEST_CASE("a newer record ends the accusations of the older one") {
    MemberTable table(test_id(0), {});
    auto& subject = *table.put(bare_record(1), kStart).member;
    table.accuse(subject, accuse(1, 2), kStart);
    table.put(bare_record(1, 2), kStart + 1s);
    CHECK(subject.accusations.empty());
  }

  TEST_CASE("records expire when nobody signed them anew") {
    MemberTable table(test_id(0), {});
    table.put(bare_record(1), kStart);
    table.put(bare_record(2), kStart + 30min);
    CHECK(table.expired(kStart + 59min, 1h).empty());
    CHECK(table.expired(kStart + 61min, 1h) == std::vector<NodeId>{test_id(1)});
    CHECK(table.age_s(*table.find(test_id(1)), kStart + 61min) == 3660);
  }

  TEST_CASE("equal views have equal digests, and one difference shows in one bucket") {
    MemberTable a(test_id(0), {});
    MemberTable b(test_id(1), {});
    for (std::uint64_t i = 2; i < 40; ++i) {
      a.put(bare_record(i), kStart);
      b.put(bare_record(41 - i), kStart + 5s);
    }
    a.put(bare_record(1), kStart);
    b.put(bare_record(0), kStart);
    CHECK(a.digest(bare_record(0)) == b.digest(bare_record(1)));
    a.set_state(*a.find(test_id(7)), MemberState::suspect, kStart);
    CHECK(a.digest(bare_record(0)) == b.digest(bare_record(1)));  // a suspicion is no fact yet
    a.set_state(*a.find(test_id(7)), MemberState::dead, kStart);
    const auto mine = a.digest(bare_record(0));
    const auto theirs = b.digest(bare_record(1));
    for (std::size_t i = 0; i < kBuckets; ++i)
      CHECK((mine.buckets[i] != theirs.buckets[i]) == (i == bucket_of(test_id(7))));
  }
}
