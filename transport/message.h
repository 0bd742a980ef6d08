// Message: the unit that a session delivers. Small body, optional bulk attachment.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"

#include <cstdint>

namespace starling::transport {

// Which room a message belongs to, by its high byte. 0x00 is the session's own.
enum class Room : std::uint8_t {
  session = 0x00,
  membership = 0x01,
  exchange = 0x02,
  consensus = 0x03,
  bootstrap = 0x04,
};

// The session's own messages, which the layer above sends and takes; see wire.capnp.
inline constexpr std::uint16_t kSwarmSecretMessage = 0x0001;
inline constexpr std::uint16_t kMembershipMessage = 0x0002;
inline constexpr std::uint16_t kAccessFactsMessage = 0x0003;
inline constexpr std::uint16_t kRevocationsMessage = 0x0004;
inline constexpr std::uint16_t kNextSecretMessage = 0x0005;
inline constexpr std::uint16_t kSecretHeldMessage = 0x0006;

// One message, whole and authenticated. The body is a Cap'n Proto struct of at most
// limits::kMaxControlBody bytes; the attachment is raw bytes of the kind that the body announces (a
// delta, a chunk), sent in bulk records with credit after the body, and complete when the message
// is delivered.
struct Message {
  std::uint16_t type = 0;
  Bytes body;
  SharedBytes attachment;  // null: none
  // Not sent before the last byte of every attachment that its room sent earlier, nor is anything
  // of its room before it.
  bool in_order = false;

  [[nodiscard]] Room room() const { return static_cast<Room>(type >> 8); }
  [[nodiscard]] ByteView attached() const {
    return attachment ? ByteView(*attachment) : ByteView();
  }
};

}  // namespace starling::transport
