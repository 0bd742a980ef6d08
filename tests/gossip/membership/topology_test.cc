#include "gossip/membership/topology.h"

#include "node/base/random.h"
#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

using namespace starling;
using namespace starling::gossip;
using starling::gossip::testing::test_id;

namespace {

using Graph = std::map<NodeId, std::set<NodeId>>;

std::vector<NodeId> some_ids(std::size_t count, std::uint64_t seed) {
  std::vector<NodeId> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(test_id(seed * 100000 + i));
  return ids;
}

Graph graph_of(const std::vector<NodeId>& ids, const TopologyOptions& options = {}) {
  Topology topology(SwarmId{}, options);
  for (const auto& id : ids) topology.add(id);
  Graph graph;
  for (const auto& id : ids) {
    const auto found = topology.neighbours_of(id);
    graph[id] = {found.begin(), found.end()};
  }
  return graph;
}

bool connected(const Graph& graph) {
  std::set<NodeId> reached{graph.begin()->first};
  std::vector<NodeId> open{graph.begin()->first};
  while (!open.empty()) {
    const NodeId at = open.back();
    open.pop_back();
    for (const auto& next : graph.at(at))
      if (reached.insert(next).second) open.push_back(next);
  }
  return reached.size() == graph.size();
}

std::size_t edges_that_differ(const Graph& a, const Graph& b) {
  std::set<std::pair<NodeId, NodeId>> left;
  std::set<std::pair<NodeId, NodeId>> right;
  for (const auto& [id, others] : a)
    for (const auto& other : others) left.emplace(std::min(id, other), std::max(id, other));
  for (const auto& [id, others] : b)
    for (const auto& other : others) right.emplace(std::min(id, other), std::max(id, other));
  std::vector<std::pair<NodeId, NodeId>> differing;
  std::ranges::set_symmetric_difference(left, right, std::back_inserter(differing));
  return differing.size();
}

}  // namespace

