// Whom to average with: a pure function from the members that a node knows to its neighbours.
#pragma once

#include "node/base/hash.h"
#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace starling::gossip {

struct TopologyOptions {
  // Neighbours wanted, two for each cycle. 0: four, and six above 64 members. Raising it spreads
  // parameters in fewer exchanges per node, and costs one reference vector for each edge.
  std::uint32_t degree = 0;
};

// More than this many neighbours no topology gives.
inline constexpr std::uint32_t kMaxDegree = 16;

// Cycles for a swarm of `members`: degree / 2 rounded up, or 2, or 3 above 64 members.
[[nodiscard]] std::size_t cycles_for(std::size_t members, const TopologyOptions& options);

// k Hamiltonian cycles: for each k the members sorted by BLAKE2b(k | swarm | id); neighbours are
// predecessor and successor on every cycle. Up to 2k + 1 members the graph is complete.
//
// A value owned by Membership, on the io thread. It holds this node's view of who is alive; nodes
// with equal views compute equal graphs without a message. Connected by construction, an expander
// for k >= 2, and a join or leave changes O(k) edges.
//
// Cost:    three BLAKE2b hashes and O(log n) per add or remove, O(k log n) per query.
class Topology {
 public:
  // Whether two members could open a session; lets a walk pass over those that cannot.
  using Possible = std::function<bool(const NodeId&)>;

  Topology(const SwarmId& swarm, TopologyOptions options);

  // Cost:    as adding every member again.
  void set_degree(std::uint32_t degree);
  void add(const NodeId& id);
  void remove(const NodeId& id);
  [[nodiscard]] bool contains(const NodeId& id) const { return places_.contains(id); }
  [[nodiscard]] std::size_t size() const { return places_.size(); }

  // The neighbours of `self`, in ascending order, without duplicates.
  //
  // Rule:    where `possible` says no, the walk goes on along the cycle to the next member for
  //          which it says yes, in the same direction, at most kMaxWalk steps. `self` need not be
  //          a member itself: a joiner asks where it will be.
  [[nodiscard]] std::vector<NodeId> neighbours_of(const NodeId& self,
                                                  const Possible& possible = {}) const;

  // The `count` members before and the `count` after `subject` on cycle 0 for which `eligible`
  // says yes: those who check a suspicion about it.
  [[nodiscard]] std::vector<NodeId> witnesses_of(const NodeId& subject, std::size_t count,
                                                 const Possible& eligible) const;

 private:
  static constexpr std::size_t kMaxWalk = 16;
  using Cycle = std::set<std::pair<Hash, NodeId>>;
  enum class Direction { forward, backward };

  [[nodiscard]] std::pair<Hash, NodeId> place_of(std::size_t cycle, const NodeId& id) const;
  void walk(const Cycle& cycle, std::pair<Hash, NodeId> from, Direction direction,
            const std::function<bool(const NodeId&)>& visit) const;

  SwarmId swarm_;
  TopologyOptions options_;
  std::vector<Cycle> cycles_;
  std::set<NodeId> places_;
};

// The same as a function of the whole view, for the simulator, the page and tests.
[[nodiscard]] std::vector<NodeId> neighbours(std::span<const NodeId> members, const NodeId& self,
                                             const SwarmId& swarm, TopologyOptions options = {});

}  // namespace starling::gossip
