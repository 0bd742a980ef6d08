// Base64 of key material, in constant time and without copies left behind.
#pragma once

#include "node/base/bytes.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace starling::transport {

// Standard alphabet, padded.
[[nodiscard]] std::string encode_base64(ByteView bytes);

// Fills `out` exactly; false if the text holds anything else than the base64 of out.size() bytes
// (padding and white space at the end are optional).
[[nodiscard]] bool decode_base64(std::string_view text, std::span<std::byte> out);
// One byte or more, of whatever size; for what is no key, because they are not locked.
[[nodiscard]] std::optional<Bytes> decode_base64(std::string_view text);

}  // namespace starling::transport