TEST_SUITE("gossip/topology") {
  TEST_CASE("the graph does not depend on the order in which members became known") {
    auto ids = some_ids(40, 1);
    const auto expected = graph_of(ids);
    Rng rng(3);
    for (int round = 0; round < 5; ++round) {
      std::shuffle(ids.begin(), ids.end(), rng);
      CHECK(graph_of(ids) == expected);
    }
  }

  TEST_CASE("neighbourhood is mutual, and the graph is connected, at every size") {
    for (std::size_t count = 1; count <= 90; ++count) {
      CAPTURE(count);
      const auto graph = graph_of(some_ids(count, count));
      CHECK(connected(graph));
      for (const auto& [id, others] : graph) {
        CHECK(!others.contains(id));
        for (const auto& other : others) CHECK(graph.at(other).contains(id));
      }
    }
  }

  TEST_CASE("up to five members the graph is complete, above that nobody has more than 2k edges") {
    for (std::size_t count = 1; count <= 5; ++count)
      for (const auto& [id, others] : graph_of(some_ids(count, 7)))
        CHECK(others.size() == count - 1);
    for (const auto& [id, others] : graph_of(some_ids(64, 8))) CHECK(others.size() <= 4);
    std::size_t most = 0;
    for (const auto& [id, others] : graph_of(some_ids(65, 8))) most = std::max(most, others.size());
    CHECK(most == 6);
    for (const auto& [id, others] : graph_of(some_ids(30, 9), {.degree = 2}))
      CHECK(others.size() == 2);
  }

  TEST_CASE("another degree gives the graph that the same members would have had from the start") {
    const auto ids = some_ids(40, 5);
    for (const auto& [before, after] : {std::pair{0U, 8U}, {8U, 2U}, {2U, 0U}, {0U, kMaxDegree}}) {
      CAPTURE(after);
      Topology topology(SwarmId{}, {.degree = before});
      for (const auto& id : ids) topology.add(id);

      topology.set_degree(after);

      Graph graph;
      for (const auto& id : ids) {
        const auto found = topology.neighbours_of(id);
        graph[id] = {found.begin(), found.end()};
      }
      CHECK(graph == graph_of(ids, {.degree = after}));
    }
  }

  TEST_CASE("a join or a departure changes at most three edges on each cycle") {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(seed);
      auto ids = some_ids(10 + seed, seed);
      const auto before = graph_of(ids);
      ids.push_back(test_id(seed * 7777777));
      CHECK(edges_that_differ(before, graph_of(ids)) <= 6);
    }
  }

  TEST_CASE("another swarm has another graph") {
    const auto ids = some_ids(30, 5);
    SwarmId other;
    other.bytes[0] = std::byte{1};
    std::size_t same = 0;
    for (const auto& id : ids)
      same += neighbours(ids, id, {}) == neighbours(ids, id, other) ? 1 : 0;
    CHECK(same < 3);
  }

  TEST_CASE("where no session is possible the walk goes on, and never ends in a gap") {
    const auto ids = some_ids(20, 6);
    Topology topology(SwarmId{}, {});
    for (const auto& id : ids) topology.add(id);
    const auto normal = topology.neighbours_of(ids[0]);
    const std::set<NodeId> shut(normal.begin(), normal.end());
    const auto walked =
        topology.neighbours_of(ids[0], [&](const NodeId& id) { return !shut.contains(id); });
    CHECK(walked.size() >= 2);
    for (const auto& id : walked) CHECK(!shut.contains(id));
    CHECK(topology.neighbours_of(ids[0], [](const NodeId&) { return false; }).empty());
  }

  TEST_CASE("a newcomer learns where it will be before it is a member") {
    auto ids = some_ids(20, 11);
    const NodeId newcomer = test_id(424242);
    Topology topology(SwarmId{}, {});
    for (const auto& id : ids) topology.add(id);
    const auto before = topology.neighbours_of(newcomer);
    topology.add(newcomer);
    CHECK(topology.neighbours_of(newcomer) == before);
  }

  TEST_CASE("six witnesses stand around a subject, without it and without suspects") {
    const auto ids = some_ids(20, 12);
    Topology topology(SwarmId{}, {});
    for (const auto& id : ids) topology.add(id);
    const auto witnesses =
        topology.witnesses_of(ids[3], 3, [&](const NodeId& id) { return id != ids[5]; });
    CHECK(witnesses.size() == 6);
    CHECK(std::ranges::count(witnesses, ids[3]) == 0);
    CHECK(std::ranges::count(witnesses, ids[5]) == 0);
  }
  TEST_CASE("among strangers of different networks the neighbours are those of the plain rule") {
    const auto ids = some_ids(200, 3);
    Topology topology(SwarmId{}, {});
    std::map<NodeId, Network> networks;
    for (const auto& id : ids) {
      topology.add(id);
      networks[id] = Network{networks.size()};
    }
    for (const auto& id : ids) {
      const auto plain = topology.neighbours_of(id);
      const auto found = topology.neighbours_among_strangers(
          id, [](const NodeId&) { return true; },
          [&](const NodeId& other) { return Reach{true, networks.at(other)}; });
      // Who is next on two cycles takes one place only, so one more may come.
      CHECK(std::ranges::includes(found, plain));
      CHECK(found.size() <= 6);
    }
  }

  TEST_CASE("where all are of one network it counts for nothing") {
    const auto ids = some_ids(100, 4);
    Topology topology(SwarmId{}, {});
    for (const auto& id : ids) topology.add(id);
    for (const auto& id : ids)
      CHECK(topology.neighbours_among_strangers(
                id, [](const NodeId&) { return true; },
                [](const NodeId&) { return Reach{true, Network{7}}; }) ==
            topology.neighbours_of(id));
  }

  TEST_CASE("hundreds of members of four networks leave two places to others") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      const auto ids = some_ids(420, 50 + seed);
      Topology topology(SwarmId{}, {});
      std::map<NodeId, Network> networks;
      for (const auto& id : ids) {
        topology.add(id);
        const auto number = networks.size();
        networks[id] = Network{number < 20 ? 100 + number : number % 4};
      }
      for (std::size_t honest = 0; honest < 20; ++honest) {
        const auto found = topology.neighbours_among_strangers(
            ids[honest], [](const NodeId&) { return true; },
            [&](const NodeId& other) { return Reach{true, networks.at(other)}; });
        CHECK(std::ranges::count_if(
                  found, [&](const NodeId& id) { return networks.at(id) >= Network{100}; }) >= 2);
        CHECK(found.size() <= 8);
      }
    }
  }

  TEST_CASE("who was never reached comes along and takes nobody's place") {
    const auto ids = some_ids(420, 99);
    Topology topology(SwarmId{}, {});
    std::map<NodeId, Network> networks;
    for (const auto& id : ids) {
      topology.add(id);
      networks[id] = Network{networks.size()};
    }
    // Twenty were reached; the others say that they are in networks of their own.
    const std::set<NodeId> reached(ids.begin(), ids.begin() + 20);
    for (const auto& id : reached) {
      const auto found = topology.neighbours_among_strangers(
          id, [](const NodeId&) { return true; },
          [&](const NodeId& other) { return Reach{reached.contains(other), networks.at(other)}; });
      const auto known = static_cast<std::size_t>(std::ranges::count_if(
          found, [&](const NodeId& other) { return reached.contains(other); }));
      CHECK(known >= 6);
      CHECK(found.size() - known <= 6);
    }
  }
}
