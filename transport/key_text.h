// Lines "name value" of the small files that hold keys and what is signed with them.
#pragma once

#include "node/base/ids.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace starling::transport {

// The value of the first line "name value", which is removed from the text; nothing if that line is
// another one.
[[nodiscard]] std::optional<std::string_view> take_line(std::string_view& text,
                                                        std::string_view name);
// Nothing also where the value is no decimal number of 64 bits.
[[nodiscard]] std::optional<std::uint64_t> take_number_line(std::string_view& text,
                                                            std::string_view name);
// Nothing also where the value is not the hexadecimal form of an Id (SwarmId, NodeId).
template <class Id>
[[nodiscard]] std::optional<Id> take_hex_line(std::string_view& text, std::string_view name) {
  const auto line = take_line(text, name);
  return line ? Id::from_hex(*line) : std::nullopt;
}

}  // namespace starling::transport
