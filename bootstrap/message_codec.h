// Bootstrap messages to bytes and back: the Cap'n Proto boundary of this folder.
#pragma once

#include "bootstrap/messages.h"
#include "node/base/result.h"
#include "transport/message.h"

#include <cstddef>
#include <cstdint>

namespace starling::bootstrap {

// Message types of the room (high byte 0x04).
enum class BootstrapType : std::uint16_t {
  hello = 0x0401,
  state_request = 0x0402,
  state_manifest = 0x0403,
  state_refused = 0x0404,
  chunk_request = 0x0405,
  chunk = 0x0406,
  state_done = 0x0407,
  dial_back_request = 0x0408,
  dial_back_reply = 0x0409,
};

[[nodiscard]] transport::Message encode(const BootstrapMessage& message);

// Errors:  bad_message for an unknown type, or anything out of its bounds; too_large for a body
//          above kMaxBootstrapBody or an attachment above max_attachment().
[[nodiscard]] Result<BootstrapMessage> decode_bootstrap(const transport::Message& message);

// The largest attachment of a message type; 0: none. What transport's admit() compares with.
[[nodiscard]] std::size_t max_attachment(std::uint16_t type);

}  // namespace starling::bootstrap
