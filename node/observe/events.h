// DIR/events.jsonl: what happened, one JSON object per line, for scripts and notebooks.
#pragma once

#include "node/base/log.h"
#include "node/base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace starling::node {

struct EventLogOptions {
  // The file is renamed to events.jsonl.1 (replacing the one before) at this size, so the folder
  // never holds more than twice as much. 32 MiB are about 200,000 events.
  std::uint64_t max_bytes = std::uint64_t{32} << 20;
};

// Appends events to a file.
//
// Constructed by open(), owned by the node, used by one thread (io). Each event is one write() of a
// whole line, so a reader never sees half of one except after a crash. A disk that is full costs
// events, which are counted, and one log line; it stops nothing.
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

  [[nodiscard]] std::uint64_t lost() const { return lost_; }

 private:
  EventLog(std::filesystem::path file, Log& log, EventLogOptions options, int descriptor);
  void rotate();

  std::filesystem::path file_;
  Log& log_;
  EventLogOptions options_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace starling::node
