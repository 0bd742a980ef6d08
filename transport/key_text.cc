#include "transport/key_text.h"

#include <charconv>

namespace starling::transport {

std::optional<std::string_view> take_line(std::string_view& text, std::string_view name) {
  const auto end = text.find('\n');
  auto line = text.substr(0, end);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (!line.starts_with(name)) return std::nullopt;
  line.remove_prefix(name.size());
  if (line.empty() || line.front() != ' ') return std::nullopt;
  line.remove_prefix(1);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

std::optional<std::uint64_t> take_number_line(std::string_view& text, std::string_view name) {
  const auto line = take_line(text, name);
  if (!line) return std::nullopt;
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(line->data(), line->data() + line->size(), number);
  if (parsed.ec != std::errc{} || parsed.ptr != line->data() + line->size()) return std::nullopt;
  return number;
}

}  // namespace starling::transport
