// What an admin takes back: certificates by their serial, nodes by their id.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"
#include "transport/limits.h"
#include "transport/member_certificate.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace starling::transport {

// The whole of it, in one list that the admin signed. A list with a higher number replaces one with
// a lower number; an admin makes each from the one before, so it only grows.
struct Revocations {
  std::uint64_t number = 0;  // 0: nothing was ever revoked, and nobody signed that
  std::set<std::uint64_t> serials;
  std::set<NodeId> nodes;
  Signature signature;

  friend bool operator==(const Revocations&, const Revocations&) = default;

  // Why this node is out, as a part of a sentence; nothing if it is not. A certificate is void with
  // its inviter's: whoever stole an inviter's key could date what it signs before the revocation.
  [[nodiscard]] std::optional<std::string> fault_in(const NodeId& node,
                                                    const CertificateChain* chain) const;
  // Whether this list takes the place of the other. Of two lists with one number, an admin's
  // mistake, everybody who meets both keeps the same.
  [[nodiscard]] bool replaces(const Revocations& other) const;
};

// The bytes of the signature: swarm id (32), then the encoded list without its signature.
inline constexpr std::string_view kRevokedDomain = "starling/revoked/1";
[[nodiscard]] Bytes revoked_part(const Revocations& list, const SwarmId& swarm);
void sign(Revocations& list, const SwarmId& swarm, const Signer& admin);
[[nodiscard]] bool signed_by(const NodeId& admin, const Revocations& list, const SwarmId& swarm);

// version (u8: 1), number (u64), how many serials and nodes (u32 each), the serials (u64) and the
// nodes (32) in increasing order, signature (64). At most limits::kMaxRevocations bytes.
//
// Errors:  too_large for a list that no message could carry.
[[nodiscard]] Result<Bytes> encode_revocations(const Revocations& list);
// Errors:  bad_message, too_large. Nothing is reserved for a count before so many bytes are there.
// Cost:    one pass; the signature is not checked.
// Tested:  tests/fuzz/transport_certificate_fuzz.cc.
[[nodiscard]] Result<Revocations> decode_revocations(ByteView bytes);

// The list as a file holds it: one line of base64.
//
// Errors:  too_large.
[[nodiscard]] Result<std::string> print_revocations(const Revocations& list);
// Errors:  corrupt, too_large. The signature is not checked.
[[nodiscard]] Result<Revocations> parse_revocations(std::string_view text);
inline constexpr std::size_t kMaxRevocationsText = limits::kMaxRevocations * 4 / 3 + 64;

}  // namespace starling::transport
