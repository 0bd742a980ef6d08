// Whether others can dial this node: asked of a peer, and answered for peers.
#pragma once

#include "bootstrap/messages.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace starling::bootstrap {

// Answers dial-back requests: one at a time for each peer, and never to an address that the peer
// could choose (only the port), so that no member can make another one scan a network.
//
// Owned by Join; io thread only. Bounded by the number of sessions.
class DialBack {
 public:
  enum class Answer : std::uint8_t { probe, too_often };
  // Whether the shell should try the peer's remote address at this port.
  [[nodiscard]] Answer on_request(TimePoint now, const NodeId& from,
                                  const DialBackRequest& request);
  // Whether the outcome of a probe is still awaited by this peer.
  [[nodiscard]] bool take_probed(const NodeId& peer, std::uint16_t port);
  // Whether this node asked `from` about this port.
  void on_asked(const NodeId& peer, std::uint16_t port) { asked_[peer] = port; }
  [[nodiscard]] bool take_reply(const NodeId& from, std::uint16_t port);
  void on_session_down(const NodeId& peer);

 private:
  static constexpr Duration kGap = std::chrono::seconds(20);
  struct Asker {
    TimePoint last{};
    std::optional<std::uint16_t> probing;
  };
  std::map<NodeId, Asker> askers_;
  std::map<NodeId, std::uint16_t> asked_;
};

}  // namespace starling::bootstrap
