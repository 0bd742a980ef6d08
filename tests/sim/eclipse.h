// A swarm that anybody may join, and somebody who joins it four hundred times: how many honest
// neighbours honest nodes keep.
#pragma once

#include "node/base/clock.h"

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace starling::sim {

struct EclipsePlan {
  std::uint64_t seed = 1;
  std::size_t honest = 20;  // each in a network of its own
  std::size_t sybils = 400;
  std::size_t networks = 4;  // of the Sybils
  Duration length = std::chrono::minutes(30);
  // Honest nodes take their neighbours from many networks, as in open mode.
  bool strangers = true;
  // The records of Sybils name addresses of networks that they are not in.
  bool invented = false;
};

struct EclipseOutcome {
  std::uint64_t samples = 0;   // one of each honest node in each second
  std::uint64_t bearable = 0;  // with at least two honest neighbours
  std::uint64_t sum = 0;       // of honest neighbours
  std::size_t least = 0;       // of one node, in the last minute
  std::uint64_t events = 0;
  [[nodiscard]] double share() const {
    return static_cast<double>(bearable) / static_cast<double>(samples);
  }
};

// One run: the Sybils come within the first minutes, know each other, answer heartbeats, pass on
// nothing, and dial honest nodes; three honest nodes are killed and restarted with their address
// books, and a hundred Sybils dial them at once. The memberships and address books of honest nodes
// are the real ones; an edge counts where both ends would have it (see Mixer::refuse_open), the
// Sybils being served first.
[[nodiscard]] EclipseOutcome run_eclipse(const EclipsePlan& plan);

}  // namespace starling::sim
