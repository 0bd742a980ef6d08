// The Noise protocol framework, revision 34, for the suite 25519_ChaChaPoly_BLAKE2b: an interpreter
// of handshake patterns on the primitives of libsodium and, for the cipher, libcrypto. No socket,
// no policy.
//
// The wire uses XX (open swarms) and XXpsk0 (secret). The other fundamental patterns and psk
// positions exist because public vectors test them, and every vector that passes is evidence about
// the two that we use.
//
// Source:  Trevor Perrin, "The Noise Protocol Framework", revision 34, 2018-07-11.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"
#include "transport/aead.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::transport::noise {

inline constexpr std::size_t kKeySize = 32;   // DHLEN, and the cipher's key
inline constexpr std::size_t kHashSize = 64;  // HASHLEN of BLAKE2b
inline constexpr std::size_t kTagSize = kAeadTagSize;
inline constexpr std::size_t kMaxMessage = 65'535;

using Key = std::array<std::byte, kKeySize>;
using NoiseHash = std::array<std::byte, kHashSize>;

// An X25519 key pair. Wiped when it goes.
class KeyPair {
 public:
  [[nodiscard]] static KeyPair generate();
  [[nodiscard]] static KeyPair from_secret(const Key& secret);
  ~KeyPair();
  KeyPair(const KeyPair&) = default;
  KeyPair& operator=(const KeyPair&) = default;

  [[nodiscard]] const Key& public_key() const { return public_; }

  // DH(secret, other's public key).
  //
  // Errors:  bad_message for a low-order point: the result would not depend on our secret.
  [[nodiscard]] Result<Key> shared_with(const Key& other) const;

 private:
  KeyPair() = default;

  Key secret_{};
  Key public_{};
};

// CipherState: a key and a counter that is the nonce. Without a key it passes bytes through.
//
// A value type, wiped when it goes. Thread: any, one at a time.
class CipherState {
 public:
  void set_key(const Key& key);
  // What encryption adds: 16 with a key, 0 without.
  [[nodiscard]] std::size_t overhead() const { return has_key_ ? kTagSize : 0; }

  // Encrypts `plain` into `out`, which has plain.size() + overhead() bytes and may start at the
  // same place. The counter moves on.
  void encrypt(ByteView ad, ByteView plain, std::span<std::byte> out);

  // Decrypts into `out`, which has cipher.size() - overhead() bytes and may start at the same
  // place.
  //
  // Errors:  bad_message if the bytes are too few or were not encrypted under this key, counter and
  //          `ad`; the counter stays, `out` is zero or was not touched.
  [[nodiscard]] Result<void> decrypt(ByteView ad, ByteView cipher, std::span<std::byte> out);

  // Replaces the key by one from which it cannot be found (section 4.2 of the source). The counter
  // goes on.
  void rekey();

 private:
  Aead aead_;
  std::uint64_t nonce_ = 0;
  bool has_key_ = false;
};

// SymmetricState: chaining key, transcript hash and cipher of a handshake.
class SymmetricState {
 public:
  explicit SymmetricState(std::string_view protocol_name);
  ~SymmetricState();
  SymmetricState(const SymmetricState&) = default;
  SymmetricState& operator=(const SymmetricState&) = default;

  void mix_key(ByteView input);
  void mix_hash(ByteView input);
  void mix_key_and_hash(ByteView input);
  [[nodiscard]] const NoiseHash& hash() const { return hash_; }
  [[nodiscard]] std::size_t overhead() const { return cipher_.overhead(); }

  // Appends the encrypted bytes to `out`.
  void encrypt_and_hash(ByteView plain, Bytes& out);
  [[nodiscard]] Result<Bytes> decrypt_and_hash(ByteView cipher);

  // The ciphers of initiator-to-responder and responder-to-initiator.
  [[nodiscard]] std::pair<CipherState, CipherState> split() const;

 private:
  CipherState cipher_;
  NoiseHash chaining_{};
  NoiseHash hash_{};
};

enum class Role : std::uint8_t { initiator, responder };

enum class Token : std::uint8_t { e, s, ee, es, se, ss, psk };

