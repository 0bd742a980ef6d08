// How matrices that are packed for products lie in the cache.
#pragma once

#include <cstddef>

namespace starling::training {

// Rows of a left matrix that are packed together: of all of them, a line of the cache has what one
// step of a product multiplies.
constexpr std::size_t kGroup = 16;

// From one packed block to the next: a line more than the values, or what is written to all of
// them at a time would meet in the same few sets.
template <class T>
constexpr std::size_t stride_of(std::size_t values) {
  return values + 64 / sizeof(T);
}

}  // namespace starling::training
