// What a signal to stop asks for: the first to leave in order, a later one to end at once.
#pragma once

#include "node/base/clock.h"

#include <cstdint>
#include <optional>

namespace starling::node {

// Signals that come together are one wish. `timeout`, for one, signals its child and then the whole
// process group, so the child gets two; nobody has lost patience in between.
inline constexpr Duration kOneWish = std::chrono::milliseconds(500);

enum class StopWish : std::uint8_t { leave, same_again, end };

// A value; one thread.
class StopRequests {
 public:
  StopWish on_signal(TimePoint now) {
    if (!first_) {
      first_ = now;
      return StopWish::leave;
    }
    return now < *first_ + kOneWish ? StopWish::same_again : StopWish::end;
  }

 private:
  std::optional<TimePoint> first_;
};

}  // namespace starling::node
