// When messages of one direction of a session arrive, in the order that transport gives them.
#pragma once

#include "node/base/clock.h"
#include "transport/message.h"

#include <algorithm>

namespace starling::gossip::testing {

// Messages without attachment keep their order. One with an attachment comes when its last byte
// does: behind what was sent before it, overtaken by what was sent after it, unless that is
// in_order.
class OrderOfArrival {
 public:
  // Given when it would arrive by itself.
  TimePoint of(const transport::Message& message, TimePoint alone) {
    TimePoint arrival = std::max(alone, last_small_);
    if (message.attached().empty()) {
      if (message.in_order) arrival = std::max(arrival, last_large_);
      last_small_ = arrival;
      return arrival;
    }
    return last_large_ = std::max(arrival, last_large_);
  }

 private:
  TimePoint last_small_{};
  TimePoint last_large_{};
};

}  // namespace starling::gossip::testing
