#include "node/config/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace starling::node {

namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// Microseconds.
constexpr std::array<Unit, 5> kTimeUnits{
    {{"ms", 1e3}, {"s", 1e6}, {"m", 6e7}, {"h", 3.6e9}, {"d", 8.64e10}}};
constexpr double kLongestTime = 100.0 * 365 * 8.64e10;
constexpr std::string_view kDurationForm = "a duration such as 90s, 5m or 2h";

constexpr std::array<Unit, 6> kCountUnits{
    {{"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"", 1.0}}};

// The decimal number at the start of a text, which loses it; no sign, exponent or infinity.
std::optional<double> take_decimal(std::string_view& text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) == 0)
    return std::nullopt;
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

template <std::size_t N>
std::optional<double> factor_of(const std::array<Unit, N>& units, std::string_view name) {
  for (const auto& unit : units)
    if (unit.name == name) return unit.factor;
  return std::nullopt;
}

std::unexpected<std::string> wrong(std::string_view form) {
  return std::unexpected(std::string(form));
}

}  // namespace

Parsed<Duration> parse_duration(std::string_view text) {
  if (text == "0") return Duration{0};
  if (text.empty()) return wrong(kDurationForm);
  double total = 0;
  while (!text.empty()) {
    const auto amount = take_decimal(text);
    if (!amount) return wrong(kDurationForm);
    std::size_t letters = 0;
    while (letters < text.size() && std::isalpha(static_cast<unsigned char>(text[letters])) != 0)
      ++letters;
    const auto factor = factor_of(kTimeUnits, text.substr(0, letters));
    if (!factor) return wrong(kDurationForm);
    total += *amount * *factor;
    text.remove_prefix(letters);
  }
  if (total > kLongestTime) return wrong("a duration of at most 100 years");
  return Duration{static_cast<std::int64_t>(std::llround(total))};
}

std::string show_duration(Duration duration) {
  const auto count = duration.count();
  if (count == 0) return "0";
  struct Whole {
    std::int64_t unit;
    std::string_view name;
  };
  constexpr std::array<Whole, 3> kWhole{
      {{3'600'000'000, "h"}, {60'000'000, "m"}, {1'000'000, "s"}}};
  for (const auto& [unit, name] : kWhole)
    if (count % unit == 0) return fmt::format("{}{}", count / unit, name);
  if (count % 1'000 == 0) return fmt::format("{}ms", count / 1'000);
  return fmt::format("{}.{:03}ms", count / 1'000, count % 1'000);
}

Parsed<std::uint64_t> parse_count(std::string_view text, std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value < low ||
      value > high) {
    if (high == std::numeric_limits<std::uint64_t>::max())
      return wrong(fmt::format("a whole number of at least {}", low));
    return wrong(fmt::format("a whole number from {} to {}", low, high));
  }
  return value;
}

Parsed<double> parse_number(std::string_view text, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() ||
      !std::isfinite(value) || value < low || value > high)
    return wrong(fmt::format("a number from {} to {}", show_number(low), show_number(high)));
  return value;
}

std::string show_number(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc{} ? std::string(buffer.data(), end) : std::string("?");
}

Parsed<bool> parse_switch(std::string_view text) {
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  return wrong("true or false");
}

namespace {

// What stands behind samples=, epochs= and steps=.
Parsed<Until> parse_amount(std::string_view kind, std::string_view text) {
  const auto amount = take_decimal(text);
  const auto factor = factor_of(kCountUnits, text);
  if (!amount || !factor)
    return wrong(fmt::format(
        "a number behind {}=, with k, M, G, T or nothing behind that: {}", kind,
        kind == "epochs" ? "epochs=18, epochs=0.5" : fmt::format("{0}=240000, {0}=1.2M", kind)));
  if (*amount <= 0) return wrong(fmt::format("{} above zero", kind));
  const double value = *amount * *factor;
  if (value > 9e15) return wrong(fmt::format("at most 9e15 {}", kind));
  if (kind == "epochs") return Until{Until::Kind::epochs, value, Duration{0}};
  if (value < 1 || value != std::floor(value))
    return wrong(fmt::format("a whole number of {}", kind));
  return Until{kind == "samples" ? Until::Kind::samples : Until::Kind::steps, value, Duration{0}};
}

}  // namespace

Parsed<Until> parse_until(std::string_view text) {
  const auto equals = text.find('=');
  const auto kind = text.substr(0, equals);
  const auto amount =
      equals == std::string_view::npos ? std::string_view{} : text.substr(equals + 1);
  if (kind == "time") {
    const auto time = parse_duration(amount);
    if (!time)
      return wrong("a time with its unit behind time= (ms, s, m, h or d): time=90s, time=2h");
    if (time->count() == 0) return wrong("a time above zero, such as time=2h");
    return Until{Until::Kind::time, 0, *time};
  }
  constexpr std::array<std::string_view, 4> kKinds{"samples", "epochs", "steps", "time"};
  if (std::ranges::find(kKinds, kind) == kKinds.end() || equals == std::string_view::npos) {
    const auto near = nearest(kind, kKinds);
    return wrong(
        fmt::format("samples=N, epochs=E, steps=N or time=D, such as epochs=18 or time=2h{}",
                    near.empty() ? "" : fmt::format("; did you mean {}=?", near)));
  }
  return parse_amount(kind, amount);
}

std::string show_until(const Until& until) {
  switch (until.kind) {
    case Until::Kind::samples:
      return fmt::format("samples={:.0f}", until.amount);
    case Until::Kind::epochs: {
      // In fixed form, because that is what parse_until reads.
      auto text = fmt::format("{:.9f}", until.amount);
      text.erase(text.find_last_not_of('0') + 1);
      if (text.ends_with('.')) text.pop_back();
      return "epochs=" + text;
    }
    case Until::Kind::steps:
      return fmt::format("steps={:.0f}", until.amount);
    case Until::Kind::time:
      return "time=" + show_duration(until.time);
  }
  return {};
}

Parsed<std::vector<training::ImageStage>> parse_resize(std::string_view text) {
  constexpr std::string_view kForm =
      "SIDE@SHARE,... with growing sides (8 to 1024 pixels) and growing shares of the budget "
      "(thousandths above 0, up to 1), at most five, such as 160@0.4,192@0.8, or off";
  constexpr std::size_t kMaxStages = 5;
  std::vector<training::ImageStage> stages;
  if (text == "off") return stages;
  while (true) {
    const auto comma = text.find(',');
    const auto stage = text.substr(0, comma);
    const auto at = stage.find('@');
    if (at == std::string_view::npos || stages.size() == kMaxStages) return wrong(kForm);
    const auto side = parse_count(stage.substr(0, at), 8, 1'024);
    const auto share = parse_number(stage.substr(at + 1), 0, 1);
    if (!side || !share || *share <= 0 || std::round(*share * 1e3) / 1e3 != *share)
      return wrong(kForm);
    const training::ImageStage next{static_cast<std::uint32_t>(*side), *share};
    if (!stages.empty() &&
        (next.side <= stages.back().side || next.until_share <= stages.back().until_share))
      return wrong(kForm);
    stages.push_back(next);
    if (comma == std::string_view::npos) return stages;
    text.remove_prefix(comma + 1);
  }
}

std::string show_resize(const std::vector<training::ImageStage>& stages) {
  if (stages.empty()) return "off";
  std::string text;
  for (const auto& [side, until_share] : stages)
    text += fmt::format("{}{}@{}", text.empty() ? "" : ",", side, show_number(until_share));
  return text;
}

Parsed<std::string> parse_address(std::string_view text) {
  constexpr std::string_view kForm = "HOST:PORT, such as 0.0.0.0:7700 or [::]:7700";
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || text.size() > 300) return wrong(kForm);
  const auto host = text.substr(0, colon);
  if (!parse_count(text.substr(colon + 1), 0, 65'535)) return wrong(kForm);
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  const bool plain = host.find_first_of("[]: \t\r\n/@") == std::string_view::npos;
  // Without the zone ("%eth0"), which may be any word.
  const auto inner = bracketed ? host.substr(1, host.size() - 2) : std::string_view{};
  const bool six =
      bracketed && inner.substr(0, inner.find('%')).find_first_not_of("0123456789abcdefABCDEF:.") ==
                       std::string_view::npos;
  if (!plain && !six) return wrong(kForm);
  if (std::ranges::any_of(host, [](char c) { return c < 33 || c > 126; })) return wrong(kForm);
  return std::string(text);
}

namespace {

// Levenshtein distance with transpositions of neighbours (a slip of the fingers is one edit).
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> now(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  if (word.size() > 64) return {};  // nobody mistypes a name of that length; keeps the cost small
  const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  std::string_view best;
  std::size_t fewest = 2 + word.size() / 6;
  for (const auto candidate : candidates) {
    const auto count = edits(word, candidate);
    // Of a short word too few letters would be left: --set is no slip for --json.
    if (2 * count > letters) continue;
    if (count < fewest || (count == fewest && best.empty())) {
      fewest = count;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  const auto near = nearest(word, candidates);
  return near.empty() ? std::string() : fmt::format("; did you mean {}?", near);
}

}  // namespace starling::node
