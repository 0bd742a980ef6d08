// BLAKE2b-256, the one hash of the project outside the Noise handshake, and a checksum.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace starling {

// Hashes bytes that come in pieces.
//
// Cost:    0.78 GB/s on one core: model-sized input belongs on the pool.
// Thread:  any; one thread at a time.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher& other);
  Hasher& operator=(const Hasher& other);
  Hasher(Hasher&&) noexcept = default;
  Hasher& operator=(Hasher&&) noexcept = default;

  Hasher& add(ByteView bytes);
  Hasher& add(std::string_view text) { return add(as_bytes(text)); }
  // Little-endian, eight bytes.
  Hasher& add(std::uint64_t number);

  // The hash of everything added so far; the hasher is used up.
  [[nodiscard]] Hash finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] Hash hash_of(ByteView bytes);

// Tells bytes apart that differ by accident: Poly1305 under `key`, which such a difference knows
// nothing of, takes two of them for equal with a chance below their length / 2^100. Whoever knows
// the key can make bytes of equal checksum: no substitute for a hash where somebody gains by that.
//
// Cost:    5.1 GB/s on one core where a Hasher does 0.78.
// Thread:  any.
using Checksum = std::array<std::byte, 16>;
[[nodiscard]] Checksum checksum_of(const Hash& key, ByteView bytes);

// The first eight bytes of a hash as a number: for sorting, choosing and short comparisons.
[[nodiscard]] std::uint64_t first_u64(const Hash& hash);

}  // namespace starling
