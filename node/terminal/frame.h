// What a terminal shows at one moment, as text with styles: made, and tested, without a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace starling::node::terminal {

enum class Style : std::uint8_t { plain, dim, strong, good, warning, bad, title };
inline constexpr std::size_t kStyles = 7;

// A piece of a line. Its text is printable() and UTF-8.
struct Span {
  std::string text;
  Style style = Style::plain;
};

using Line = std::vector<Span>;
// From the top.
using Frame = std::vector<Line>;

struct Size {
  std::size_t columns = 80;
  std::size_t rows = 24;
};

}  // namespace starling::node::terminal
