// Two kinds of node for a crowd: one that runs the real Membership, and a relay that costs a
// hundredth of its memory and passes on what the other would pass on.
#pragma once

#include "gossip/membership/failure_detector.h"
#include "gossip/membership/membership.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/random.h"
#include "node/base/signing.h"

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

namespace starling::sim {

// A member of the crowd, by the order in which it came.
using Index = std::uint32_t;

// Every statement of the crowd, kept once: relays remember only which of them they know.
//
// Owned by the crowd, outlives its nodes.
class Library {
 public:
  struct Kept {
    gossip::MemberRecord record;
    TimePoint signed_at;
  };

  Index enter(const NodeId& id);
  [[nodiscard]] std::size_t size() const { return ids_.size(); }
  [[nodiscard]] const NodeId& id(Index member) const { return ids_[member]; }
  [[nodiscard]] Index index_of(const NodeId& id) const { return places_.at(id); }
  // Whom a name is about.
  [[nodiscard]] Index subject_of(const gossip::FactName& name) const {
    return by_prefix_.at(name.subject);
  }
  // What is known already stays as it is.
  void keep(const gossip::MemberRecord& record, TimePoint signed_at);
  void keep(const gossip::ProgressReport& report);
  [[nodiscard]] const Kept* record(Index member, Incarnation incarnation) const;
  [[nodiscard]] const std::vector<Kept>& records(Index member) const { return records_[member]; }
  // The newest one; null before the first.
  [[nodiscard]] const gossip::ProgressReport* report(Index member) const;
  // Members of one bucket, ascending by id.
  [[nodiscard]] const std::vector<Index>& bucket(std::size_t bucket) const {
    return buckets_[bucket];
  }

  // What a node answers that knows of each member the incarnation `known` gives (0: nothing).
  using Known = std::function<Incarnation(Index)>;
  [[nodiscard]] gossip::Facts answer(TimePoint now, const gossip::BucketRequest& request,
                                     const Known& known) const;

 private:
  std::vector<NodeId> ids_;
  std::unordered_map<NodeId, Index> places_;
  std::unordered_map<std::uint64_t, Index> by_prefix_;
  std::vector<std::vector<Kept>> records_;
  std::vector<gossip::ProgressReport> reports_;
  std::array<std::vector<Index>, gossip::kBuckets> buckets_;
};

struct NodeEffects {
  std::vector<gossip::MembershipOutgoing> send;
  std::vector<NodeId> wanted;  // sessions
};

// How a node of the crowd trains: so many samples a second from a moment on. 0: it is idle.
struct Training {
  double samples_per_second = 0;
  TimePoint begins{};

  [[nodiscard]] std::uint64_t samples(TimePoint now) const {
    return now < begins ? 0
                        : static_cast<std::uint64_t>(seconds(now - begins) * samples_per_second);
  }
};

class CrowdNode {
 public:
  virtual ~CrowdNode() = default;
  [[nodiscard]] virtual NodeEffects on_session_up(TimePoint now, const NodeId& peer) = 0;
  [[nodiscard]] virtual NodeEffects on_message(TimePoint now, const NodeId& from,
                                               const gossip::MembershipMessage& message) = 0;
  [[nodiscard]] virtual NodeEffects on_tick(TimePoint now) = 0;
  [[nodiscard]] virtual TimePoint next_deadline() const = 0;
};

// The real thing.
class Whole final : public CrowdNode {
 public:
  Whole(TimePoint now, gossip::MembershipParts parts, Training training, Rng rng)
      : training_(training), membership_(now, std::move(parts), rng) {}

  [[nodiscard]] gossip::Membership& membership() { return membership_; }

  NodeEffects on_session_up(TimePoint now, const NodeId& peer) override;
  NodeEffects on_message(TimePoint now, const NodeId& from,
                         const gossip::MembershipMessage& message) override;
  NodeEffects on_tick(TimePoint now) override;
  [[nodiscard]] TimePoint next_deadline() const override { return membership_.next_deadline(); }

 private:
  Training training_;
  gossip::Membership membership_;
};

// A member of a swarm in which nobody fails: heartbeats, digests, news and reports go on as
// Membership does it, with the same spreader and the same intervals. It judges nobody, dials
// nobody and verifies nothing, and of each member it remembers two numbers.
class Relay final : public CrowdNode {
 public:
  // With the newest record that the library holds of each member.
  Relay(TimePoint now, Library& library, const gossip::MembershipParts& parts, Training training,
        Rng rng);

  NodeEffects on_session_up(TimePoint now, const NodeId& peer) override;
  NodeEffects on_message(TimePoint now, const NodeId& from,
                         const gossip::MembershipMessage& message) override;
  NodeEffects on_tick(TimePoint now) override;
  [[nodiscard]] TimePoint next_deadline() const override;

 private:
  struct Session {
    NodeId peer;
    gossip::HeartbeatWatch watch;
  };

  void take(TimePoint now, const NodeId& from, const gossip::Facts& facts, NodeEffects& effects);
  void take(const NodeId& from, const gossip::Digest& digest, NodeEffects& effects);
  void take_names(TimePoint now, const NodeId& from, const gossip::Facts& facts,
                  NodeEffects& effects);
  [[nodiscard]] bool misses(const gossip::FactName& name) const;
  void keep_house(TimePoint now, NodeEffects& effects);
  void flush(TimePoint now, gossip::FactSpreader::Urgency urgency, NodeEffects& effects);
  void learn(Index member, Incarnation incarnation);
  [[nodiscard]] const gossip::Digest& digest();

  Library& library_;
  gossip::MembershipOptions options_;
  SwarmId swarm_;
  const Signer& signer_;
  Training training_;
  Rng rng_;
  gossip::MemberRecord self_;
  TimePoint self_signed_;
  gossip::Progress progress_;  // our own counter only
  gossip::FactSpreader spreader_;
  std::vector<Session> sessions_;
  std::vector<std::uint32_t> incarnations_;  // by member; 0: unknown
  std::vector<std::uint32_t> samples_;       // by member
  gossip::Digest digest_;
  std::bitset<gossip::kBuckets> stale_;  // buckets of the digest
  TimePoint next_house_;
  TimePoint next_digest_;
};

}  // namespace starling::sim
