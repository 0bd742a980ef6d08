#include "transport/secure_memory.h"

#include "node/base/check.h"

#include <sodium.h>

namespace starling::transport {
namespace secure_detail {

std::byte* allocate(std::size_t size) {
  STARLING_CHECK_OP(sodium_init(), >=, 0);
  auto* bytes = static_cast<std::byte*>(sodium_malloc(size));
  STARLING_CHECK(bytes != nullptr);
  sodium_memzero(bytes, size);
  return bytes;
}

void free(std::byte* bytes) { sodium_free(bytes); }

}  // namespace secure_detail

void wipe(std::span<std::byte> bytes) { sodium_memzero(bytes.data(), bytes.size()); }

}  // namespace starling::transport
