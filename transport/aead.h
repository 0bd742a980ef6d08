// ChaCha20-Poly1305 (RFC 8439) under one key: what the records of a session are sealed with.
//
// It is libcrypto's, which picks the widest code that the processor runs: twice as fast as
// libsodium's, for the same bytes (node/decisions/0026).
#pragma once

#include "node/base/bytes.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct evp_cipher_ctx_st;

namespace starling::transport {

inline constexpr std::size_t kAeadKeySize = 32;
inline constexpr std::size_t kAeadTagSize = 16;

using AeadKey = std::array<std::byte, kAeadKeySize>;
using AeadNonce = std::array<std::byte, 12>;

// A value type; a copy has the key and makes room for its own schedule. Both are wiped when it
// goes.
//
// Cost:    17 us for 64 KiB, half a microsecond for a small message.
// Thread:  any, one at a time.
class Aead {
 public:
  Aead() = default;
  ~Aead();
  Aead(const Aead& other) : key_(other.key_) {}
  Aead& operator=(const Aead& other);

  void set_key(const AeadKey& key) { key_ = key; }

  // Encrypts `plain` into `out`, which is kAeadTagSize longer and may start at the same place.
  //
  // Rule:    no nonce twice under one key.
  void seal(const AeadNonce& nonce, ByteView ad, ByteView plain, std::span<std::byte> out);

  // Decrypts into `out`, which is kAeadTagSize shorter and may start at the same place; returns
  // whether the bytes were sealed under this key, nonce and `ad`. If not, `out` is zero.
  [[nodiscard]] bool open(const AeadNonce& nonce, ByteView ad, ByteView sealed,
                          std::span<std::byte> out);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  [[nodiscard]] evp_cipher_ctx_st* begin(const AeadNonce& nonce, ByteView ad, bool sealing);

  AeadKey key_{};
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;  // made at the first use
};

}  // namespace starling::transport
