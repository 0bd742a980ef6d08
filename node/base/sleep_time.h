// How long this machine was suspended.
#pragma once

#include "node/base/clock.h"

#include <time.h>

#include <chrono>

namespace starling {

// Since it booted, all suspensions together: the steady clock stood still meanwhile. Differences
// below a millisecond mean nothing.
//
// Thread:  any.
[[nodiscard]] inline Duration time_asleep() {
  const auto read = [](clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto running = read(CLOCK_MONOTONIC);
  return std::chrono::duration_cast<Duration>(read(CLOCK_BOOTTIME) - running);
}

}  // namespace starling
