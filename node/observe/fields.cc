#include "node/observe/fields.h"

#include "node/observe/status.h"
#include "node/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace starling::node::fields {

using Json = nlohmann::json;

const Json& at(const Json& object, std::initializer_list<std::string_view> path) {
  const Json* found = &object;
  for (const auto name : path) {
    if (!found->is_object()) return *found;
    const auto next = found->find(std::string(name));
    if (next == found->end()) return *found;
    found = &*next;
  }
  return *found;
}

std::string show(const Json& value) {
  if (value.is_string())
    return value.get_ref<const std::string&>().empty()
               ? "-"
               : printable(value.get_ref<const std::string&>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer()) return json_text(value);
  if (value.is_number()) return show_figure(value.get<double>(), 4);
  return "-";
}

std::string show(const Json& object, std::initializer_list<std::string_view> path) {
  return show(at(object, path));
}

std::string show_figure(double value, int digits) {
  if (value == 0) return "0";
  auto scientific = fmt::format("{:.{}e}", value, digits - 1);
  const auto sign = scientific.find('e');
  if (sign == std::string::npos) return scientific;  // not finite
  const int exponent = std::stoi(scientific.substr(sign + 1));
  const bool plain = exponent >= -4 && exponent < 15;
  auto text = plain ? fmt::format("{:.{}f}", value, std::max(0, digits - 1 - exponent))
                    : scientific.substr(0, sign);
  if (text.contains('.')) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
  }
  return plain ? text : fmt::format("{}e{}", text, exponent);
}

double number(const Json& object, std::initializer_list<std::string_view> path) {
  const auto& value = at(object, path);
  return value.is_number() ? value.get<double>() : 0;
}

std::string show_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1'000 && unit + 1 < kUnits.size()) {
    bytes /= 1'000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 || bytes >= 100 ? 0 : 1, kUnits[unit]);
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::string short_id(const Json& item) { return show(item, {"id"}).substr(0, 8); }

std::string with_unit(const Json& item, std::string_view key, std::string_view unit) {
  const auto& value = at(item, {key});
  return value.is_number() ? fmt::format("{} {}", show_figure(value.get<double>(), 3), unit) : "-";
}

std::size_t count_where(const Json& list, std::string_view key, std::string_view value) {
  if (!list.is_array()) return 0;
  return static_cast<std::size_t>(
      std::ranges::count_if(list, [&](const Json& item) { return show(item, {key}) == value; }));
}

std::string members_by_state(const Json& status) {
  std::string line;
  for (std::size_t i = 0; i < kMemberStates; ++i) {
    const auto state = name_of(static_cast<MemberState>(i));
    const auto count = count_where(at(status, {"members"}), "state", state);
    if (count > 0) line += fmt::format("{}{} {}", line.empty() ? "" : ", ", count, state);
  }
  return line.empty() ? "-" : line;
}

std::string join_of(const Json& status) {
  if (!at(status, {"join", "phase"}).is_string()) return {};
  std::string line = show(status, {"join", "phase"});
  if (number(status, {"join", "bytes_total"}) > 0)
    line += fmt::format("  {} of {} from {}", show_bytes(number(status, {"join", "bytes_done"})),
                        show_bytes(number(status, {"join", "bytes_total"})),
                        show(status, {"join", "sponsor"}).substr(0, 8));
  return line;
}

std::string reachable_of(const Json& status) {
  auto line = show(status, {"reachable"});
  const auto address = show(status, {"address"});
  if (line == "no")
    line += fmt::format(
        ": open or forward TCP {}, or --advertise HOST:PORT; it trains through the sessions it "
        "opens",
        address.substr(address.rfind(':') + 1));
  return line;
}

}  // namespace starling::node::fields
