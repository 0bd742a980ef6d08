// How deep a JSON text nests. Whoever copies, prints or frees parsed JSON may call itself for each
// level, so that a text of brackets alone takes the whole stack: it is refused before it is parsed.
#pragma once

#include <cstddef>
#include <string_view>

namespace starling {

// Whether objects and arrays lie at most `most` deep in one another; {"a":[1]} is 2 deep. Of what
// is no JSON it counts at least the levels that a parser sees before it gives up.
[[nodiscard]] constexpr bool nests_at_most(std::string_view json, int most) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"')
      in_text = !in_text;
    else if (in_text && c == '\\')
      ++i;  // what follows ends no text
    else if (!in_text && (c == '{' || c == '['))
      ++depth;
    else if (!in_text && (c == '}' || c == ']'))
      --depth;
    if (depth > most) return false;
  }
  return true;
}

}  // namespace starling
