#include "gossip/consensus/session_graph.h"

#include "node/base/check.h"
#include "node/base/hash.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::gossip::consensus {
namespace {

constexpr std::uint32_t kFar = std::numeric_limits<std::uint32_t>::max();

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

Hasher& start_hash(Hasher& hasher, std::string_view domain, const RoundId& round) {
  return hasher.add(domain)
      .add(static_cast<std::uint64_t>(round.run.kind))
      .add(round.run.number)
      .add(round.epoch.value);
}

// Distance of every member from `root`, kFar where there is no way.
std::vector<std::uint32_t> distances(const Agreed& agreed, std::uint32_t root,
                                     std::vector<std::uint32_t>& order) {
  std::vector<std::uint32_t> steps(agreed.members.size(), kFar);
  order.clear();
  order.push_back(root);
  steps[root] = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::uint32_t member = order[at];
    for (const std::uint32_t next : agreed.sessions[member]) {
      if (steps[next] != kFar) continue;
      steps[next] = steps[member] + 1;
      order.push_back(next);
    }
  }
  return steps;
}

// The parent of every member in the tree of `root`, kFar for the root itself, and an order in which
// parents come before their children.
struct Tree {
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> parent;
};

Tree make_tree(const Agreed& agreed, std::uint32_t root) {
  Tree tree;
  const auto steps = distances(agreed, root, tree.order);
  STARLING_CHECK_OP(tree.order.size(), ==, agreed.members.size());
  tree.parent.assign(tree.order.size(), kFar);
  for (const auto node : tree.order) {
    if (node == root) continue;
    // Neighbours are in ascending order of ids, so the first one that is nearer is the lowest.
    for (const auto near : agreed.sessions[node]) {
      if (steps[near] + 1 != steps[node]) continue;
      tree.parent[node] = near;
      break;
    }
  }
  return tree;
}

// P of the run, of what its members state: the largest, but nothing beyond sixteen times the lower
// one in the middle. All sign it, so none may invent it.
std::uint64_t agreed_samples(std::span<const Finish* const> statements) {
  std::vector<std::uint64_t> told;
  for (const Finish* finish : statements) told.push_back(finish->samples);
  if (told.empty()) return 0;
  std::ranges::sort(told);
  const std::uint64_t middle = told.at((told.size() - 1) / 2);
  const std::uint64_t limit = middle > (~std::uint64_t{0} >> 4U) ? middle : 16 * middle;
  return *std::prev(std::ranges::upper_bound(told, limit));
}

}  // namespace

std::optional<std::uint32_t> Agreed::find_index(const NodeId& id) const {
  const auto at = std::lower_bound(members.begin(), members.end(), id,
                                   [](const Member& m, const NodeId& want) { return m.id < want; });
  if (at == members.end() || at->id != id) return std::nullopt;
  return static_cast<std::uint32_t>(at - members.begin());
}

Agreed make_agreed(const RoundId& round, std::span<const Finish* const> statements) {
  std::vector<const Finish*> sorted(statements.begin(), statements.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Finish* a, const Finish* b) { return a->signer < b->signer; });
  Agreed agreed;
  for (const Finish* finish : sorted) {
    agreed.members.push_back({finish->signer, finish->weight});
    if (agreed.rule != Rule::median && finish->rule != Rule::mean) agreed.rule = finish->rule;
  }
  agreed.samples = agreed_samples(sorted);
  // Nobody refused anything yet: what was asked for cannot be had with so many.
  const bool asked_for = agreed.rule == Rule::trimmed || round.epoch == Epoch{1};
  if (asked_for && agreed.members.size() > kMaxMedianParticipants) agreed.rule = Rule::mean;
  agreed.sessions.resize(sorted.size());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (const auto& peer : sorted[i]->sessions) {
      const auto j = agreed.find_index(peer);
      if (!j) continue;
      const auto& theirs = sorted[*j]->sessions;
      if (std::binary_search(theirs.begin(), theirs.end(), sorted[i]->signer))
        agreed.sessions[i].push_back(*j);
    }

  Hasher set;
  start_hash(set, "starling/consensus/set/1", round)
      .add(static_cast<std::uint64_t>(agreed.rule))
      .add(agreed.samples);
  for (const auto& member : agreed.members) set.add(member.id.view()).add(member.weight);
  agreed.set = set.finish();
  Hasher graph;
  start_hash(graph, "starling/consensus/graph/1", round);
  for (const auto& row : agreed.sessions) {
    graph.add(row.size());
    for (const auto peer : row) graph.add(peer);
  }
  agreed.graph = graph.finish();
  return agreed;
}

