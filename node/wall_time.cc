#include "node/wall_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace starling::node {

namespace {

struct Parts {
  std::chrono::year_month_day date;
  std::chrono::hh_mm_ss<std::chrono::milliseconds> time;
};

Parts split(WallTime time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  return {std::chrono::year_month_day(day), std::chrono::hh_mm_ss(time - day)};
}

std::string show(const Parts& parts) {
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", static_cast<int>(parts.date.year()),
                     static_cast<unsigned>(parts.date.month()),
                     static_cast<unsigned>(parts.date.day()), parts.time.hours().count(),
                     parts.time.minutes().count(), parts.time.seconds().count());
}

}  // namespace

std::uint64_t seconds_of(WallTime time) {
  const auto since = std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch());
  return since.count() > 0 ? static_cast<std::uint64_t>(since.count()) : 0;
}

WallTime wall_now() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

std::string show_seconds(WallTime time) { return show(split(time)) + "Z"; }

std::string show_milliseconds(WallTime time) {
  const auto parts = split(time);
  return fmt::format("{}.{:03}Z", show(parts), parts.time.subseconds().count());
}

std::string show_left(double seconds) {
  constexpr double kLongest = 1e9;  // 31 years: what is more is no estimate
  const auto whole = static_cast<std::uint64_t>(std::llround(std::clamp(seconds, 0.0, kLongest)));
  if (whole >= 3'600) return fmt::format("{}h{:02}m", whole / 3'600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

}  // namespace starling::node
