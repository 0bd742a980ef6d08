// The calendar, for lines that people and scripts read. No protocol uses it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace starling::node {

using WallTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::milliseconds>;

[[nodiscard]] WallTime wall_now();
// Seconds since 1970, 0 before.
[[nodiscard]] std::uint64_t seconds_of(WallTime time);
// "2026-11-21T02:14:07Z", and with milliseconds "2026-11-21T02:14:07.123Z".
[[nodiscard]] std::string show_seconds(WallTime time);
[[nodiscard]] std::string show_milliseconds(WallTime time);
// How long something will take: "1h38m", "4m10s", "12s".
[[nodiscard]] std::string show_left(double seconds);

}  // namespace starling::node
