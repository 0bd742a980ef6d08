// The swarm secret, and the keys that handshakes derive from it.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"
#include "transport/secure_memory.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::transport {

// Who may join, and what a handshake is keyed with.
enum class Mode : std::uint8_t {
  open = 0,    // anyone with an address; the swarm is its name
  secret = 1,  // whoever holds the swarm secret
  invite = 2,  // a newcomer that holds an invite dials the node that made it
};

[[nodiscard]] std::string_view name_of(Mode mode);

using KeyId = std::array<std::byte, 8>;
// By which a preamble names a pre-shared key: the beginning of a hash of it.
[[nodiscard]] KeyId id_of_key(std::span<const std::byte, 32> psk);

// The admin's word that a secret is the next one of its swarm.
struct SecretOrder {
  std::uint64_t revocations = 0;  // whoever has no list with this number hands the secret to nobody
  Signature signature;

  friend bool operator==(const SecretOrder&, const SecretOrder&) = default;
};

// 32 secret bytes that all members of a swarm share, with their place in the order of rotations.
//
// The SwarmId is the hash of the swarm's first secret and stays when the secret changes. Owned by
// whoever loaded it; move-only. Thread: any.
class SwarmSecret {
 public:
  // Fresh random bytes, epoch 0, of a new swarm.
  [[nodiscard]] static SwarmSecret generate();
  // Fresh random bytes for the same swarm, one epoch later.
  [[nodiscard]] SwarmSecret rotated() const;
  // The same with the admin's order, which lets members hand it on inside their sessions. The
  // signature covers, domain "starling/rotate/1": swarm (32), epoch (u64), BLAKE2b-256 of the
  // secret (32), number of the list (u64).
  [[nodiscard]] SwarmSecret rotated(const Signer& admin, std::uint64_t revocations) const;
  // Whether it has an order that this admin signed.
  [[nodiscard]] bool ordered_by(const NodeId& admin) const;

  // The secret that everybody gets from the same passphrase and swarm name, epoch 0, by Argon2id;
  // the name is the salt, so that one dictionary does not open all swarms.
  //
  // Errors:  bad_argument for a passphrase that is too short or too uniform, with the remedy;
  //          no_memory.
  // Cost:    about 0.1 s and 64 MiB, on purpose.
  [[nodiscard]] static Result<SwarmSecret> from_passphrase(std::string_view passphrase,
                                                           std::string_view swarm_name);

  // The secret in a text: either the bare base64 of 32 bytes (epoch 0) or the lines that print()
  // writes.
  //
  // Errors:  corrupt.
  [[nodiscard]] static Result<SwarmSecret> parse(std::string_view text);
  // "starling-secret 1", "swarm <hex>", "epoch <n>", "secret <base64>" and, with an order,
  // "revocations <n>", "order <base64>". Wipe it after use.
  [[nodiscard]] std::string print() const;

  // Errors:  those of read_private_file, with mounted files accepted; corrupt.
  [[nodiscard]] static Result<SwarmSecret> load(const std::filesystem::path& path);
  // Errors:  those of create_private_file.
  [[nodiscard]] Result<void> create(const std::filesystem::path& path) const;

  [[nodiscard]] const SwarmId& swarm() const { return swarm_; }
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  [[nodiscard]] std::span<const std::byte, 32> bytes() const { return bytes_.view(); }
  [[nodiscard]] const std::optional<SecretOrder>& order() const { return order_; }

 private:
  SwarmSecret() = default;
  [[nodiscard]] Bytes ordered_part(std::uint64_t revocations) const;

  SwarmId swarm_;
  std::uint64_t epoch_ = 0;
  SecureBytes<32> bytes_;
  std::optional<SecretOrder> order_;
};

// The pre-shared key of one epoch, as handshakes use it, with the id by which a peer names it.
struct HandshakeKey {
  std::uint64_t epoch = 0;
  KeyId id{};
  SecureBytes<32> psk;
};

// What transport needs to know about the swarm: its mode, its id and the keys it accepts.
//
// Rule:    dials use current(), accepted connections may name any of {next, current, previous}: a
//          rotation reaches the nodes one after the other. An open swarm has none.
class SwarmKey {
 public:
  // A swarm that anyone may join: its id is the hash of its name.
  [[nodiscard]] static SwarmKey open(std::string_view swarm_name);
  [[nodiscard]] static SwarmKey of(const SwarmSecret& current);
  // A newcomer's, until it has the secret: it can dial the node that made the invite, and accepts
  // nobody.
  [[nodiscard]] static SwarmKey invited(const SwarmId& swarm,
                                        std::span<const std::byte, 32> one_time_key);

  // While a rotation is under way: accepted connections may name this secret too. It belongs to the
  // same swarm, and there are two at most: the next one and the previous one (a caller's bug
  // otherwise).
  void also_accept(const SwarmSecret& other);

  [[nodiscard]] Mode mode() const { return mode_; }
  [[nodiscard]] const SwarmId& swarm() const { return swarm_; }
  // Null in an open swarm.
  [[nodiscard]] const HandshakeKey* current() const { return current_ ? &*current_ : nullptr; }
  // Null if no accepted key has this id.
  [[nodiscard]] const HandshakeKey* find(const KeyId& id) const;

 private:
  SwarmKey() = default;

  Mode mode_ = Mode::open;
  SwarmId swarm_;
  std::optional<HandshakeKey> current_;
  std::vector<HandshakeKey> others_;
};

}  // namespace starling::transport
