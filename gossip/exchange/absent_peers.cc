#include "gossip/exchange/absent_peers.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace starling::gossip {

void AbsentPeers::put(TimePoint now, const NeighbourView& view, const Conduct& conduct) {
  peers_.insert_or_assign(view.peer, AbsentPeer{view, conduct, now});
  if (peers_.size() > kMost) make_room(now);
}

void AbsentPeers::make_room(TimePoint now) {
  std::erase_if(peers_,
                [&](const auto& entry) { return !entry.second.conduct.counts(now, options_); });
  if (peers_.size() <= kMost) return;
  const auto weight = [&](const auto& entry) {
    const auto& [view, conduct, since] = entry.second;
    return std::tuple(conduct.drops, conduct.recent_offences(now, options_), conduct.resets.size(),
                      since);
  };
  peers_.erase(std::ranges::min_element(peers_, {}, weight));
}

std::optional<AbsentPeer> AbsentPeers::take(TimePoint now, const NodeId& peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  std::optional<AbsentPeer> taken;
  if (found->second.conduct.counts(now, options_)) taken = std::move(found->second);
  peers_.erase(found);
  return taken;
}

std::vector<NeighbourView> AbsentPeers::views(TimePoint now) const {
  std::vector<NeighbourView> views;
  for (const auto& [peer, absent] : peers_) {
    if (!absent.conduct.counts(now, options_)) continue;
    views.push_back(absent.view);
    views.back().offences = absent.conduct.recent_offences(now, options_);
  }
  return views;
}

}  // namespace starling::gossip
