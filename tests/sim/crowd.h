// Crowd: swarms of up to ten thousand members on virtual time, to see what membership costs one of
// them and how news travels. Nobody fails here; world.h is for that.
#pragma once

#include "tests/gossip/consensus/fake_signing.h"
#include "tests/sim/crowd_node.h"
#include "tests/sim/schedule.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::sim {

struct CrowdOptions {
  std::uint64_t seed = 1;
  std::size_t nodes = 1'000;
  // So many run the real Membership, which takes about 1 KiB for each member that it knows; the
  // others are relays.
  std::size_t whole = 1'000;
  // Of every member; 0: nobody trains.
  double samples_per_second = 320;
  // What is counted begins after `settle` and lasts `measure`.
  Duration settle = std::chrono::seconds(10);
  Duration measure = std::chrono::seconds(40);
  // Newcomers, one after the other, each through one member.
  std::size_t joins = 20;
  // Every so many-th member announces whatever it hears of, at once and before it has it, and
  // delivers nothing but its own word. 0: nobody; 1 would be everybody, which makes no sense.
  std::size_t mute_every = 0;
  // One way; each pair of members has its own delay in between.
  Duration nearest = std::chrono::milliseconds(1);
  Duration farthest = std::chrono::milliseconds(50);
};

// What one kind of message costs a node: means over the counted nodes and the counted time.
struct Rate {
  double messages = 0;  // a second, sent
  double bytes = 0;     // a second, records sealed, without TCP and IP
};

struct CrowdFigures {
  std::size_t nodes = 0;
  std::size_t whole = 0;
  double sessions = 0;  // of a whole node
  std::map<std::string_view, Rate> kinds;
  Rate whole_rate;
  double relay_messages = 0;     // a second and relay: must be near those of whole nodes
  double reports_per_edge = 0;   // progress reports sent a second, one way
  double report_redundancy = 0;  // copies of a report that came to a node beyond the first
  // Newcomers.
  double known_p50 = 0;  // seconds from the first dial until the last member knows
  double known_p95 = 0;
  double news_redundancy = 0;  // copies of a newcomer's record beyond the first
  std::uint32_t last_hop = 0;
  std::size_t missed = 0;   // members that a newcomer's record did not reach
  std::size_t accused = 0;  // must be 0: nobody fails
  std::uint64_t events = 0;
  double virtual_seconds = 0;
};

class Crowd {
 public:
  explicit Crowd(CrowdOptions options);

  [[nodiscard]] CrowdFigures run();

 private:
  struct Member {
    std::unique_ptr<gossip::consensus::testing::FakeSigner> signer;
    std::unique_ptr<CrowdNode> node;
    Whole* whole = nullptr;  // the node, if it is one
    std::set<Index> peers;
    std::set<gossip::FactName> announced;  // by a mute one
    TimePoint armed = kNever;
  };
  // How one statement travels.
  struct Track {
    Index subject = 0;
    TimePoint born{};
    TimePoint last{};                 // when somebody heard it for the first time
    std::vector<std::uint32_t> hops;  // by member, 0: has not heard
    std::size_t heard = 0;
    std::uint64_t copies = 0;
  };

  void found();
  void load_view(Index member, TimePoint since);
  void connect(Index a, Index b);
  void dial(Index from, Index to);
  void join(Track& track);
  void measure(CrowdFigures& figures);
  void watch_joins(CrowdFigures& figures);
  void run_for(Duration time);

  Index enter();
  [[nodiscard]] gossip::MembershipParts parts_of(Index member) const;
  [[nodiscard]] Training training();
  [[nodiscard]] Duration delay(Index a, Index b) const;
  [[nodiscard]] Duration random(Duration below);
  void carry_out(Index member, NodeEffects effects);
  void send(Index from, gossip::MembershipOutgoing outgoing);
  void transmit(Index from, Index to, gossip::MembershipMessage message);
  [[nodiscard]] bool mute(Index member) const;
  void withhold(Index from, gossip::Facts& facts) const;
  void announce(Index from, const gossip::Facts& heard);
  void deliver(Index from, Index to, const gossip::MembershipMessage& message);
  void arm(Index member);
  void tick(Index member, TimePoint armed);
  void count_sent(Index from, const gossip::MembershipMessage& message);
  void count_received(Index from, Index to, const gossip::MembershipMessage& message);

  CrowdOptions options_;
  Rng rng_;
  Schedule schedule_;
  gossip::consensus::testing::FakeVerifier verifier_;
  gossip::MembershipOptions membership_;
  Library library_;
  std::vector<Member> members_;
  Track* track_ = nullptr;
  bool counting_ = false;
  std::map<std::string_view, Rate> sent_;
  std::uint64_t relay_messages_ = 0;
  std::uint64_t reports_sent_ = 0;
  std::uint64_t reports_received_ = 0;
  std::uint64_t reports_made_ = 0;
};

}  // namespace starling::sim
