// SecureBytes: a key's place in memory, locked, left out of core dumps, wiped when it goes.
#pragma once

#include "node/base/bytes.h"

#include <cstddef>
#include <memory>
#include <span>

namespace starling::transport {

// N bytes from sodium_malloc, zero at first. Move-only, because every copy of a key is one more
// place to lose it; a moved-from object has no bytes.
//
// Cost: one page with guard pages around it, so for long-lived keys only.
template <std::size_t N>
class SecureBytes;

namespace secure_detail {

[[nodiscard]] std::byte* allocate(std::size_t size);
void free(std::byte* bytes);
struct Deleter {
  void operator()(std::byte* bytes) const { free(bytes); }
};

}  // namespace secure_detail

template <std::size_t N>
class SecureBytes {
 public:
  SecureBytes() : bytes_(secure_detail::allocate(N)) {}

  [[nodiscard]] std::span<std::byte, N> span() { return std::span<std::byte, N>(bytes_.get(), N); }
  [[nodiscard]] std::span<const std::byte, N> view() const {
    return std::span<const std::byte, N>(bytes_.get(), N);
  }

 private:
  std::unique_ptr<std::byte[], secure_detail::Deleter> bytes_;
};

// Overwrites bytes in a way that the compiler keeps.
void wipe(std::span<std::byte> bytes);

}  // namespace starling::transport
