// The set of participants, the sessions among them, and the trees that follow from both.
//
// Everything here is a pure function of signed statements, so every participant computes the same
// graph, the same roots and the same trees.
#pragma once

#include "gossip/consensus/messages.h"
#include "node/base/ids.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace starling::gossip::consensus {

struct Member {
  NodeId id;
  std::uint32_t weight = 1;
  friend bool operator==(const Member&, const Member&) = default;
};

// What the participants of one epoch agreed on.
struct Agreed {
  std::vector<Member> members;                       // sorted by id
  std::vector<std::vector<std::uint32_t>> sessions;  // indices into members, ascending
  Rule rule = Rule::mean;
  std::uint64_t samples = 0;  // largest P that a member stated and the others make likely
  Hash set;                   // over members, weights, rule, samples
  Hash graph;                 // over sessions

  [[nodiscard]] std::optional<std::uint32_t> find_index(const NodeId& id) const;
};

// The agreement that follows from these statements: a session counts where both ends state it.
//
// Rule:    `statements` has at most one Finish an id, in any order; the rule is the median where
//          any of them says so.
[[nodiscard]] Agreed make_agreed(const RoundId& round, std::span<const Finish* const> statements);

// Ids of the largest connected part; of two equal ones the part with the lowest id.
[[nodiscard]] std::vector<NodeId> largest_part(const Agreed& agreed);

// Whom `self` dials so that the set becomes one cycle: its successor in an order that depends on
// the round. Nothing for sets of one or without `self`.
[[nodiscard]] std::optional<NodeId> cycle_successor(const Agreed& agreed, const RoundId& round,
                                                    const NodeId& self);

// The member that divides chunk `chunk`: rendezvous hash over the set.
//
// Cost:    O(members), no cryptographic hash: ids are public keys and mixed once.
[[nodiscard]] std::uint32_t root_of(const Agreed& agreed, std::uint32_t chunk);

// One node's place in the breadth-first tree of a chunk.
struct TreePlace {
  struct Child {
    std::uint32_t member = 0;
    std::uint64_t weight = 0;   // of its whole subtree
    std::uint32_t members = 0;  // in its whole subtree
  };
  std::optional<std::uint32_t> parent;  // nothing at the root
  std::vector<Child> children;          // ascending
};

// Rule:    a member's parent is its neighbour with the lowest id among those one step nearer to
//          the root.
// Cost:    O(members + sessions).
[[nodiscard]] TreePlace place_in_tree(const Agreed& agreed, std::uint32_t root,
                                      std::uint32_t member);

// The child of `member` in the tree of `root` in whose subtree `other` is, if it is below `member`.
//
// Cost:    O(members + sessions).
[[nodiscard]] std::optional<std::uint32_t> child_towards(const Agreed& agreed, std::uint32_t root,
                                                         std::uint32_t member, std::uint32_t other);

}  // namespace starling::gossip::consensus
