// Peers that are gone, and of which something still counts.
#pragma once

#include "gossip/exchange/edge.h"
#include "gossip/exchange/neighbour_view.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

namespace starling::gossip {

// What a mixer knows of a peer that has neither an edge nor a session.
struct AbsentPeer {
  NeighbourView view;  // when it went
  Conduct conduct;
  TimePoint since;
};

// The peers that may not be forgotten yet, or a new session would be an amnesty.
//
// Owned by the mixer, on the io thread. Holds this node's judgement of others. At most kMost peers
// of less than a KiB: identities cost nothing, so no number of them may cost memory or a place in
// the mixer's walks. Where there are more the one goes that matters least: fewest drops, then
// fewest offences, then fewest resets, then the one that is gone for longest. A new identity has
// done next to nothing yet, so a crowd of them does not push out who was dropped again and again.
class AbsentPeers {
 public:
  // Above what strangers can do in the hour for which it counts: each needs an opening, and
  // MixerOptions leaves them 368.
  static constexpr std::size_t kMost = 512;

  explicit AbsentPeers(const EdgeOptions& options) : options_(options) {}

  void put(TimePoint now, const NeighbourView& view, const Conduct& conduct);
  // The peer is back. Nothing where nothing of it counts any more.
  [[nodiscard]] std::optional<AbsentPeer> take(TimePoint now, const NodeId& peer);
  [[nodiscard]] std::vector<NeighbourView> views(TimePoint now) const;

 private:
  void make_room(TimePoint now);

  EdgeOptions options_;
  std::map<NodeId, AbsentPeer> peers_;
};

}  // namespace starling::gossip
