// Faults on demand, for tests: planted bugs and points at which an operation fails.
//
//   if (fault::planted("membership.no_refutation")) return;        // a bug that a test switches on
//   if (fault::maybe("checkpoint.before_rename")) return failed;   // a failure at the n-th passing
//
// They exist only where STARLING_FAULTS is defined: in libraries that link starling_faults, in the
// presets that build tests. Elsewhere, in `release` above all, both are the constant false at
// compile time: neither the question nor its name is in the object.
//
// A name is "area.what", the area a word of the README's list or a folder. One bug at a time, and
// one point at a time, is on in a process; nothing but a test switches one on.
#pragma once

#include <string_view>

#ifdef STARLING_FAULTS
#include <atomic>
#include <cstdint>
#endif

namespace starling::fault {

#ifdef STARLING_FAULTS

namespace detail {
// What is on, and how often it was asked for. Plain words without a constructor, so that nothing
// runs before main().
struct Switch {
  std::atomic<const char*> name{nullptr};
  std::atomic<std::uint64_t> first{0};  // the passing that is the first to fail
  std::atomic<std::uint64_t> passed{0};

  void turn(const char* to, std::uint64_t first_passing) {
    name.store(nullptr);
    first.store(first_passing);
    passed.store(0);
    name.store(to);
  }
  [[nodiscard]] bool asked(std::string_view by) {
    const char* on = name.load(std::memory_order_relaxed);
    return on != nullptr && by == on && passed.fetch_add(1) >= first.load();
  }
};
inline constinit Switch bug;
inline constinit Switch point;
}  // namespace detail

// Whether this bug is on. Thread: any. Cost: one load where none is on.
[[nodiscard]] inline bool planted(std::string_view name) { return detail::bug.asked(name); }

// Whether the operation is to fail here: the armed point does, from the chosen passing on.
// Thread: any. Cost: one load where none is armed.
[[nodiscard]] inline bool maybe(std::string_view name) { return detail::point.asked(name); }

// A planted bug for the life of this object; `name` outlives it.
class Planted {
 public:
  explicit Planted(const char* name) { detail::bug.turn(name, 0); }
  ~Planted() { detail::bug.turn(nullptr, 0); }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;
  // How often the code came by: a bug that nobody met proves nothing.
  [[nodiscard]] std::uint64_t reached() const { return detail::bug.passed.load(); }
};

// A point that fails, for the life of this object, from its passing number `after` on (0: always).
class Armed {
 public:
  explicit Armed(const char* name, std::uint64_t after = 0) { detail::point.turn(name, after); }
  ~Armed() { detail::point.turn(nullptr, 0); }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;
  [[nodiscard]] std::uint64_t reached() const { return detail::point.passed.load(); }
};

#else

consteval bool planted(std::string_view) { return false; }
consteval bool maybe(std::string_view) { return false; }

#endif

}  // namespace starling::fault
