// Member certificates: what an admin, or an inviter in the admin's name, says about one node.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"
#include "transport/limits.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace starling::transport {

enum class MemberRole : std::uint8_t {
  member = 0,   // may have sessions
  inviter = 1,  // may also issue certificates for members, by invites
};

[[nodiscard]] std::string_view name_of(MemberRole role);

// The serials that an inviter may give away: count of them from first on.
struct SerialRange {
  std::uint64_t first = 0;
  std::uint32_t count = 0;

  [[nodiscard]] bool contains(std::uint64_t serial) const {
    return serial >= first && serial - first < count;
  }
  friend bool operator==(const SerialRange&, const SerialRange&) = default;
};

// One certificate. It says nothing about whose swarm it is for: that is in what its signature
// covers, so it is void in every other swarm.
struct MemberCertificate {
  MemberRole role = MemberRole::member;
  NodeId node;
  std::uint64_t serial = 0;
  std::uint32_t from_s = 0;   // of the calendar, seconds since 1970
  std::uint32_t until_s = 0;  // not valid any more at this second
  SerialRange issues;         // an inviter's; nothing in a member's
  Signature signature;

  friend bool operator==(const MemberCertificate&, const MemberCertificate&) = default;
};

// A node's certificate and, where not the admin but an inviter signed it, the inviter's, which the
// admin signed: two links at most (rulings 32).
struct CertificateChain {
  MemberCertificate own;
  std::optional<MemberCertificate> issuer;

  friend bool operator==(const CertificateChain&, const CertificateChain&) = default;
};

// How far the clocks of two machines may differ before a certificate is refused for it.
inline constexpr std::uint32_t kCalendarGrace = 5 * 60;

// The bytes of a certificate's signature, domain "starling/member-cert/1": swarm id (32), role
// (u8), node (32), serial (u64), from (u32), until (u32) and, for an inviter, first (u64) and count
// (u32) of its range.
[[nodiscard]] Bytes signed_part(const MemberCertificate& certificate, const SwarmId& swarm);
void sign(MemberCertificate& certificate, const SwarmId& swarm, const Signer& signer);

// version (u8: 1) and, for the own certificate first, role (u8), node (32; not for the own one: it
// is the node that shows it), serial (u64), from (u32), until (u32), the range of an inviter (u64,
// u32), signature (64). At most limits::kMaxCertificate bytes.
[[nodiscard]] Bytes encode_chain(const CertificateChain& chain);
// Errors:  bad_message, saying what is wrong; too_large.
// Tested:  tests/fuzz/transport_certificate_fuzz.cc.
[[nodiscard]] Result<CertificateChain> decode_chain(const NodeId& shown_by, ByteView bytes);

// Why a chain does not make its node a member of the swarm of this admin at this time, as a part of
// a sentence ("expired 3 h ago"); nothing if it does. Whether it was revoked is another question.
//
// Cost:    two signatures at the most, 0.07 ms.
// Thread:  any.
[[nodiscard]] std::optional<std::string> fault_in(const CertificateChain& chain,
                                                  const NodeId& admin, const SwarmId& swarm,
                                                  std::uint64_t now_s);

// What a node keeps in DIR/member.cert: its certificate, and whose word counts here.
struct Membership {
  SwarmId swarm;
  NodeId admin;  // the admin's public key
  CertificateChain chain;

  friend bool operator==(const Membership&, const Membership&) = default;
};

// "starling-member 1", "swarm <hex>", "admin <hex>", "node <hex>", "certificate <base64>".
[[nodiscard]] std::string print_membership(const Membership& membership);
// The membership in a text whose signatures hold; whether it is valid by now is not asked.
//
// Errors:  corrupt, bad_signature, too_large.
// Tested:  tests/fuzz/transport_certificate_fuzz.cc.
[[nodiscard]] Result<Membership> parse_membership(std::string_view text);

}  // namespace starling::transport