std::vector<NodeId> largest_part(const Agreed& agreed) {
  std::vector<NodeId> best;
  std::vector<bool> seen(agreed.members.size(), false);
  std::vector<std::uint32_t> order;
  for (std::uint32_t start = 0; start < agreed.members.size(); ++start) {
    if (seen[start]) continue;
    (void)distances(agreed, start, order);
    for (const auto member : order) seen[member] = true;
    if (order.size() <= best.size()) continue;
    best.clear();
    for (const auto member : order) best.push_back(agreed.members[member].id);
  }
  std::sort(best.begin(), best.end());
  return best;
}

std::optional<NodeId> cycle_successor(const Agreed& agreed, const RoundId& round,
                                      const NodeId& self) {
  if (agreed.members.size() < 2 || !agreed.find_index(self)) return std::nullopt;
  std::vector<std::pair<Hash, NodeId>> cycle;
  cycle.reserve(agreed.members.size());
  for (const auto& member : agreed.members) {
    Hasher place;
    start_hash(place, "starling/consensus/cycle/1", round).add(member.id.view());
    cycle.emplace_back(place.finish(), member.id);
  }
  std::sort(cycle.begin(), cycle.end());
  for (std::size_t k = 0; k < cycle.size(); ++k)
    if (cycle[k].second == self) return cycle[(k + 1) % cycle.size()].second;
  return std::nullopt;
}

std::uint32_t root_of(const Agreed& agreed, std::uint32_t chunk) {
  std::uint32_t best = 0;
  std::uint64_t best_score = 0;
  for (std::uint32_t k = 0; k < agreed.members.size(); ++k) {
    std::uint64_t number = 0;
    std::memcpy(&number, agreed.members[k].id.bytes.data(), sizeof(number));
    const std::uint64_t score =
        mix(mix(number) ^ mix((std::uint64_t{chunk} + 1) * 0x9e3779b97f4a7c15ULL));
    if (k > 0 && score <= best_score) continue;
    best = k;
    best_score = score;
  }
  return best;
}

TreePlace place_in_tree(const Agreed& agreed, std::uint32_t root, std::uint32_t member) {
  const auto [order, parent] = make_tree(agreed, root);
  std::vector<std::uint64_t> weight(order.size(), 0);
  std::vector<std::uint32_t> members(order.size(), 0);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    weight[*at] += agreed.members[*at].weight;
    members[*at] += 1;
    if (parent[*at] == kFar) continue;
    weight[parent[*at]] += weight[*at];
    members[parent[*at]] += members[*at];
  }
  TreePlace place;
  if (member != root) place.parent = parent[member];
  for (const auto near : agreed.sessions[member])
    if (parent[near] == member) place.children.push_back({near, weight[near], members[near]});
  return place;
}

std::optional<std::uint32_t> child_towards(const Agreed& agreed, std::uint32_t root,
                                           std::uint32_t member, std::uint32_t other) {
  const auto tree = make_tree(agreed, root);
  while (tree.parent[other] != kFar && tree.parent[other] != member) other = tree.parent[other];
  return tree.parent[other] == member ? std::optional(other) : std::nullopt;
}

}  // namespace starling::gossip::consensus