// A handshake pattern: whose static keys are known before, and the tokens of each message, the
// initiator's first.
struct Pattern {
  bool initiator_known = false;
  bool responder_known = false;
  std::size_t psks = 0;
  std::vector<std::vector<Token>> messages;

  // One message only, from the initiator; afterwards only the initiator sends.
  [[nodiscard]] bool one_way() const { return messages.size() == 1; }

  // The pattern that a name such as "XX" or "XXpsk0+psk3" stands for.
  //
  // Errors:  unsupported for names outside the fundamental patterns and psk modifiers.
  [[nodiscard]] static Result<Pattern> parse(std::string_view name);
};

// What a handshake starts from.
struct HandshakeSetup {
  // "Noise_XXpsk0_25519_ChaChaPoly_BLAKE2b"
  std::string protocol;
  Role role = Role::initiator;
  Bytes prologue;
  std::optional<KeyPair> own_static;
  std::optional<KeyPair> own_ephemeral;  // fixed by tests only; generated when absent
  std::optional<Key> remote_static;
  std::vector<Key> psks;  // as many as the pattern has psk tokens
};

// HandshakeState: writes and reads the messages of a pattern in turn.
//
//              | begin_write, end_write        | read_message                 | split
//   our turn   | sends message n, n+1          | CHECK                        | CHECK
//   their turn | CHECK                         | n+1; on error: failed        | CHECK
//   done       | CHECK                         | CHECK                        | both ciphers
//   failed     | CHECK                         | CHECK                        | CHECK
//
// Used by one connection, dropped when the connection has its ciphers. Thread: any, one at a time.
class HandshakeState {
 public:
  // Errors:  unsupported for a suite or pattern that is not implemented; bad_argument if a key that
  //          the pattern needs is missing.
  [[nodiscard]] static Result<HandshakeState> make(HandshakeSetup setup);
  ~HandshakeState();
  HandshakeState(const HandshakeState&) = delete;
  HandshakeState& operator=(const HandshakeState&) = delete;
  HandshakeState(HandshakeState&&) noexcept = default;
  HandshakeState& operator=(HandshakeState&&) noexcept = default;

  [[nodiscard]] bool our_turn() const;
  [[nodiscard]] bool done() const { return next_ == pattern_.messages.size(); }

  // Writing has two halves so that the payload can sign the transcript before it: the first returns
  // the message up to its payload, the second appends the payload and passes the turn.
  [[nodiscard]] Result<Bytes> begin_write();
  void end_write(ByteView payload, Bytes& message);
  [[nodiscard]] Result<Bytes> write_message(ByteView payload);

  // The payload of the other side's next message.
  //
  // Errors:  bad_message, and the handshake has failed for good.
  [[nodiscard]] Result<Bytes> read_message(ByteView message);

  // The transcript hash as it was before the payload of the message last begun or read.
  [[nodiscard]] const NoiseHash& hash_before_payload() const { return before_payload_; }
  // The transcript hash now; after the last message, the session's name on both sides.
  [[nodiscard]] const NoiseHash& hash() const { return symmetric_.hash(); }
  // The other side's static key; only after the message that carries it.
  [[nodiscard]] const std::optional<Key>& remote_static() const { return remote_static_; }

  // The ciphers for what this side sends and receives. In a one-way pattern only the initiator's
  // direction may be used.
  struct Ciphers {
    CipherState send;
    CipherState receive;
  };
  [[nodiscard]] Ciphers split() const;

 private:
  HandshakeState(HandshakeSetup setup, Pattern pattern);

  [[nodiscard]] Result<void> mix_dh(Token token);
  [[nodiscard]] Result<void> read_tokens(ByteView& rest);

  HandshakeSetup setup_;
  Pattern pattern_;
  SymmetricState symmetric_;
  std::optional<Key> remote_static_;
  std::optional<Key> remote_ephemeral_;
  NoiseHash before_payload_{};
  std::size_t next_ = 0;      // index of the next message
  std::size_t next_psk_ = 0;  // index of the next psk token
  bool failed_ = false;
};

}  // namespace starling::transport::noise
