// Membership messages to bytes and back: the Cap'n Proto boundary of this room.
#pragma once

#include "gossip/membership/messages.h"
#include "node/base/result.h"
#include "transport/message.h"

namespace starling::gossip {

// Message types of the room (high byte 0x01).
enum class MembershipType : std::uint16_t {
  heartbeat = 0x0101,
  heartbeat_ack = 0x0102,
  probe_request = 0x0103,
  probe_reply = 0x0104,
  facts = 0x0105,
  digest = 0x0106,
  bucket_request = 0x0107,
};

[[nodiscard]] transport::Message encode(const MembershipMessage& message);

// Errors:  bad_message for an unknown type, an attachment, or anything out of its bounds;
//          too_large for a body above kMaxMembershipBody. Signatures are not checked here.
[[nodiscard]] Result<MembershipMessage> decode_membership(const transport::Message& message);

}  // namespace starling::gossip
