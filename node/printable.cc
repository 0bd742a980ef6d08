#include "node/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace starling::node {

namespace {

// One character of a text: its bytes, and its code point if they are UTF-8.
struct Character {
  std::size_t bytes = 1;
  std::uint32_t point = 0;
  bool valid = false;
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, lead, true};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return {};
  std::uint32_t point = lead & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    point = (point << 6U) | (byte(i) & 0x3fU);
  }
  // Shortest form only, no surrogates, nothing beyond Unicode.
  const std::uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return {};
  return {length, point, true};
}

bool shows(std::uint32_t point) {
  if (point < 0x20 || (point >= 0x7f && point < 0xa0)) return false;
  // Zero-width characters, direction marks and overrides, line and paragraph separators.
  if (point >= 0x200b && point <= 0x200f) return false;
  if (point >= 0x2028 && point <= 0x202e) return false;
  if (point >= 0x2060 && point <= 0x206f) return false;
  return point != 0xad && point != 0xfeff && point < 0xe0000;
}

std::string escaped(std::string_view text, std::string_view also) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto character = first_of(text);
    const auto bytes = text.substr(0, character.bytes);
    if (!character.valid || !shows(character.point)) {
      for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      if (also.find(bytes.front()) != std::string_view::npos) out += '\\';
      out += bytes;
    }
    text.remove_prefix(character.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, ""); }

std::string escape_value(std::string_view value) {
  const bool plain = !value.empty() && std::ranges::all_of(value, [](char c) {
    return c > 32 && c < 127 && c != '"' && c != '\\' && c != '=';
  });
  if (plain) return std::string(value);
  return '"' + escaped(value, "\"\\") + '"';
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto character = first_of(text);
    if (character.valid)
      out += text.substr(0, character.bytes);
    else
      out += "\xef\xbf\xbd";
    text.remove_prefix(character.bytes);
  }
  return out;
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace starling::node
