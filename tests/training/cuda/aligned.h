// Memory aligned as a GPU's is: kernels load whole packs of values. And whether two such hold the
// same, or about the same.
#pragma once

#include "training/cuda/sgd.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <new>
#include <span>
#include <vector>

namespace starling::training::cuda {

template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <class U>
  explicit AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* values, std::size_t) { ::operator delete(values, kAlignment); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

template <class A, class B>
bool same_bytes(const A& a, const B& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

// Largest difference, as a share of the largest value.
template <class A, class B>
double apart(const A& a, const B& b) {
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(widened(a[i]));
    most = std::max(most, std::abs(x - static_cast<double>(widened(b[i]))));
    largest = std::max(largest, std::abs(x));
  }
  return largest == 0 ? most : most / largest;
}

}  // namespace starling::training::cuda
