// Link: what one direction of a line between two machines does to frames. Pure: no device, no
// clock.
#pragma once

#include "node/base/clock.h"
#include "node/base/random.h"
#include "node/base/result.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace starling::lab {

// The faults of a link; all of them together are possible. Shares are of frames, 0 to 1.
struct LinkFaults {
  double delay_ms = 0;
  double jitter_ms = 0;  // the delay is uniform within this of delay_ms; frames may overtake
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;    // goes without delay, past those that wait
  double corrupt = 0;    // one byte behind the Ethernet header is changed
  double rate_kbit = 0;  // 0: without limit
  double queue_ms = 50;  // what waits longer for the rate is dropped
  bool cut = false;      // nothing passes
  bool paused = false;   // nothing passes until it is released; then all of it does
};

// Changes one fault: "loss", "0.05".
//
// Errors:  bad_argument for an unknown name, or a value out of its bounds; nothing is changed.
[[nodiscard]] Result<void> set_fault(LinkFaults& faults, std::string_view name,
                                     std::string_view value);

using Frame = std::vector<std::byte>;

// A frame and when it comes out at the other end.
struct Passing {
  TimePoint due;
  Frame frame;
};

// One direction of one line. Owned by the switch, whose thread it lives on. Holds the frames of a
// pause, kMaxHeld of them at most: a line is no memory, what comes then is lost.
class Link {
 public:
  static constexpr std::size_t kMaxHeld = 4'096;

  // Faults from now on. What a pause held comes out at once when it ends.
  [[nodiscard]] std::vector<Passing> set(TimePoint now, const LinkFaults& faults, Rng& rng);
  [[nodiscard]] const LinkFaults& faults() const { return faults_; }

  // What becomes of a frame: nothing, one, or two where it is duplicated.
  [[nodiscard]] std::vector<Passing> pass(TimePoint now, Frame frame, Rng& rng);

 private:
  [[nodiscard]] TimePoint due_of(TimePoint sent, Rng& rng) const;

  LinkFaults faults_;
  TimePoint free_at_;  // when the rate lets the next frame begin
  std::vector<Frame> held_;
};

}  // namespace starling::lab
