// BLAKE2b-256, the one hash of the project outside the Noise handshake. What has the size of a
// model is hashed as a tree of it: tree_hash.h.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace starling {

// Hashes bytes that come in pieces.
//
// Cost:    0.74 GB/s on one core.
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

// The first eight bytes of a hash as a number: for sorting, choosing and short comparisons.
[[nodiscard]] std::uint64_t first_u64(const Hash& hash);

}  // namespace starling
