// ExchangeMessage <-> transport::Message: the Cap'n Proto boundary of this room.
#pragma once

#include "gossip/exchange/messages.h"
#include "node/base/result.h"
#include "transport/message.h"

#include <cstdint>

namespace starling::gossip {

// The message types of the room: the high byte is transport::Room::exchange.
enum class ExchangeType : std::uint16_t {
  edge_open = 0x0201,
  edge_open_ack = 0x0202,
  offer = 0x0203,
  answer = 0x0204,
  busy = 0x0205,
  resume = 0x0206,
  edge_reset = 0x0207,
  edge_close = 0x0208,
};

[[nodiscard]] transport::Message encode_exchange(const ExchangeMessage& message);

// The message, with every field within its bounds and an attachment exactly where its type has one.
// Whether the attachment is a delta of this model is found out by the job that decodes it.
//
// Errors:  bad_message for an unknown type, field or attachment, too_large for a length.
// Cost:    O(body); the attachment is shared, not read.
// Thread:  any; pure.
[[nodiscard]] Result<ExchangeMessage> decode_exchange(const transport::Message& message);

// A message of ours by its body alone, which is what a session hands back when the peer refused the
// attachment: for Mixer::on_refused(). The payload of the result is a placeholder.
[[nodiscard]] Result<ExchangeMessage> decode_refused(std::uint16_t type, ByteView body);

}  // namespace starling::gossip
