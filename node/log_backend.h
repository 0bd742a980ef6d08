// The log of this process: spdlog behind the interface of node/base/log.h.
#pragma once

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mutex.h"
#include "node/cli/verbs.h"
#include "node/config/config.h"
#include "node/observe/events.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>

namespace starling::node {

enum class LineFormat : std::uint8_t { text, json };
enum class LineColour : std::uint8_t { off, levels };  // levels: warnings yellow, errors red

struct LogBackendOptions {
  LogLevel level = LogLevel::info;
  LineFormat format = LineFormat::text;
  LineColour colour = LineColour::off;
  // Lines of one event per minute; what is above is counted and told with the next line that passes
  // ("suppressed=12"). Errors are never held back. 0: no limit.
  std::uint32_t per_event = 60;
};

// What the configuration asks for; colours only where a person looks.
[[nodiscard]] LogBackendOptions log_options(const Config& config, const Terminal& terminal);

// The line that says how many lines a stream had no room for.
[[nodiscard]] std::string dropped_line(const LogBackendOptions& options, std::uint64_t lines);

// Writes whole lines: `2026-11-21T02:14:07Z INFO event key=value ...`, or the same as JSON.
//
// Owned by main, outlives everything that logs. Values are escaped (control characters, quotes,
// bytes that are not UTF-8), so no text from a peer can forge a line or move a cursor.
//
// Thread:  any. Cost: one lock and one write per line that passes level and limit.
class LogBackend final : public Log {
 public:
  // Writes to a stream; both outlive it.
  LogBackend(LogBackendOptions options, const Clock& clock, std::ostream& out);
  ~LogBackend() override;

  void write(LogLevel level, std::string_view event,
             std::initializer_list<LogField> fields) override;

  void set_level(LogLevel level);
  // The last lines from `info` on, also those that the level keeps from being written.
  [[nodiscard]] const RecentEvents& recent() const { return recent_; }

 private:
  struct Sink;
  struct Budget {
    TimePoint since;
    std::uint32_t used = 0;
    std::uint64_t suppressed = 0;
  };
  // How many lines were held back before this one, or nothing if this one is held back too.
  struct Pass {
    bool allowed = true;
    std::uint64_t suppressed = 0;
  };
  [[nodiscard]] Pass admit(LogLevel level, std::string_view event) STARLING_REQUIRES(mutex_);

  const LogBackendOptions options_;
  const Clock& clock_;
  std::unique_ptr<Sink> sink_;
  RecentEvents recent_;
  mutable Mutex mutex_;
  LogLevel level_ STARLING_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Budget> budgets_ STARLING_GUARDED_BY(mutex_);
};

// "INFO".
[[nodiscard]] std::string_view name_of(LogLevel level);

}  // namespace starling::node
