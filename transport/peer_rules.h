// PeerRules: which identities may have a session with this node.
#pragma once

#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "transport/member_certificate.h"
#include "transport/revocation.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

namespace starling::transport {

// Bounds of one list, as text and as ids.
inline constexpr std::size_t kMaxPeerListBytes = std::size_t{2} << 20;
inline constexpr std::size_t kMaxListedPeers = 16'384;

// Whose certificates count, and which do not any more.
struct AdminRules {
  NodeId admin;
  SwarmId swarm;
  Revocations revoked;

  friend bool operator==(const AdminRules&, const AdminRules&) = default;
};

// What a peer brings besides its identity, and when.
struct Credentials {
  const CertificateChain* certificate = nullptr;
  // It is here by an invite of ours, for its first session: it needs no certificate there, but the
  // one that it is given may be revoked.
  bool invited = false;
  std::uint64_t now_s = 0;  // of the calendar, seconds since 1970
};

// The two lists of a node and, where the swarm has an admin, the admin's word. A value: whoever
// reads the files makes one and hands it to Transport.
//
//   denied, or revoked | an allowed list or an admin | listed, or a valid certificate | session
//   yes                | -                           | -                              | no
//   no                 | no                          | -                              | yes
//   no                 | yes                         | no                             | no
//   no                 | yes                         | yes, or invited by this node   | yes
//
// Thread: any. Cost: a look-up is O(log n), at most 2 x 16,384 ids; a certificate 0.07 ms.
struct PeerRules {
  std::optional<std::set<NodeId>> allowed;  // nothing: everybody who is not denied
  std::set<NodeId> denied;                  // beats everything
  std::optional<AdminRules> admin;

  // Why this identity gets no session; nothing if it may have one. Ask only when the peer has
  // proved that it is that identity: the answer is for its eyes.
  [[nodiscard]] std::optional<Error> refusal(const NodeId& peer,
                                             const Credentials& with = {}) const;

  friend bool operator==(const PeerRules&, const PeerRules&) = default;
};

// The ids in a text with one id a line.
//
// Rule:    a line is blank, a comment that begins with #, or a node id (64 hexadecimal digits) and,
//          behind a blank, anything that tells a person who that is. An id may be there twice.
// Errors:  bad_config with line, value and what to write; too_large and too_many above the bounds.
// Tested:  tests/fuzz/transport_peer_list_fuzz.cc.
[[nodiscard]] Result<std::set<NodeId>> parse_peer_list(std::string_view text);

}  // namespace starling::transport
