// What happened: DIR/events.jsonl, one JSON object per line, for scripts and notebooks; and the
// last lines of the log, kept in memory for who looks at the running node.
#pragma once

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mutex.h"
#include "node/base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

struct EventLogOptions {
  // The file is renamed to events.jsonl.1 (replacing the one before) at this size, so the folder
  // never holds more than twice as much. 32 MiB are about 200,000 events. Where that is refused,
  // the file grows to twice its size, and further events are lost.
  std::uint64_t max_bytes = std::uint64_t{32} << 20;
  // After which a rename that was refused is tried again.
  Duration rename_again = std::chrono::minutes(1);
  // What may wait for a disk that hangs: about 6,000 events.
  std::size_t max_waiting_bytes = std::size_t{1} << 20;
};

// Appends events to a file.
//
// Constructed by open(), owned by main, used by one thread (io), which never waits for the disk: a
// thread of its own writes. Each event is one write() of a whole line, so a reader never sees half
// of one except after a crash. A disk that is full, or hangs for long, costs events, which are
// counted, and one log line; it stops nothing. The end waits until all is written.
class EventLog {
 public:
  // Errors:  io_failed, permission, disk_full; no_memory where its thread is refused.
  [[nodiscard]] static Result<EventLog> open(const std::filesystem::path& file, Log& log,
                                             EventLogOptions options = {});
  ~EventLog();
  EventLog(EventLog&& other) noexcept;
  EventLog& operator=(EventLog&&) = delete;

  // Writes {"time": "2026-11-21T02:14:07.123Z", "event": event, ...fields}.
  void append(std::string_view event, const nlohmann::json& fields);

  [[nodiscard]] std::uint64_t lost() const;

 private:
  class Writer;
  explicit EventLog(std::unique_ptr<Writer> writer);

  std::unique_ptr<Writer> writer_;
};

// One line of the log.
struct RecentEvent {
  std::uint64_t seq = 0;  // 1 for the first of the process
  std::string time;       // "2026-11-21T02:14:07.123Z"
  LogLevel level = LogLevel::info;
  std::string event;  // "member.suspect"
  std::string text;   // `key=value ...`, printable
};

// The last events of this process, numbered.
//
// Owned by the log, which adds each line from `info` on that its limit per event lets pass,
// whatever level it prints. Of bounded size: kMost events, at most kMostOfOne of one name, so that
// what repeats itself pushes nothing else out; the oldest go.
//
// Thread:  any.
class RecentEvents {
 public:
  static constexpr std::size_t kMost = 200;
  static constexpr std::size_t kMostOfOne = 40;
  static constexpr std::size_t kMaxText = 512;  // bytes; what is longer ends in "..."

  // `text` is printable.
  void add(LogLevel level, std::string_view event, std::string_view text);
  // The events that came after that one, the oldest first. All of them where no event has that
  // number yet: who asks knows another process.
  [[nodiscard]] std::vector<RecentEvent> after(std::uint64_t seq) const;

 private:
  mutable Mutex mutex_;
  std::deque<RecentEvent> kept_ STARLING_GUARDED_BY(mutex_);
  std::uint64_t newest_ STARLING_GUARDED_BY(mutex_) = 0;
};

// An object with "schema": 1 and the events as a list.
[[nodiscard]] nlohmann::json to_json(const std::vector<RecentEvent>& events);

}  // namespace starling::node
