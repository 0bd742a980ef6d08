// Membership messages: two bytes of type, then the body. What decodes survives another round.
#include "gossip/membership/message_codec.h"
#include "node/base/check.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  if (size < 2) return 0;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  transport::Message wire;
  wire.type = static_cast<std::uint16_t>(0x0100U | data[0]);
  wire.body = to_bytes(bytes.subspan(2));
  const auto message = gossip::decode_membership(wire);
  if (!message) return 0;
  const auto again = gossip::decode_membership(gossip::encode(*message));
  STARLING_CHECK(again.has_value());
  STARLING_CHECK(*again == *message);
  return 0;
}
