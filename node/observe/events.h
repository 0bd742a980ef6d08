// DIR/events.jsonl: what happened, one JSON object per line, for scripts and notebooks.
#pragma once

#include "node/base/log.h"
#include "node/base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace starling::node {

struct EventLogOptions {
  // The file is renamed to events.jsonl.1 (replacing the one before) at this size, so the folder
  // never holds more than twice as much. 32 MiB are about 200,000 events.
  std::uint64_t max_bytes = std::uint64_t{32} << 20;
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
  // Errors:  io_failed, permission, disk_full.
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

}  // namespace starling::node
