#include "bootstrap/dialler.h"

#include "node/base/hash.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;
using namespace std::chrono_literals;

namespace {

const NodeId kPeer = *NodeId::from(hash_of(as_bytes("peer")).view());
const transport::Endpoint kHere{"10.0.0.1", 7700};

Seed seed_of(const transport::Endpoint& endpoint, SeedKind kind = SeedKind::address) {
  Seed seed;
  seed.kind = kind;
  seed.endpoint = endpoint;
  return seed;
}

Error refused() { return {Errc::connect_refused, Doing::connecting, "refused"}; }

bool nobody(const NodeId&) { return false; }
bool everybody(const NodeId&) { return true; }

// Dials in `time` of an address that always fails.
std::size_t tries(Dialler& dialler, TimePoint from, Duration time) {
  std::size_t count = 0;
  for (TimePoint now = from; now < from + time; now += 50ms)
    for (const auto& target : dialler.on_tick(now, nobody).dial) {
      ++count;
      dialler.on_failed(now, target.endpoint, refused());
    }
  return count;
}

}  // namespace

TEST_SUITE("bootstrap/dialler") {
  TEST_CASE("an address that fails is tried for ever, ever more slowly") {
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(kHere)).has_value());
    const auto first_minute = tries(dialler, kStart, 1min);
    CHECK(first_minute >= 5);
    CHECK(first_minute <= 12);
    const auto tenth_hour = tries(dialler, kStart + 10h, 1h);
    CHECK(tenth_hour >= 3600 / 45 - 1);
    CHECK(tenth_hour <= 3600 / 30 + 1);
    CHECK(dialler.report().at(0).last_end == DialEnd::refused);
  }

  TEST_CASE("an address rests while its node is a member, and is tried at once when it is gone") {
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(kHere)).has_value());
    CHECK(dialler.on_tick(kStart, nobody).dial.size() == 1);
    CHECK(dialler.on_tick(kStart, nobody).dial.empty());  // one dial at a time
    dialler.on_up(kStart + 1s, kHere, kPeer);
    for (Duration at{0}; at < 1h; at += 10s)
      CHECK(dialler.on_tick(kStart + 2s + at, everybody).dial.empty());
    CHECK(dialler.on_tick(kStart + 2h, nobody).dial.size() == 1);
  }

  TEST_CASE("a name is resolved anew, its new addresses are dialled, its old ones forgotten") {
    const transport::Endpoint name{"headless", 7700};
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(name, SeedKind::all_of_name)).has_value());
    CHECK(dialler.on_tick(kStart, nobody).resolve == std::vector<transport::Endpoint>{name});
    CHECK(dialler.on_tick(kStart, nobody).resolve.empty());
    dialler.on_resolved(kStart, name, {{"10.0.0.1", 7700}, {"10.0.0.2", 7700}});
    CHECK(dialler.on_tick(kStart, nobody).dial.size() == 2);
    CHECK(dialler.on_tick(kStart + 16s, nobody).resolve.size() == 1);
    dialler.on_resolved(kStart + 16s, name, {{"10.0.0.2", 7700}, {"10.0.0.3", 7700}});
    CHECK(dialler.report().size() == 2);
    dialler.on_resolve_failed(kStart + 20s, name, {Errc::resolve_failed, Doing::resolving, "gone"});
    CHECK(dialler.report().back().detail == "gone");
    CHECK(dialler.next_deadline() < kNever);
  }

  TEST_CASE("silence at every address is told apart from nobody being there") {
    Dialler dialler({}, Rng(1));
    const transport::Endpoint there{"10.0.0.2", 7700};
    REQUIRE(dialler.add(kStart, seed_of(kHere)).has_value());
    REQUIRE(dialler.add(kStart, seed_of(there)).has_value());
    const Error silent{Errc::wrong_swarm, Doing::handshaking, "closed without a reply"};
    for (int i = 0; i < 3; ++i) dialler.on_failed(kStart, kHere, silent);
    CHECK(!dialler.all_turned_away(3));
    for (int i = 0; i < 3; ++i) dialler.on_failed(kStart, there, silent);
    CHECK(dialler.all_turned_away(3));
    dialler.on_up(kStart, there, kPeer);
    CHECK(!dialler.all_turned_away(3));
  }

  TEST_CASE("a refusal by name turns us away like silence does, and its reason is kept") {
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(kHere)).has_value());
    const Error refusal{Errc::refused, Doing::reading_record, "not on the list"};
    for (int i = 0; i < 2; ++i) dialler.on_failed(kStart, kHere, refusal);
    CHECK(!dialler.all_turned_away(3));
    dialler.on_failed(kStart, kHere, refusal);
    CHECK(dialler.all_turned_away(3));
    CHECK(dialler.report().at(0).last_end == DialEnd::refused_by_name);
    CHECK(dialler.report().at(0).detail == "not on the list");
  }

  TEST_CASE("the address book is tried without being asked for, and counts in no verdict") {
    AddressBook book;
    book.on_worked(kPeer, kHere);
    Dialler dialler({}, Rng(1));
    dialler.add(kStart, book);
    CHECK(!dialler.has_seeds());
    CHECK(dialler.has_addresses());
    const auto effects = dialler.on_tick(kStart, nobody);
    REQUIRE(effects.dial.size() == 1);
    CHECK(!effects.dial[0].pin.has_value());
    CHECK(!dialler.all_turned_away(0));
  }

  TEST_CASE("our own address is left alone for minutes, a lost outcome is not waited for") {
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(kHere)).has_value());
    (void)dialler.on_tick(kStart, nobody);
    CHECK(dialler.on_tick(kStart + 10s, nobody).dial.empty());
    (void)dialler.on_tick(kStart + 21s, nobody);
    CHECK(dialler.on_tick(kStart + 23s, nobody).dial.size() == 1);
    dialler.on_failed(kStart + 23s, kHere, {Errc::already_exists, Doing::handshaking, "ourselves"});
    CHECK(dialler.on_tick(kStart + 4min, nobody).dial.empty());
    CHECK(dialler.on_tick(kStart + 7min, nobody).dial.size() == 1);
  }

  TEST_CASE("many seeds are dialled a few at a time, and too many are refused") {
    Dialler dialler({}, Rng(1));
    for (std::size_t i = 0; i < kMaxSeeds; ++i)
      REQUIRE(dialler.add(kStart, seed_of({"10.0.0.1", static_cast<std::uint16_t>(i + 1)}))
                  .has_value());
    CHECK(!dialler.add(kStart, seed_of({"one-more", 1})).has_value());
    CHECK(dialler.on_tick(kStart, nobody).dial.size() == DiallerOptions{}.max_outstanding);
  }

  TEST_CASE("a host name is resolved again and again, and one address that works is enough") {
    const transport::Endpoint name{"node-a.example", 7700};
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(name)).has_value());
    CHECK(dialler.on_tick(kStart, nobody).resolve == std::vector<transport::Endpoint>{name});
    const transport::Endpoint v6{"2001:db8::1", 7700};
    dialler.on_resolved(kStart, name, {v6, kHere});
    CHECK(dialler.on_tick(kStart, nobody).dial.size() == 2);
    dialler.on_failed(kStart, v6, refused());
    dialler.on_up(kStart, kHere, kPeer);
    for (Duration at{0}; at < 1h; at += 10s)
      CHECK(dialler.on_tick(kStart + 2s + at, everybody).dial.empty());
    CHECK(dialler.on_tick(kStart + 2h, nobody).dial.size() == 2);
  }

  TEST_CASE("after every tick the next deadline lies ahead, whatever is out or full") {
    Dialler dialler({}, Rng(5));
    Rng rng(6);
    for (std::size_t i = 0; i < 30; ++i)
      REQUIRE(dialler.add(kStart, seed_of({"10.0.1." + std::to_string(i), 1})).has_value());
    REQUIRE(dialler.add(kStart, seed_of({"name", 1}, SeedKind::all_of_name)).has_value());
    TimePoint now = kStart;
    for (int round = 0; round < 3000; ++round) {
      for (const auto& target : dialler.on_tick(now, everybody).dial) {
        if (rng.chance(0.3)) dialler.on_failed(now, target.endpoint, refused());
        if (rng.chance(0.02)) dialler.on_up(now, target.endpoint, kPeer);
      }
      (void)dialler.on_tick(now, everybody);
      const auto next = dialler.next_deadline();
      CHECK(next > now);
      if (next == kNever) break;
      now = next;
    }
  }
}
