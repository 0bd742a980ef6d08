// Faults on demand, for tests: planted bugs, and points at which an operation fails or the process
// dies.
//
//   if (fault::planted("membership.no_refutation")) return;        // a bug that a test switches on
//   if (fault::maybe("checkpoint.before_rename")) return failed;   // an operation that can fail
//   fault::pass("checkpoint.after_rename");                        // a moment to die at
//
// They exist only where STARLING_FAULTS is defined: in libraries that link starling_faults, in the
// presets that build tests. Elsewhere, in `release` above all, the first two are the constant false
// at compile time and the third is nothing: neither the question nor its name is in the object.
//
// A name is "area.what". One bug at a time, and one point at a time, is on in a process; nothing
// but a test switches one on: in its own process with an object, in another one with
// STARLING_FAULT in its environment (arm()).
#pragma once

#include "node/base/fault_points.h"

#include <string>
#include <string_view>

#ifdef STARLING_FAULTS
#include <signal.h>

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#endif

namespace starling::fault {

// A name that maybe() takes: the compiler refuses one that is not in the list, or cannot fail.
class Failure {
 public:
  consteval Failure(const char* name) : name_(name) {  // NOLINT(google-explicit-constructor)
    const auto* point = find_point(name);
    if (point == nullptr || point->kind != Kind::fails)
      throw "no point that can fail has this name";
  }
  [[nodiscard]] constexpr std::string_view name() const { return name_; }

 private:
  std::string_view name_;
};
// The same for pass().
class Moment {
 public:
  consteval Moment(const char* name) : name_(name) {  // NOLINT(google-explicit-constructor)
    const auto* point = find_point(name);
    if (point == nullptr || point->kind != Kind::dies) throw "no point of this kind has this name";
  }
  [[nodiscard]] constexpr std::string_view name() const { return name_; }

 private:
  std::string_view name_;
};

#ifdef STARLING_FAULTS

enum class Effect : std::uint8_t { fail, kill };
inline constexpr std::uint64_t kForEver = std::numeric_limits<std::uint64_t>::max();

// When an armed point does something.
struct Arming {
  std::uint64_t after = 0;         // passings that are let go
  std::uint64_t times = kForEver;  // that are not
  Effect effect = Effect::fail;
};

namespace detail {
// What is on, and how often it was asked for. Plain words without a constructor, so that nothing
// runs before main().
struct Switch {
  std::atomic<const char*> name{nullptr};
  std::atomic<std::uint64_t> first{0};
  std::atomic<std::uint64_t> times{0};
  std::atomic<Effect> effect{Effect::fail};
  std::atomic<std::uint64_t> passed{0};

  void turn(const char* to, const Arming& arming) {
    name.store(nullptr);
    first.store(arming.after);
    times.store(arming.times);
    effect.store(arming.effect);
    passed.store(0);
    name.store(to);
  }
  [[nodiscard]] bool asked(std::string_view by) {
    const char* on = name.load(std::memory_order_relaxed);
    if (on == nullptr || by != on) return false;
    const std::uint64_t number = passed.fetch_add(1);
    if (number < first.load() || number - first.load() >= times.load()) return false;
    if (effect.load() == Effect::kill) (void)::raise(SIGKILL);
    return true;
  }
};
inline constinit Switch bug;
inline constinit Switch point;
}  // namespace detail

// Whether this bug is on. Thread: any. Cost: one load where none is on.
[[nodiscard]] inline bool planted(std::string_view name) { return detail::bug.asked(name); }

// Whether the operation is to fail here. Thread: any. Cost: one load where none is armed.
[[nodiscard]] inline bool maybe(Failure point) { return detail::point.asked(point.name()); }

// Where a process that is to die here does. The same cost.
inline void pass(Moment point) { (void)detail::point.asked(point.name()); }

// A planted bug for the life of this object; `name` outlives it.
class Planted {
 public:
  explicit Planted(const char* name) { detail::bug.turn(name, {}); }
  ~Planted() { detail::bug.turn(nullptr, {}); }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;
  // How often the code came by: a bug that nobody met proves nothing.
  [[nodiscard]] std::uint64_t reached() const { return detail::bug.passed.load(); }
};

// An armed point for the life of this object.
class Armed {
 public:
  explicit Armed(const PointSpec& point, const Arming& arming = {}) {
    // The names are literals.
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage)
    detail::point.turn(point.name.data(), arming);
  }
  ~Armed() { detail::point.turn(nullptr, {}); }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;
  [[nodiscard]] std::uint64_t reached() const { return detail::point.passed.load(); }
};

// Arms a point for the rest of the process: "NAME@N:EFFECT", where EFFECT is `fail` (the N-th
// passing and all after it), `once` (the N-th alone) or `kill`; N is 1 to a million.
//
// Errors:  what is wrong with the text, for a person; empty: armed.
[[nodiscard]] inline std::string arm(std::string_view text) {
  constexpr std::string_view kForm = "STARLING_FAULT wants NAME@N:fail, NAME@N:once or NAME@N:kill";
  const auto at = text.find('@');
  const auto colon = text.find(':', at == std::string_view::npos ? 0 : at);
  if (at == std::string_view::npos || colon == std::string_view::npos) return std::string(kForm);
  const auto* point = find_point(text.substr(0, at));
  if (point == nullptr)
    return "no fault point is called " + std::string(text.substr(0, std::min<std::size_t>(at, 64)));
  const auto digits = text.substr(at + 1, colon - at - 1);
  std::uint64_t number = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (problem != std::errc{} || end != digits.data() + digits.size() || number < 1 ||
      number > 1'000'000)
    return std::string(kForm);
  const auto word = text.substr(colon + 1);
  Arming arming{.after = number - 1};
  if (word == "kill") {
    arming.effect = Effect::kill;
  } else if (word == "fail" || word == "once") {
    if (point->kind == Kind::dies)
      return "nothing can fail at " + std::string(point->name) +
             ": only kill means something there";
    if (word == "once") arming.times = 1;
  } else {
    return std::string(kForm);
  }
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage)
  detail::point.turn(point->name.data(), arming);
  return {};
}

// The same with STARLING_FAULT of the environment; without it nothing is armed.
[[nodiscard]] inline std::string arm_from_environment() {
  const char* text =
      std::getenv("STARLING_FAULT");  // NOLINT(concurrency-mt-unsafe): before threads
  return text == nullptr ? std::string() : arm(text);
}

#else

consteval bool planted(std::string_view) { return false; }
consteval bool maybe(Failure) { return false; }
consteval void pass(Moment) {}
[[nodiscard]] inline std::string arm_from_environment() { return {}; }

#endif

}  // namespace starling::fault
