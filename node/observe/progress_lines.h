// The line that a node prints every ten seconds where there is no live screen.
#pragma once

#include "node/base/clock.h"
#include "node/observe/status.h"
#include "node/wall_time.h"

#include <optional>
#include <string>

namespace starling::node {

enum class ProgressForm : std::uint8_t { none, plain, json };

inline constexpr Duration kProgressPeriod = std::chrono::seconds(10);

// `2026-11-21T02:14:07Z INFO train step=8412 epoch=3.57 loss=2.417 img_s=2914 swarm_img_s=23180
// peers=8 disagreement=7.7e-1 gossip_wait=0.4% left=1h38m` in one line, without a line end. What is
// not known yet is left out. In the plain form, progress=N% is the share of the budget.
[[nodiscard]] std::string progress_line(const StatusSnapshot& status, WallTime time);
// The same as one JSON object with the names of `status --json`.
[[nodiscard]] std::string progress_json(const StatusSnapshot& status, WallTime time);

// Decides when a line is due: every kProgressPeriod, and at once when the phase changes.
//
// A value owned by the node; it prints nothing itself.
class ProgressLines {
 public:
  explicit ProgressLines(ProgressForm form) : form_(form) {}
  [[nodiscard]] std::optional<std::string> on_tick(TimePoint now, const StatusSnapshot& status,
                                                   WallTime time);

 private:
  ProgressForm form_;
  TimePoint due_ = TimePoint::min();
  std::optional<Phase> phase_;
};

}  // namespace starling::node
