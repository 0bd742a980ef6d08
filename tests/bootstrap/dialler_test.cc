#include "bootstrap/dialler.h"

#include "node/base/hash.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

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

// Every dial ends five seconds later, without an answer.
void let_all_time_out(Dialler& dialler, Duration time) {
  std::map<transport::Endpoint, TimePoint> out;
  for (TimePoint now = kStart; now < kStart + time; now += 500ms) {
    for (auto at = out.begin(); at != out.end();) {
      if (now < at->second) {
        ++at;
        continue;
      }
      dialler.on_failed(now, at->first, {Errc::timed_out, Doing::connecting, "no answer"});
      at = out.erase(at);
    }
    for (const auto& target : dialler.on_tick(now, nobody).dial)
      out.emplace(target.endpoint, now + 5s);
  }
}

// Both addresses of a name, kHere and `there`, are dialled at kStart.
Dialler dialling_both(const transport::Endpoint& name, const transport::Endpoint& there) {
  Dialler dialler({}, Rng(1));
  REQUIRE(dialler.add(kStart, seed_of(name)).has_value());
  CHECK(dialler.on_tick(kStart, nobody).resolve.size() == 1);
  dialler.on_resolved(kStart, name, {kHere, there});
  CHECK(dialler.on_tick(kStart, nobody).dial.size() == 2);
  return dialler;
}

}  // namespace

