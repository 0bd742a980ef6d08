// What members tell each other about the admin's word: bytes of the messages 0x0003 and 0x0006. The
// others are a list of revocations and the text of a secret.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"
#include "transport/secret.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace starling::node {

// Which secret somebody holds.
struct SecretMark {
  std::uint64_t epoch = 0;
  transport::KeyId key{};

  friend bool operator==(const SecretMark&, const SecretMark&) = default;
};

// 0x0003: what a member has. Told when a session begins, when it changes, and once in answer to
// the other side's.
struct AccessFacts {
  NodeId admin;
  std::uint64_t revocations = 0;  // the number of its list
  SecretMark newest;              // the newest secret that opens its door
  bool rotating = false;          // it waits for others to hold that too

  friend bool operator==(const AccessFacts&, const AccessFacts&) = default;
};

// admin (32), number (u64), epoch (u64), key id (8), rotating (u8: 0 or 1).
[[nodiscard]] Bytes encode_facts(const AccessFacts& facts);
// Errors:  bad_message.
[[nodiscard]] Result<AccessFacts> decode_facts(ByteView bytes);

// 0x0006: members that hold a secret, each by its own word.
struct SecretHeld {
  SecretMark secret;
  std::vector<std::pair<NodeId, Signature>> holders;  // 1 to limits::kSecretHeldMany

  friend bool operator==(const SecretHeld&, const SecretHeld&) = default;
};

// epoch (u64), key id (8), then for each holder id (32) and signature (64).
[[nodiscard]] Bytes encode_held(const SecretHeld& held);
// Errors:  bad_message; the signatures are not checked.
[[nodiscard]] Result<SecretHeld> decode_held(ByteView bytes);

// What a holder signs, domain "starling/held/1": swarm (32), epoch (u64), key id (8).
inline constexpr std::string_view kHeldDomain = "starling/held/1";
[[nodiscard]] Bytes held_part(const SwarmId& swarm, const SecretMark& secret);

}  // namespace starling::node
