#include "gossip/exchange/absent_peers.h"

#include "tests/gossip/exchange/pair.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

TEST_SUITE_BEGIN("gossip/exchange/absent_peers");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kWent = TimePoint{} + 10h;

NodeId numbered(std::size_t number) {
  NodeId id = node_named(static_cast<std::uint8_t>(number));
  id.bytes[1] = static_cast<std::byte>(number >> 8);
  return id;
}

NeighbourView view_named(std::size_t number) {
  NeighbourView view;
  view.peer = numbered(number);
  return view;
}

Conduct offences(std::size_t count, TimePoint at) {
  Conduct conduct{EdgeOptions{}};
  conduct.offences.assign(count, at);
  return conduct;
}

Conduct dropped(std::uint32_t drops, TimePoint closed_until) {
  Conduct conduct{EdgeOptions{}};
  conduct.drops = drops;
  conduct.closed_until = closed_until;
  return conduct;
}

// What is left of `first` after so many others with this conduct went.
template <class Make>
bool outlasts(const Conduct& first, std::size_t others, const Make& conduct_at) {
  AbsentPeers peers{EdgeOptions{}};
  peers.put(kWent, view_named(0), first);
  for (std::size_t i = 1; i <= others; ++i) {
    const TimePoint now = kWent + i * 1ms;
    peers.put(now, view_named(i), conduct_at(now));
    CHECK(peers.views(now).size() == std::min(i + 1, AbsentPeers::kMost));
  }
  return peers.take(kWent + others * 1ms, numbered(0)).has_value();
}

TEST_CASE("who did more than the others is not forgotten, however many there are") {
  constexpr std::size_t kFlood = 2 * AbsentPeers::kMost;
  const auto one_offence = [](TimePoint now) { return offences(1, now); };
  const auto one_drop = [](TimePoint now) { return dropped(1, now + 1min); };
  const auto only_closed = [](TimePoint now) { return dropped(0, now + 10min); };

  CHECK(outlasts(offences(1, kWent), kFlood, only_closed));
  CHECK(outlasts(offences(2, kWent), kFlood, one_offence));
  CHECK(outlasts(dropped(1, kWent + 1min), kFlood, one_offence));
  CHECK(outlasts(dropped(2, kWent + 2min), kFlood, one_drop));
}

TEST_CASE("of those that did the same the one that is gone for longest is forgotten") {
  const auto one_offence = [](TimePoint now) { return offences(1, now); };

  CHECK(outlasts(offences(1, kWent), AbsentPeers::kMost - 1, one_offence));
  CHECK_FALSE(outlasts(offences(1, kWent), AbsentPeers::kMost, one_offence));
}

TEST_CASE("where something counts no more its place goes first") {
  AbsentPeers peers{EdgeOptions{}};
  for (std::size_t i = 0; i < AbsentPeers::kMost; ++i)
    peers.put(kWent, view_named(i), dropped(2, kWent + 2min));
  const TimePoint later = kWent + 2min + 1h;
  peers.put(later, view_named(1'000), offences(1, later));

  CHECK(peers.views(later).size() == 1);
  CHECK(peers.take(later, numbered(1'000)).has_value());
}

TEST_CASE("what a peer did counts for its time and no longer") {
  AbsentPeers peers{EdgeOptions{}};
  const auto counts_until = [&](const Conduct& conduct, TimePoint until) {
    peers.put(kWent, view_named(1), conduct);
    CHECK(peers.views(until - 1ms).size() == 1);
    CHECK(peers.views(until).empty());
    CHECK_FALSE(peers.take(until, numbered(1)).has_value());
    peers.put(kWent, view_named(1), conduct);
    CHECK(peers.take(until - 1ms, numbered(1)).has_value());
    CHECK_FALSE(peers.take(until - 1ms, numbered(1)).has_value());
  };
  Conduct reset{EdgeOptions{}};
  reset.resets = {kWent};
  Conduct opened{EdgeOptions{}};
  REQUIRE(opened.openings.try_take(kWent));

  counts_until(offences(1, kWent), kWent + 1h);
  counts_until(dropped(1, kWent + 1min), kWent + 1min + 1h);
  counts_until(dropped(0, kWent + 10min), kWent + 10min);
  counts_until(reset, kWent + 1h);
  counts_until(opened, kWent + 1min);
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
