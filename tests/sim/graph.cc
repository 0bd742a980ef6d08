#include "tests/sim/graph.h"

#include "gossip/membership/topology.h"
#include "node/base/random.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace starling::sim {
namespace {

constexpr int kRounds = 2'000;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void scale(std::vector<double>& vector, double by) {
  for (auto& value : vector) value *= by;
}

}  // namespace

Graph neighbour_graph(std::size_t members, std::uint64_t seed) {
  gossip::Topology topology(SwarmId{}, {});
  std::map<NodeId, std::uint32_t> places;
  std::vector<NodeId> ids;
  for (std::size_t i = 0; i < members; ++i) {
    ids.push_back(gossip::consensus::testing::node_id(seed << 32 | i));
    places.emplace(ids.back(), static_cast<std::uint32_t>(i));
    topology.add(ids.back());
  }
  Graph graph(members);
  for (std::size_t i = 0; i < members; ++i)
    for (const auto& id : topology.neighbours_of(ids[i])) graph[i].push_back(places.at(id));
  return graph;
}

std::size_t diameter(const Graph& graph) {
  std::size_t longest = 0;
  std::vector<std::uint32_t> queue(graph.size());
  std::vector<std::uint32_t> distance(graph.size());
  constexpr auto kFar = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t start = 0; start < graph.size(); ++start) {
    std::ranges::fill(distance, kFar);
    distance[start] = 0;
    queue[0] = static_cast<std::uint32_t>(start);
    std::size_t reached = 1;
    for (std::size_t at = 0; at < reached; ++at)
      for (const auto next : graph[queue[at]])
        if (distance[next] == kFar) {
          distance[next] = distance[queue[at]] + 1;
          queue[reached++] = next;
        }
    if (reached < graph.size()) return std::numeric_limits<std::size_t>::max();
    longest = std::max<std::size_t>(longest, distance[queue[reached - 1]]);
  }
  return longest;
}

double second_eigenvalue(const Graph& graph) {
  const std::size_t n = graph.size();
  std::vector<double> root(n);  // of the degrees
  for (std::size_t i = 0; i < n; ++i) root[i] = std::sqrt(static_cast<double>(graph[i].size()));
  // The first eigenvector.
  std::vector<double> first = root;
  scale(first, 1 / std::sqrt(dot(first, first)));
  Rng rng(1);
  std::vector<double> vector(n);
  for (auto& value : vector) value = rng.unit() - 0.5;
  double eigenvalue = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double along = dot(vector, first);
    for (std::size_t i = 0; i < n; ++i) vector[i] -= along * first[i];
    scale(vector, 1 / std::sqrt(dot(vector, vector)));
    std::vector<double> next(n);
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (const auto j : graph[i]) sum += vector[j] / root[j];
      next[i] = (vector[i] + sum / root[i]) / 2;
    }
    eigenvalue = 2 * dot(vector, next) - 1;
    vector = std::move(next);
  }
  return eigenvalue;
}

}  // namespace starling::sim
