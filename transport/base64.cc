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

namespace {

std::string_view without_end(std::string_view text) {
  const auto last = text.find_last_not_of("\n\r \t=");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

bool decode_base64(std::string_view text, std::span<std::byte> out) {
  text = without_end(text);
  std::size_t size = 0;
  const char* end = nullptr;
  const int bad = sodium_base642bin(reinterpret_cast<unsigned char*>(out.data()), out.size(),
                                    text.data(), text.size(), nullptr, &size, &end,
                                    sodium_base64_VARIANT_ORIGINAL_NO_PADDING);
  return bad == 0 && size == out.size() && end == text.data() + text.size();
}

std::optional<Bytes> decode_base64(std::string_view text) {
  Bytes bytes(without_end(text).size() * 3 / 4);
  // An empty vector has no place that libsodium could be told of.
  if (bytes.empty() || !decode_base64(text, bytes)) return std::nullopt;
  return bytes;
}

}  // namespace starling::transport
