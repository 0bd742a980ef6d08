// SessionInfo: what both sides of a session know of each other.
#pragma once

#include "node/base/ids.h"
#include "transport/endpoint.h"
#include "transport/member_certificate.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace starling::transport {

enum class Direction : std::uint8_t { dialled, accepted };

// Why a connection was dialled: for a first session, or to take over from the one that the same two
// processes have.
enum class Purpose : std::uint8_t { fresh = 0, renew = 1 };

struct SessionInfo {
  NodeId peer;
  Instance instance;                     // random per process: tells a restart from a reconnect
  std::string name;                      // the peer's choice, at most 64 bytes: escape it
  Endpoint remote;                       // the address of this connection
  std::vector<Endpoint> peer_addresses;  // where the peer says it can be dialled, at most 4
  Direction direction = Direction::dialled;
  Purpose purpose = Purpose::fresh;             // what the side that dialled said
  bool invited = false;                         // the side that dialled came with an invite
  std::optional<CertificateChain> certificate;  // that the peer showed, or was given here
};

}  // namespace starling::transport
