// CHECK and DCHECK: statements that our own code is right. Never for peer input, files or flags.
#pragma once

#include <sstream>
#include <string>

namespace starling {

// Prints "file:line: CHECK failed: text (operands)" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* text,
                               const std::string& operands);

namespace check_detail {

template <class T>
std::string show(const T& value) {
  if constexpr (requires(std::ostream& out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else {
    return "?";
  }
}

}  // namespace check_detail

}  // namespace starling

// doctest has a CHECK of its own; in test files that one wins, so ours carries the long name too.
#define STARLING_CHECK(condition) \
  ((condition) ? void() : ::starling::check_failed(__FILE__, __LINE__, #condition, ""))

#define STARLING_CHECK_OP(a, op, b)                                               \
  do {                                                                            \
    const auto& check_a = (a);                                                    \
    const auto& check_b = (b);                                                    \
    if (!(check_a op check_b))                                                    \
      ::starling::check_failed(__FILE__, __LINE__, #a " " #op " " #b,             \
                               ::starling::check_detail::show(check_a) + " vs " + \
                                   ::starling::check_detail::show(check_b));      \
  } while (false)

// DCHECK: for inner loops; compiled out with NDEBUG.
#ifdef NDEBUG
#define STARLING_DCHECK(condition) ((void)0)
#else
#define STARLING_DCHECK(condition) STARLING_CHECK(condition)
#endif
