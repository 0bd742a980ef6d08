// Identity: this node's Ed25519 key pair, and checking what other nodes signed.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"
#include "transport/secure_memory.h"

#include <filesystem>
#include <string_view>

namespace starling::transport {

// The bytes that a signature covers: "starling/sig/1", the length of the domain, the domain, the
// message. A domain is therefore never a prefix of another statement.
//
// Thread:  any; stateless.
class Ed25519Verifier final : public Verifier {
 public:
  [[nodiscard]] Verdict verify(const NodeId& signer, std::string_view domain, ByteView message,
                               const Signature& signature) const override;
};

// The key pair that is this node. Created once, kept in a file, loaded at every start; used for
// nothing but domain-separated signatures. Owned by the node, which outlives transport and gossip.
//
// Thread:  any; immutable after construction.
class Identity final : public Signer {
 public:
  // A fresh key pair, in memory only.
  [[nodiscard]] static Identity generate();
  // The key pair of a seed: for tests and frozen vectors.
  [[nodiscard]] static Identity from_seed(std::span<const std::byte, 32> seed);

  // The key pair in the file.
  //
  // Errors:  not_found, permission (see read_private_file); corrupt if it is no identity file;
  //          unsupported if it is a newer program's.
  [[nodiscard]] static Result<Identity> load(const std::filesystem::path& path);

  // A fresh key pair in a new file of mode 0600.
  //
  // Errors:  already_exists; permission; disk_full; io_failed.
  [[nodiscard]] static Result<Identity> create(const std::filesystem::path& path);

  // load(), or create() where there is no file yet. Two processes that race get the same key.
  [[nodiscard]] static Result<Identity> load_or_create(const std::filesystem::path& path);

  [[nodiscard]] NodeId id() const override { return id_; }
  [[nodiscard]] Signature sign(std::string_view domain, ByteView message) const override;

 private:
  explicit Identity(std::span<const std::byte, 32> seed);

  SecureBytes<64> secret_;  // libsodium's form: seed, public key
  NodeId id_;
};

}  // namespace starling::transport
