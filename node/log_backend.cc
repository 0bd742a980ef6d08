#include "node/log_backend.h"

#include "node/printable.h"
#include "node/wall_time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/ostream_sink.h>

#include <array>
#include <cstdlib>
#include <string_view>

namespace starling::node {

namespace {

constexpr Duration kMinute = std::chrono::minutes(1);
// Event names are constants of the program; the bound only guards against a bug of ours.
constexpr std::size_t kMaxEvents = 1'024;

constexpr std::string_view kYellow = "\x1b[33m";
constexpr std::string_view kRed = "\x1b[31m";
constexpr std::string_view kPlain = "\x1b[0m";

std::string text_of_fields(std::initializer_list<LogField> fields) {
  std::string text;
  for (const auto& field : fields)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", field.key, escape_value(field.value));
  return text;
}

std::string text_line(LogLevel level, std::string_view event,
                      std::initializer_list<LogField> fields, LineColour colour) {
  std::string line = show_seconds(wall_now()) + ' ';
  const bool coloured = colour == LineColour::levels && level >= LogLevel::warn;
  if (coloured) line += level == LogLevel::warn ? kYellow : kRed;
  line += name_of(level);
  if (coloured) line += kPlain;
  line += ' ';
  line += event;
  if (fields.size() > 0) line += ' ' + text_of_fields(fields);
  return line;
}

// Numbers and switches as such. What JSON has no number for (an infinity) stays a text.
nlohmann::ordered_json json_value(const LogField& field) {
  if (field.kind == LogField::Kind::literal) {
    auto value = nlohmann::ordered_json::parse(field.value, nullptr, /*allow_exceptions=*/false);
    if (!value.is_discarded()) return value;
  }
  return field.value;
}

std::string json_line(LogLevel level, std::string_view event,
                      std::initializer_list<LogField> fields) {
  nlohmann::ordered_json line;
  line["time"] = show_milliseconds(wall_now());
  line["level"] = name_of(level);
  line["event"] = event;
  for (const auto& field : fields) line[std::string(field.key)] = json_value(field);
  // ASCII only: a terminal takes U+009B and its like for the beginning of a command.
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

LogBackendOptions log_options(const Config& config, const Terminal& terminal) {
  const bool json = config.log.format == LogFormat::json;
  // Such a terminal shows the bytes of a colour as they are.
  const char* const term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  const bool colour =
      config.log.color == Colour::automatic && terminal.err_is_tty && !json && !dumb;
  return {.level = config.log.level,
          .format = json ? LineFormat::json : LineFormat::text,
          .colour = colour ? LineColour::levels : LineColour::off,
          .per_event = config.log.per_event};
}

std::string dropped_line(const LogBackendOptions& options, std::uint64_t lines) {
  constexpr std::string_view kEvent = "log.dropped";
  const auto line = options.format == LineFormat::json
                        ? json_line(LogLevel::warn, kEvent, {{"lines", lines}})
                        : text_line(LogLevel::warn, kEvent, {{"lines", lines}}, options.colour);
  return line + '\n';
}

struct LogBackend::Sink {
  spdlog::logger logger;

  // Owners: spdlog's logger, which is the only holder.
  explicit Sink(std::shared_ptr<spdlog::sinks::sink> sink) : logger("starling", std::move(sink)) {
    logger.set_formatter(std::make_unique<spdlog::pattern_formatter>("%v"));
    logger.set_level(spdlog::level::trace);  // levels are decided here, not there
    logger.flush_on(spdlog::level::trace);
    // A log that cannot be written (closed pipe, full disk) must not write about itself.
    logger.set_error_handler([](const std::string&) {});
  }
};

LogBackend::LogBackend(LogBackendOptions options, const Clock& clock, std::ostream& out)
    : options_(options),
      clock_(clock),
      sink_(std::make_unique<Sink>(std::make_shared<spdlog::sinks::ostream_sink_mt>(out))),
      level_(options.level) {}

LogBackend::~LogBackend() = default;

void LogBackend::write(LogLevel level, std::string_view event,
                       std::initializer_list<LogField> fields) {
  Pass pass;
  bool written = false;
  {
    const MutexLock lock(mutex_);
    written = level >= level_;
    if (!written && level < LogLevel::info) return;
    pass = admit(level, event);
  }
  if (!pass.allowed) return;
  if (level >= LogLevel::info) recent_.add(level, event, text_of_fields(fields));
  if (!written) return;
  auto line = options_.format == LineFormat::json
                  ? json_line(level, event, fields)
                  : text_line(level, event, fields, options_.colour);
  if (pass.suppressed > 0) {
    if (options_.format == LineFormat::json)
      line.insert(line.size() - 1, fmt::format(",\"suppressed\":{}", pass.suppressed));
    else
      line += fmt::format(" suppressed={}", pass.suppressed);
  }
  sink_->logger.log(spdlog::level::critical, spdlog::string_view_t(line.data(), line.size()));
}

LogBackend::Pass LogBackend::admit(LogLevel level, std::string_view event) {
  if (options_.per_event == 0 || level >= LogLevel::error) return {};
  const auto now = clock_.now();
  auto found = budgets_.find(std::string(event));
  if (found == budgets_.end()) {
    if (budgets_.size() >= kMaxEvents) return {};
    found = budgets_.emplace(event, Budget{now, 0, 0}).first;
  }
  auto& budget = found->second;
  if (now - budget.since >= kMinute) {
    budget.since = now;
    budget.used = 0;
  }
  if (budget.used >= options_.per_event) {
    ++budget.suppressed;
    return {false, 0};
  }
  ++budget.used;
  return {true, std::exchange(budget.suppressed, 0)};
}

void LogBackend::set_level(LogLevel level) {
  const MutexLock lock(mutex_);
  level_ = level;
}

std::string_view name_of(LogLevel level) {
  constexpr std::array<std::string_view, 5> kNames{"TRACE", "DEBUG", "INFO", "WARN", "ERROR"};
  return kNames[static_cast<std::size_t>(level)];
}

}  // namespace starling::node
