// Nodes by number, and when a test begins.
#pragma once

#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/ids.h"

#include <chrono>
#include <cstdint>

namespace starling::bootstrap::testing {

// No clock of a real machine is at zero.
inline const TimePoint kStart = TimePoint{} + std::chrono::hours(5);

[[nodiscard]] inline NodeId id_of(std::uint64_t number) {
  return *NodeId::from(Hasher().add(number).finish().view());
}

}  // namespace starling::bootstrap::testing
