#include "bootstrap/reachability.h"

namespace starling::bootstrap {

DialBack::Answer DialBack::on_request(TimePoint now, const NodeId& from,
                                      const DialBackRequest& request) {
  Asker& asker = askers_[from];
  const bool first = asker.last == TimePoint{};
  if (request.port == 0 || asker.probing || (!first && now - asker.last < kGap))
    return Answer::too_often;
  asker.last = now;
  asker.probing = request.port;
  return Answer::probe;
}

bool DialBack::take_probed(const NodeId& peer, std::uint16_t port) {
  const auto at = askers_.find(peer);
  if (at == askers_.end() || at->second.probing != port) return false;
  at->second.probing.reset();
  return true;
}

bool DialBack::take_reply(const NodeId& from, std::uint16_t port) {
  const auto at = asked_.find(from);
  if (at == asked_.end() || at->second != port) return false;
  asked_.erase(at);
  return true;
}

void DialBack::on_session_down(const NodeId& peer) {
  askers_.erase(peer);
  asked_.erase(peer);
}

}  // namespace starling::bootstrap
