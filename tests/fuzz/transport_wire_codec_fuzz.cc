// Hello and bye: what decodes must encode again to the same.
#include "transport/wire_codec.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::transport;
  const auto input = std::as_bytes(std::span(data, size));
  (void)decode_bye(input);
  const auto hello = decode_hello(input);
  if (!hello) return 0;
  // Text fields end at a zero byte when they are written; peers that put one inside lose the rest.
  if (hello->name.find('\0') != std::string::npos) return 0;
  const auto again = decode_hello(encode_hello(*hello));
  if (!again || *again != *hello) std::abort();
  return 0;
}
