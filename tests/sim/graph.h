// What the graph of neighbours is worth: how far apart members are, and how fast averages mix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace starling::sim {

// Neighbours of each vertex, by number; undirected: each edge stands at both ends.
using Graph = std::vector<std::vector<std::uint32_t>>;

// The graph that the topology gives a swarm of so many members.
[[nodiscard]] Graph neighbour_graph(std::size_t members, std::uint64_t seed);

// The longest of all shortest ways, in edges; SIZE_MAX where the graph falls apart.
//
// Cost:    O(vertices * edges).
[[nodiscard]] std::size_t diameter(const Graph& graph);

// The second largest eigenvalue of D^-1/2 A D^-1/2: 1 for a graph in two parts, 0.745 at best for
// large graphs with six edges a vertex.
//
// Rule:    power iteration on (I + D^-1/2 A D^-1/2) / 2 across the first eigenvector, 2,000 rounds;
//          good to 3 digits.
[[nodiscard]] double second_eigenvalue(const Graph& graph);

}  // namespace starling::sim
