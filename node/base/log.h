// Structured log lines: an event name and key=value pairs. An interface: spdlog stands behind it in
// node/.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace starling {

enum class LogLevel : std::uint8_t { trace, debug, info, warn, error };
inline constexpr std::array<std::string_view, 5> kLogLevels{"trace", "debug", "info", "warn",
                                                            "error"};

// One key=value of a line; numbers and booleans are printed, texts are kept as they are and escaped
// by the backend.
struct LogField {
  // What the value was before it was printed: a text of digits, as a key in hexadecimal may be,
  // stays a text where lines have types.
  enum class Kind : std::uint8_t { text, literal };

  std::string_view key;
  std::string value;
  Kind kind = Kind::text;  // literal: a number, true or false

  LogField(std::string_view k, std::string v) : key(k), value(std::move(v)) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false"), kind(Kind::literal) {}
  template <std::integral T>
  LogField(std::string_view k, T v) : key(k), value(std::to_string(v)), kind(Kind::literal) {}
  template <std::floating_point T>
  LogField(std::string_view k, T v) : key(k), value(shortest(v)), kind(Kind::literal) {}

 private:
  // The shortest digits that are read back as the same number, without an exponent where people
  // expect none.
  template <std::floating_point T>
  static std::string shortest(T v) {
    const auto size = v < 0 ? -v : v;
    const bool plain = size == 0 || (size >= T(1e-4) && size < T(1e15));
    std::array<char, 40> digits{};
    char* const end = digits.data() + digits.size();
    const auto written = plain ? std::to_chars(digits.data(), end, v, std::chars_format::fixed)
                               : std::to_chars(digits.data(), end, v);
    return {digits.data(), written.ec == std::errc{} ? written.ptr : digits.data()};
  }
};

// Where lines go. Constructor-injected; there is no global logger.
//
// Thread:  any.
class Log {
 public:
  virtual ~Log() = default;
  // `event` is a stable dotted name ("session.closed"); it is what rate limits and scripts refer
  // to.
  virtual void write(LogLevel level, std::string_view event,
                     std::initializer_list<LogField> fields) = 0;

  void debug(std::string_view event, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::debug, event, fields);
  }
  void info(std::string_view event, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::info, event, fields);
  }
  void warn(std::string_view event, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::warn, event, fields);
  }
  void error(std::string_view event, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::error, event, fields);
  }
};

// Swallows every line: for tests and tools.
class NullLog final : public Log {
 public:
  void write(LogLevel, std::string_view, std::initializer_list<LogField>) override {}
};

}  // namespace starling
