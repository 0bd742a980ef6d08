// CPU time, for measuring: what a thread or this process has used, to the microsecond (getrusage()
// advances by the tick on some kernels).
#pragma once

#include <time.h>

namespace starling {

[[nodiscard]] inline double cpu_seconds(clockid_t clock) {
  timespec time{};
  (void)::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
[[nodiscard]] inline double thread_cpu_seconds() { return cpu_seconds(CLOCK_THREAD_CPUTIME_ID); }
[[nodiscard]] inline double process_cpu_seconds() { return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID); }

}  // namespace starling
