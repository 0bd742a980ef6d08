// Whom to average with: a pure function from the members that a node knows to its neighbours.
#pragma once

#include "gossip/membership/network.h"
#include "node/base/hash.h"
#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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

// What a node that lets strangers in knows of the session with a member.
struct Reach {
  bool reached = false;            // there is one, and the member answers
  std::optional<Network> network;  // of its other end; without one, where the member says it is
};

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

  // The neighbours of `self`, in ascending order, without duplicates.
  //
  // Rule:    where `possible` says no, the walk goes on along the cycle to the next member for
  //          which it says yes, in the same direction, at most kMaxWalk steps. `self` need not be
  //          a member itself: a joiner asks where it will be.
  [[nodiscard]] std::vector<NodeId> neighbours_of(const NodeId& self,
                                                  const Possible& possible = {}) const;

  // The neighbours of `self` where anybody may be a member, and one owner a thousand of them.
  //
  // Rule:    the two of cycle 0 as above, which keep the graph connected. Then for each direction
  //          of each cycle the next member that `reach` says is reached and whose network has
  //          less than a quarter of these slots (but one); where there is none, whom the rule
  //          above gives. The first on this way that was never reached comes along: it has to
  //          show that it is where it says before it takes anybody's place.
  // Cost:    O(k kMaxSearch log n) where nearly all members are of few networks.
  [[nodiscard]] std::vector<NodeId> neighbours_among_strangers(
      const NodeId& self, const Possible& possible,
      const std::function<Reach(const NodeId&)>& reach) const;

  // The `count` members before and the `count` after `subject` on cycle 0 for which `eligible`
  // says yes: those who check a suspicion about it.
  [[nodiscard]] std::vector<NodeId> witnesses_of(const NodeId& subject, std::size_t count,
                                                 const Possible& eligible) const;

 private:
  static constexpr std::size_t kMaxWalk = 16;
  static constexpr std::size_t kMaxSearch = 2048;
  using Cycle = std::set<std::pair<Hash, NodeId>>;
  enum class Direction { forward, backward };

  [[nodiscard]] std::pair<Hash, NodeId> place_of(std::size_t cycle, const NodeId& id) const;
  [[nodiscard]] std::size_t cycles_around(const NodeId& self) const;
  // The next member for which `possible` says yes.
  [[nodiscard]] std::optional<NodeId> next(std::size_t cycle, const NodeId& self,
                                           Direction direction, const Possible& possible) const;
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