TEST_SUITE("bootstrap/dialler") {
  TEST_CASE("who takes sessions only to close them is dialled ever less often, until one lives") {
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(kHere)));
    std::size_t dials = 0;
    TimePoint now = kStart;
    for (; now < kStart + 2min; now += 10ms) {
      if (dialler.on_tick(now, nobody).dial.empty()) continue;
      ++dials;
      dialler.on_up(now, kHere, kPeer);
      dialler.on_down(now, kPeer, 5ms, Dialler::Greeted::no);
      CHECK(dialler.next_deadline() > now);
    }
    CHECK(dials >= 5);
    CHECK(dials <= 10);
    CHECK_FALSE(dialler.all_turned_away(1));
    now = dialler.next_deadline();
    REQUIRE(dialler.on_tick(now, nobody).dial.size() == 1);
    dialler.on_up(now, kHere, kPeer);
    dialler.on_down(now, kPeer, 1min, Dialler::Greeted::no);
    CHECK(dialler.on_tick(now, nobody).dial.size() == 1);
  }

  TEST_CASE("a seed that said its Hello is dialled a second after its last session began") {
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(kHere)));
    TimePoint now = kStart;
    REQUIRE(dialler.on_tick(now, nobody).dial.size() == 1);
    for (int breaks = 0; breaks < 30; ++breaks) {
      for (const Duration lived : {Duration(5ms), Duration(3s)}) {
        const TimePoint began = now;
        dialler.on_up(now, kHere, kPeer);
        now += lived;
        dialler.on_down(now, kPeer, lived, Dialler::Greeted::yes);
        while (dialler.on_tick(now, nobody).dial.empty()) now += 10ms;
        CHECK(now - began >= 1s);
        CHECK(now - began <= std::max<Duration>(lived, 1510ms));
      }
    }
  }

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

  TEST_CASE("addresses that a name had once, and whose nodes are gone, keep no new one out") {
    const transport::Endpoint name{"headless", 7700};
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(name, SeedKind::all_of_name)).has_value());
    TimePoint now = kStart;
    for (int i = 0; i < 1'000; ++i) {
      CAPTURE(i);
      const transport::Endpoint pod{
          "10.1." + std::to_string(i / 250) + "." + std::to_string(i % 250), 7700};
      dialler.on_resolved(now, name, {pod});
      const auto dials = dialler.on_tick(now, nobody).dial;
      REQUIRE(std::ranges::find(dials, pod, &transport::DialTarget::endpoint) != dials.end());
      for (const auto& target : dials)
        if (target.endpoint != pod) dialler.on_failed(now, target.endpoint, refused());
      dialler.on_up(now, pod, kPeer);
      now += 1min;
    }
    CHECK(dialler.report().size() <= 2);
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
    CHECK(dialler.has_addresses());
    const auto effects = dialler.on_tick(kStart, nobody);
    REQUIRE(effects.dial.size() == 1);
    CHECK(!effects.dial[0].pin.has_value());
    CHECK(!dialler.all_turned_away(0));
  }

  TEST_CASE("a member that claims a seed's address keeps nobody from dialling the seed") {
    const transport::Endpoint name{"seed.example", 7700};
    const transport::Endpoint of_name{"10.0.0.2", 7700};
    AddressBook book;
    book.on_told(kPeer, of_name);
    Dialler dialler({}, Rng(1));
    REQUIRE(dialler.add(kStart, seed_of(kHere)).has_value());
    REQUIRE(dialler.add(kStart, seed_of(name)).has_value());
    dialler.add(kStart, book);
    dialler.learn(kHere, kPeer);
    dialler.learn(of_name, kPeer);
    dialler.on_resolved(kStart, name, {of_name});
    std::set<transport::Endpoint> dialled;
    for (const auto& target : dialler.on_tick(kStart, everybody).dial) {
      dialled.insert(target.endpoint);
      dialler.on_failed(kStart, target.endpoint, refused());
    }
    CHECK(dialled == std::set{kHere, of_name});
    for (const auto& endpoint : dialled) dialler.learn(endpoint, kPeer);
    CHECK(dialler.on_tick(kStart + 1s, everybody).dial.size() == 2);
    // Who answers is believed.
    for (const auto& endpoint : dialled) dialler.on_up(kStart + 2s, endpoint, kPeer);
    CHECK(dialler.on_tick(kStart + 1h, everybody).dial.empty());
  }

  TEST_CASE("a peer of the address book that a member's record names is not dialled") {
    AddressBook book;
    book.on_worked(kPeer, kHere);
    Dialler dialler({}, Rng(1));
    dialler.add(kStart, book);
    const NodeId other = *NodeId::from(hash_of(as_bytes("other")).view());
    dialler.learn(kHere, other);
    CHECK(dialler.on_tick(kStart, everybody).dial.size() == 1);
    dialler.on_failed(kStart, kHere, refused());
    dialler.learn(kHere, kPeer);
    CHECK(dialler.on_tick(kStart + 1h, everybody).dial.empty());
    CHECK(dialler.on_tick(kStart + 2h, nobody).dial.size() == 1);
    // Until a person names the address.
    dialler.on_failed(kStart + 2h, kHere, refused());
    dialler.learn(kHere, kPeer);
    REQUIRE(dialler.add(kStart + 3h, seed_of(kHere)).has_value());
    CHECK(dialler.on_tick(kStart + 3h, everybody).dial.size() == 1);
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

  TEST_CASE("a seed does not wait for the addresses of an old book, wherever it stands") {
    AddressBook book;
    for (int i = 0; i < 40; ++i)
      book.on_worked(*NodeId::from(hash_of(as_bytes(std::to_string(i))).view()),
                     {"10." + std::to_string(i) + ".0.1", 7700});
    const transport::Endpoint seed{"192.168.0.1", 7700};
    Dialler dialler({}, Rng(1));
    dialler.add(kStart, book);
    REQUIRE(dialler.add(kStart, seed_of(seed)).has_value());
    const auto dials = dialler.on_tick(kStart, nobody).dial;
    CHECK(std::ranges::find(dials, seed, &transport::DialTarget::endpoint) != dials.end());
  }

  TEST_CASE("however many addresses say nothing, each has its turn") {
    Dialler dialler({}, Rng(7));
    for (int n = 0; n < 3; ++n) {
      const transport::Endpoint name{"name-" + std::to_string(n), 7700};
      REQUIRE(dialler.add(kStart, seed_of(name, SeedKind::all_of_name)).has_value());
      std::vector<transport::Endpoint> found;
      for (int i = 0; i < 32; ++i)
        found.push_back({"10.0." + std::to_string(n) + "." + std::to_string(i), 7700});
      dialler.on_resolved(kStart, name, found);
    }
    let_all_time_out(dialler, 1h);
    std::uint32_t least = 1'000'000;
    std::uint32_t most = 0;
    for (const auto& report : dialler.report()) {
      least = std::min(least, report.attempts);
      most = std::max(most, report.attempts);
    }
    CHECK(least > 50);
    CHECK(most <= least + 10);
  }

  TEST_CASE("seeds that say nothing leave the addresses of the book their turn, and the reverse") {
    AddressBook book;
    std::set<transport::Endpoint> worked;
    for (int i = 0; i < 100; ++i) {
      const transport::Endpoint endpoint{"10.9.0." + std::to_string(i), 7700};
      book.on_worked(*NodeId::from(hash_of(as_bytes(std::to_string(i))).view()), endpoint);
    }
    for (const auto& peer : book.peers()) worked.insert(peer.endpoint);
    Dialler dialler({}, Rng(7));
    for (int i = 0; i < 100; ++i)
      REQUIRE(dialler.add(kStart, seed_of({"10.1.0." + std::to_string(i), 7700})).has_value());
    dialler.add(kStart, book);

    let_all_time_out(dialler, 10min);

    std::map<bool, std::uint32_t> least{{false, 1'000'000}, {true, 1'000'000}};
    for (const auto& report : dialler.report()) {
      auto& of_kind = least.at(worked.contains(report.endpoint));
      of_kind = std::min(of_kind, report.attempts);
    }
    CHECK(least.at(true) >= 2);   // of the book
    CHECK(least.at(false) >= 6);  // of the seeds
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

  TEST_CASE("where a node answers whose settings are refused, the name's others are dialled") {
    const transport::Endpoint there{"10.0.0.2", 7700};
    Dialler dialler = dialling_both({"trainer.example", 7700}, there);
    CHECK(!dialler.all_answered_by(everybody));
    dialler.on_up(kStart, kHere, kPeer);
    CHECK(!dialler.all_answered_by(everybody));  // `there` has had no outcome yet
    dialler.on_failed(kStart, there, refused());
    CHECK(dialler.all_answered_by(everybody));
    CHECK(!dialler.all_answered_by(nobody));
    CHECK(dialler.on_tick(kStart + 20s, everybody).dial.empty());

    std::size_t dials = 0;
    for (TimePoint now = kStart + 21s; now < kStart + 5min; now += 1s) {
      const auto effects = dialler.on_tick(now, everybody, everybody);
      for (const auto& target : effects.dial) {
        CHECK(target.endpoint == there);  // the one that answered rests
        dialler.on_failed(now, there, refused());
        ++dials;
      }
      CHECK(dialler.next_deadline() > now);
    }
    CHECK(dials >= 5);
    CHECK(dials < 20);
  }

  TEST_CASE("a lost outcome at another address of a node that was reached is not waited for") {
    Dialler dialler = dialling_both({"node-a.example", 7700}, {"10.0.0.2", 7700});
    dialler.on_up(kStart, kHere, kPeer);
    for (TimePoint now = kStart + 1s; now < kStart + 1min; now += 1s) {
      CHECK(dialler.on_tick(now, everybody).dial.empty());
      CHECK(dialler.next_deadline() > now);
    }
    CHECK(dialler.all_answered_by(everybody));
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
