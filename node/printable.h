// Texts that come from elsewhere (names of peers, paths, messages), made safe to show.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace starling::node {

// The text with everything that could move a cursor, end a line or hide text replaced by \xNN:
// control characters, bytes that are not UTF-8, and the invisible and direction-changing
// characters of Unicode.
[[nodiscard]] std::string printable(std::string_view text);

// A value as a log line shows it: as it is when it is one plain word, otherwise in quotes, with
// quotes and backslashes escaped, and printable.
[[nodiscard]] std::string escape_value(std::string_view value);

// The text with its bytes that are not UTF-8 replaced by U+FFFD: for JSON.
[[nodiscard]] std::string valid_utf8(std::string_view text);

// A JSON text, of one line unless it is indented by 0 or more; bytes that are not UTF-8 become
// U+FFFD, in place of an exception. ASCII only, because verbs print it: a terminal takes U+009B and
// its like for the beginning of a command.
[[nodiscard]] std::string json_text(const nlohmann::json& json, int indent = -1);

}  // namespace starling::node
