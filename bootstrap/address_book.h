// Peers that worked before, and members that said where they listen, so that a restart finds the
// swarm without its seeds.
#pragma once

#include "gossip/membership/member_record.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "transport/endpoint.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace starling::bootstrap {

struct KnownPeer {
  NodeId id;
  transport::Endpoint endpoint;

  friend bool operator==(const KnownPeer&, const KnownPeer&) = default;
};

// The most recently useful peers, newest first, then what alive members said of themselves.
//
// A value owned by the node; the node reads and writes the file (DIR/peers.json). Holds what this
// node experienced. At most kMaxPeers entries, one for each endpoint, at most kMaxPerPeer for each
// identity and kMaxPerNetwork for each network, so that nobody can push the others out.
class AddressBook {
 public:
  static constexpr std::size_t kMaxPeers = 128;
  static constexpr std::size_t kMaxPerPeer = 4;
  static constexpr std::size_t kMaxPerNetwork = 16;
  static constexpr std::size_t kMaxText = std::size_t{64} << 10;

  // A session with `id` came up at `endpoint`, which this node dialled.
  void on_worked(const NodeId& id, const transport::Endpoint& endpoint);
  // An alive member says that it can be dialled there. Added last, where there is room.
  //
  // Returns: whether the book has changed.
  bool on_told(const NodeId& id, const transport::Endpoint& endpoint);
  // The same for every address in its record.
  bool on_told(const gossip::MemberRecord& record);
  // Another identity answers there now, or the member left for good.
  void forget(const transport::Endpoint& endpoint);

  [[nodiscard]] const std::vector<KnownPeer>& peers() const { return peers_; }

  // JSON: {"version": "1", "peers": [{"address": "host:port", "id": "64 hex digits"}, ...]}.
  [[nodiscard]] std::string to_text() const;
  // Errors:  too_large; corrupt, naming the byte at which the text stops making sense.
  [[nodiscard]] static Result<AddressBook> parse(std::string_view text);

  friend bool operator==(const AddressBook&, const AddressBook&) = default;

 private:
  std::vector<KnownPeer> peers_;
};

}  // namespace starling::bootstrap
