// Bootstrap messages: the low byte of the type, the length of the body (two bytes), the body, and
// what is left as attachment. What decodes survives another round.
#include "bootstrap/message_codec.h"
#include "node/base/check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  if (size < 3) return 0;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto rest = bytes.subspan(3);
  const std::size_t length = std::min(
      rest.size(), static_cast<std::size_t>(data[1]) + 256U * static_cast<std::size_t>(data[2]));
  transport::Message wire;
  wire.type = static_cast<std::uint16_t>(0x0400U | data[0]);
  wire.body = to_bytes(rest.first(length));
  if (length < rest.size()) wire.attachment = share(to_bytes(rest.subspan(length)));
  const auto message = bootstrap::decode_bootstrap(wire);
  if (!message) return 0;
  const auto again = bootstrap::decode_bootstrap(bootstrap::encode(*message));
  STARLING_CHECK(again.has_value());
  STARLING_CHECK(*again == *message);
  return 0;
}
