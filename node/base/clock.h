// Time as the protocol sees it: a point on a steady clock, passed in by whoever calls.
#pragma once

#include <chrono>
#include <cstdint>

namespace starling {

using Duration = std::chrono::microseconds;

// A point on a steady clock of this process. Not comparable between machines.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// Never: for deadlines that do not exist.
inline constexpr TimePoint kNever = TimePoint::max();

// The one way to ask for the time outside protocol logic, which is told instead.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
};

[[nodiscard]] inline double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace starling
