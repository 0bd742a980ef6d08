// AdminKey: the key pair whose word decides who belongs to a swarm. Kept off the nodes.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "transport/identity.h"

#include <cstdint>
#include <filesystem>

namespace starling::transport {

// An Ed25519 key pair and the swarm that it is for: no certificate of one swarm opens another.
//
// File:    "starling-admin 1", "swarm <hex>", "key <base64 of the seed>", mode 0600.
// Thread:  any; immutable.
struct AdminKey {
  SwarmId swarm;
  Identity key;

  // A fresh key in a new file.
  //
  // Errors:  those of create_private_file.
  [[nodiscard]] static Result<AdminKey> create(const std::filesystem::path& path,
                                               const SwarmId& swarm);
  // Errors:  those of read_private_file; corrupt if it is no admin key.
  [[nodiscard]] static Result<AdminKey> load(const std::filesystem::path& path);
};

// A serial that no other certificate of any admin has, for all that chance can do; the low 16 bits
// are zero, so that an inviter's range can begin there.
[[nodiscard]] std::uint64_t fresh_serial();
// An inviter's own serial and those that it may give away, which follow it.
inline constexpr std::uint32_t kSerialsOfAnInviter = 65'536;

}  // namespace starling::transport
