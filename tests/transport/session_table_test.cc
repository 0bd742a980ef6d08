#include "transport/session_table.h"

#include <doctest/doctest.h>

namespace starling::transport {
namespace {

using namespace std::chrono_literals;
using Probe = Candidate::Probe;

constexpr TimePoint kTableNow{std::chrono::seconds(100)};

NodeId id_of(int number) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

TableEntry entry_of(std::uint64_t instance, Direction direction, TimePoint since) {
  TableEntry entry;
  entry.instance = {instance};
  entry.direction = direction;
  entry.since = since;
  return entry;
}

Candidate candidate_of(int peer, std::uint64_t instance, Probe probe = Probe::not_tried) {
  Candidate candidate;
  candidate.peer = id_of(peer);
  candidate.instance = {instance};
  candidate.probe = probe;
  return candidate;
}

TEST_SUITE("transport/session_table") {
  TEST_CASE("the first connection is accepted") {
    const SessionTable table(id_of(5));
    CHECK(table.decide(kTableNow, candidate_of(9, 1)).decision == Decision::accept);
  }

  // It may be a thief's: one that keeps to the handshake refuses us before we learn who it is.
  TEST_CASE("who proves to be this node itself is refused by name, in whatever process it runs") {
    const SessionTable table(id_of(5));
    auto candidate = candidate_of(5, 1);
    for (const auto purpose : {Purpose::fresh, Purpose::renew}) {
      candidate.purpose = purpose;
      const auto decision = table.decide(kTableNow, candidate);
      CHECK(decision.decision == Decision::refuse);
      CHECK(decision.why.code == Errc::duplicate_identity);
    }
  }

  TEST_CASE("of two dials within five seconds the smaller id's stays") {
    SessionTable table(id_of(5));
    table.insert(id_of(9), entry_of(1, Direction::dialled, kTableNow - 1s));
    table.insert(id_of(2), entry_of(1, Direction::dialled, kTableNow - 1s));
    const auto larger = table.decide(kTableNow, candidate_of(9, 1));
    CHECK(larger.decision == Decision::refuse);
    CHECK(larger.why.code == Errc::already_exists);
    CHECK(table.decide(kTableNow, candidate_of(2, 1)).decision == Decision::replace);
    CHECK(table.decide(kTableNow + 5s, candidate_of(2, 1)).decision == Decision::probe);
  }

  TEST_CASE("a dial of ours that waits for its welcome counts as a session") {
    SessionTable table(id_of(5));
    table.begin_dial(id_of(9));
    table.begin_dial(id_of(2));
    CHECK(table.decide(kTableNow, candidate_of(9, 1)).decision == Decision::refuse);
    CHECK(table.decide(kTableNow, candidate_of(2, 1)).decision == Decision::accept);
    table.end_dial(id_of(9));
    CHECK(table.decide(kTableNow, candidate_of(9, 1)).decision == Decision::accept);
  }

  TEST_CASE("a session that says goodbye is in nobody's way") {
    SessionTable table(id_of(5));
    table.insert(id_of(9), entry_of(1, Direction::dialled, kTableNow - 1s));
    table.insert(id_of(2), entry_of(1, Direction::accepted, kTableNow - 60s));
    CHECK(table.decide(kTableNow, candidate_of(9, 1, Probe::ending)).decision == Decision::replace);
    CHECK(table.decide(kTableNow, candidate_of(2, 1, Probe::ending)).decision == Decision::replace);
    CHECK(table.decide(kTableNow, candidate_of(2, 7, Probe::ending)).decision == Decision::replace);
  }

  TEST_CASE("a second connection asks the first for a sign of life") {
    SessionTable table(id_of(5));
    table.insert(id_of(9), entry_of(1, Direction::accepted, kTableNow - 60s));
    CHECK(table.decide(kTableNow, candidate_of(9, 1)).decision == Decision::probe);
    const auto alive = table.decide(kTableNow, candidate_of(9, 1, Probe::answered));
    CHECK(alive.decision == Decision::refuse);
    CHECK(alive.why.code == Errc::already_exists);
    CHECK(table.decide(kTableNow, candidate_of(9, 1, Probe::silent)).decision == Decision::replace);
  }

  TEST_CASE("the same identity in another process is refused while the first lives") {
    SessionTable table(id_of(5));
    table.insert(id_of(9), entry_of(1, Direction::dialled, kTableNow - 1s));
    CHECK(table.decide(kTableNow, candidate_of(9, 2)).decision == Decision::probe);
    const auto alive = table.decide(kTableNow, candidate_of(9, 2, Probe::answered));
    CHECK(alive.decision == Decision::refuse);
    CHECK(alive.why.code == Errc::duplicate_identity);
    CHECK(table.decide(kTableNow, candidate_of(9, 2, Probe::silent)).decision == Decision::replace);
  }

  TEST_CASE("a renewal by the same process takes over, by another one it does not") {
    SessionTable table(id_of(5));
    table.insert(id_of(9), entry_of(1, Direction::accepted, kTableNow - 900s));
    auto renewal = candidate_of(9, 1);
    renewal.purpose = Purpose::renew;
    CHECK(table.decide(kTableNow, renewal).decision == Decision::replace);
    renewal.instance = {2};
    CHECK(table.decide(kTableNow, renewal).decision == Decision::probe);
  }

  TEST_CASE("what has ended, is ending or was renewed a moment ago is not renewed") {
    SessionTable table(id_of(5));
    auto renewal = candidate_of(9, 1);
    renewal.purpose = Purpose::renew;
    CHECK(table.decide(kTableNow, renewal).why.code == Errc::closed);
    table.insert(id_of(9), entry_of(1, Direction::accepted, kTableNow - 900s));
    renewal.probe = Probe::ending;
    CHECK(table.decide(kTableNow, renewal).why.code == Errc::closed);
    renewal.probe = Probe::not_tried;
    renewal.waits_its_turn = true;
    CHECK(table.decide(kTableNow, renewal).why.code == Errc::closed);
    renewal.purpose = Purpose::fresh;
    CHECK(table.decide(kTableNow, renewal).decision == Decision::probe);
  }

  TEST_CASE("only the session that is in the table can be erased from it") {
    SessionTable table(id_of(5));
    auto entry = entry_of(1, Direction::dialled, kTableNow);
    table.insert(id_of(9), entry);
    CHECK(table.size() == 1);
    const auto* other = reinterpret_cast<const Session*>(&entry);
    CHECK_FALSE(table.erase(id_of(9), other));
    CHECK(table.erase(id_of(9), nullptr));
    CHECK(table.find(id_of(9)) == nullptr);
  }
}

}  // namespace
}  // namespace starling::transport
