// Signatures without cryptography: good enough to be told from wrong ones in a test.
#pragma once

#include "node/base/hash.h"
#include "node/base/signing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace starling::gossip::consensus::testing {

inline Signature fake_signature(const NodeId& id, std::string_view domain, ByteView message) {
  Hasher hasher;
  hasher.add(id.view()).add(domain).add(message);
  const Hash hash = hasher.finish();
  Signature signature;
  std::ranges::copy(hash.bytes, signature.bytes.begin());
  std::ranges::copy(hash.bytes, signature.bytes.begin() + 32);
  return signature;
}

class FakeSigner final : public Signer {
 public:
  explicit FakeSigner(const NodeId& id) : id_(id) {}
  [[nodiscard]] NodeId id() const override { return id_; }
  [[nodiscard]] Signature sign(std::string_view domain, ByteView message) const override {
    return fake_signature(id_, domain, message);
  }

 private:
  NodeId id_;
};

class FakeVerifier final : public Verifier {
 public:
  mutable std::size_t asked = 0;  // signatures that were looked at
  [[nodiscard]] Verdict verify(const NodeId& signer, std::string_view domain, ByteView message,
                               const Signature& signature) const override {
    ++asked;
    return signature == fake_signature(signer, domain, message) ? Verdict::valid : Verdict::invalid;
  }
};

// An id as good as a public key: a hash of a number.
inline NodeId node_id(std::uint64_t number) {
  Hasher hasher;
  const Hash hash = hasher.add("node").add(number).finish();
  return *NodeId::from(hash.view());
}

}  // namespace starling::gossip::consensus::testing
