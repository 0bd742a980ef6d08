// Input: message type (2 bytes), length of the body (2 bytes), body, attachment. Whatever decodes
// must encode again to a message that decodes to the same.
#include "gossip/exchange/message_codec.h"
#include "node/base/check.h"

#include <algorithm>
#include <cstdint>

namespace {

using namespace starling;

transport::Message message_from(ByteView input) {
  ByteReader reader(input);
  transport::Message message;
  message.type = reader.read<std::uint16_t>().value_or(0);
  const std::size_t length = reader.read<std::uint16_t>().value_or(0);
  const std::size_t left = reader.left();
  if (const auto body = reader.take(std::min(length, left))) message.body = to_bytes(*body);
  if (const auto rest = reader.take(reader.left()); rest && !rest->empty())
    message.attachment = share(to_bytes(*rest));
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = message_from(std::as_bytes(std::span(data, size)));
  const auto decoded = gossip::decode_exchange(message);
  if (!decoded) return 0;
  const auto wire = gossip::encode_exchange(*decoded);
  const auto again = gossip::decode_exchange(wire);
  STARLING_CHECK(again.has_value());
  const auto same = gossip::encode_exchange(*again);
  STARLING_CHECK(same.body == wire.body);
  STARLING_CHECK(same.type == message.type);
  return 0;
}
