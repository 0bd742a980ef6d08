#include "transport/base64.h"

#include <sodium.h>

namespace starling::transport {

std::string encode_base64(ByteView bytes) {
  std::string text(sodium_base64_encoded_len(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // libsodium's terminating zero
  return text;
}

bool decode_base64(std::string_view text, std::span<std::byte> out) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ' ||
                           text.back() == '\t' || text.back() == '='))
    text.remove_suffix(1);
  std::size_t size = 0;
  const char* end = nullptr;
  const int bad = sodium_base642bin(reinterpret_cast<unsigned char*>(out.data()), out.size(),
                                    text.data(), text.size(), nullptr, &size, &end,
                                    sodium_base64_VARIANT_ORIGINAL_NO_PADDING);
  return bad == 0 && size == out.size() && end == text.data() + text.size();
}

}  // namespace starling::transport
