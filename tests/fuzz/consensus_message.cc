// Consensus messages from the wire: two bytes of type, four of body length, body, attachment.
#include "gossip/consensus/message_codec.h"
#include "node/base/bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  ByteReader reader(std::as_bytes(std::span(data, size)));
  transport::Message message;
  const auto type = reader.read<std::uint16_t>();
  const auto length = reader.read<std::uint32_t>();
  if (!type || !length) return 0;
  message.type = static_cast<std::uint16_t>(0x0300U | (*type & 0xffU));
  message.body = to_bytes(*reader.take(std::min<std::size_t>(*length, reader.left())));
  if (reader.left() > 0) message.attachment = share(to_bytes(*reader.take(reader.left())));
  const auto decoded = gossip::consensus::decode(message);
  if (!decoded) return 0;
  // Whatever is accepted can be said again, and means the same: each field comes back, since what
  // is said of it is the same bytes.
  const auto said = gossip::consensus::encode(*decoded);
  const auto again = gossip::consensus::decode(said);
  if (!again || gossip::consensus::run_of(*again) != gossip::consensus::run_of(*decoded))
    std::abort();
  const auto said_again = gossip::consensus::encode(*again);
  if (said_again.type != said.type || said_again.body != said.body ||
      !std::ranges::equal(said_again.attached(), said.attached()))
    std::abort();
  return 0;
}
