// Sizes with their unit in the literal.
#pragma once

#include <cstddef>

namespace starling::units {

consteval std::size_t operator""_KiB(unsigned long long n) {
  return static_cast<std::size_t>(n) << 10;
}
consteval std::size_t operator""_MiB(unsigned long long n) {
  return static_cast<std::size_t>(n) << 20;
}
consteval std::size_t operator""_GiB(unsigned long long n) {
  return static_cast<std::size_t>(n) << 30;
}

}  // namespace starling::units
