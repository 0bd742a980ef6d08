#include "node/base/hash.h"

#include "node/base/check.h"

#include <sodium.h>

#include <array>
#include <cstring>

namespace starling {

struct Hasher::State {
  crypto_generichash_blake2b_state sodium;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  // sodium_init() is idempotent and safe to call from several threads; it selects the fast code
  // paths.
  STARLING_CHECK_OP(sodium_init(), >=, 0);
  STARLING_CHECK(crypto_generichash_blake2b_init(&state_->sodium, nullptr, 0, 32) == 0);
}

Hasher::~Hasher() = default;

Hasher::Hasher(const Hasher& other) : state_(std::make_unique<State>(*other.state_)) {}

Hasher& Hasher::operator=(const Hasher& other) {
  *state_ = *other.state_;
  return *this;
}

Hasher& Hasher::add(ByteView bytes) {
  crypto_generichash_blake2b_update(
      &state_->sodium, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return *this;
}

Hasher& Hasher::add(std::uint64_t number) {
  std::array<std::byte, 8> raw;
  std::memcpy(raw.data(), &number, sizeof(number));
  return add(raw);
}

Hash Hasher::finish() {
  Hash hash;
  crypto_generichash_blake2b_final(
      &state_->sodium, reinterpret_cast<unsigned char*>(hash.bytes.data()), hash.bytes.size());
  return hash;
}

Hash hash_of(ByteView bytes) { return Hasher{}.add(bytes).finish(); }

std::uint64_t first_u64(const Hash& hash) {
  std::uint64_t value = 0;
  std::memcpy(&value, hash.bytes.data(), sizeof(value));
  return value;
}

}  // namespace starling
