// Snapshots and clocks that several tests need.
#pragma once

#include "node/base/clock.h"
#include "node/observe/status.h"

namespace starling::node {

// A node in the middle of a run: four members, two neighbours.
[[nodiscard]] StatusSnapshot busy_snapshot();

// A clock that a test moves.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration time) { now_ += time; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace starling::node
