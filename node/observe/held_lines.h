// Lines for a terminal or a pipe that may be held: Ctrl-S, a pager, a reader that stopped.
#pragma once

#include "node/base/clock.h"
#include "node/base/mutex.h"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>

namespace starling::node {

// Writes lines to a descriptor as long as that does not wait. What has no room is kept, in order,
// and goes out with a later line; what is too much is dropped, and counted in the line that says
// so.
//
// Owned by whoever made it, outlives its streams. Memory: kMost. A regular file always has room, so
// a disk that hangs is waited for. So is a terminal that this user may not open again (after `su`),
// once it is full. SIGPIPE is ignored (main).
//
// Thread:  any. Cost: a lock, a poll() and a write() a line.
class HeldLines {
 public:
  static constexpr std::size_t kMost = std::size_t{1} << 20;
  // How long the end waits for a reader.
  static constexpr Duration kPatience = std::chrono::seconds(1);

  // `notice` makes the line, with its end, that says how many were dropped.
  using Notice = std::function<std::string(std::uint64_t lines)>;
  // `descriptor` stays the caller's, and as it is: whoever shares it may count on writes that wait.
  HeldLines(int descriptor, Notice notice);
  ~HeldLines();
  HeldLines(const HeldLines&) = delete;
  HeldLines& operator=(const HeldLines&) = delete;

  // `line` ends with a line end.
  void write(std::string_view line);
  // Until release() everything is kept, the newest of it: the terminal shows something else.
  void hold();
  void release();

 private:
  // Writes what is kept while there is room, waiting so long for it.
  void write_kept(Duration patience) STARLING_REQUIRES(mutex_);
  // As ::write(), without a wait.
  [[nodiscard]] ssize_t write_some(std::string_view text) const;
  // The first line of which nothing is written.
  [[nodiscard]] std::deque<std::string>::iterator first_whole() STARLING_REQUIRES(mutex_);
  // While lines are held the oldest ones make room; otherwise the one that comes is dropped.
  void keep_held(std::string_view line) STARLING_REQUIRES(mutex_);

  const int given_;
  // The same file, pipe or terminal, by a description of its own that never waits; `given_` where
  // there is none.
  const int descriptor_;
  const Notice notice_;
  mutable Mutex mutex_;
  std::deque<std::string> kept_ STARLING_GUARDED_BY(mutex_);
  std::size_t first_sent_ STARLING_GUARDED_BY(mutex_) = 0;  // of the first line
  std::size_t bytes_ STARLING_GUARDED_BY(mutex_) = 0;
  std::uint64_t dropped_ STARLING_GUARDED_BY(mutex_) = 0;
  bool held_ STARLING_GUARDED_BY(mutex_) = false;
};

// A stream whose lines go there, each once it is whole. One thread at a time; several streams may
// share the lines.
class LineStream final : private std::streambuf, public std::ostream {
 public:
  explicit LineStream(HeldLines& lines)
      : std::ostream(static_cast<std::streambuf*>(this)), lines_(lines) {}

 private:
  int overflow(int character) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  void take(std::string_view text);

  HeldLines& lines_;
  std::string line_;
};

}  // namespace starling::node
