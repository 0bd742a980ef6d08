// What a mixer tells of one peer.
#pragma once

#include "gossip/delta/level.h"
#include "gossip/exchange/edge.h"
#include "gossip/exchange/level_control.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <cstdint>
#include <optional>
#include <string>

namespace starling::gossip {

struct NeighbourView {
  NodeId peer;
  EdgeState state = EdgeState::closed;
  Level level = Level::l2;
  LevelReason level_reason = LevelReason::unmeasured;
  bool wanted = false;
  bool parked = false;
  std::uint64_t exchanges = 0;
  std::uint64_t clipped = 0;   // exchanges of which parameters or statistics counted in part
  std::uint64_t refused = 0;   // payloads of the peer
  std::string refused_why;     // the last of them
  std::uint32_t offences = 0;  // refused payloads that still count against the peer
  std::uint32_t drops = 0;     // times that it was dropped for them
  TimePoint closed_until{};    // no edge with it before
  float last_scale = 1;        // of the increment of the last exchange that was clipped
  std::uint64_t busy = 0;      // own offers that were not answered
  std::uint64_t resets = 0;
  std::uint64_t bytes_sent = 0;  // of payloads and snapshots
  std::uint64_t bytes_received = 0;
  // |q_their - q_own| over |x - r| of the last exchange that measured both: a figure to watch, not
  // a signal to steer by (algorithm 6.3).
  double disagreement_ratio = 0;
  std::optional<TimePoint> last_exchange;
};

}  // namespace starling::gossip
