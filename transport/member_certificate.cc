#include "transport/member_certificate.h"

#include "node/base/bytes.h"
#include "node/base/check.h"
#include "transport/base64.h"
#include "transport/identity.h"
#include "transport/key_text.h"

#include <algorithm>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::string_view kDomain = "starling/member-cert/1";
constexpr std::string_view kMemberLine = "starling-member";
constexpr std::uint8_t kCertificateVersion = 1;

std::unexpected<Error> bad_certificate(std::string_view what) {
  return fail(Errc::bad_message, Doing::handshaking, "a certificate " + std::string(what));
}

void write_facts(ByteWriter& writer, const MemberCertificate& certificate) {
  writer.write(certificate.serial);
  writer.write(certificate.from_s);
  writer.write(certificate.until_s);
  if (certificate.role != MemberRole::inviter) return;
  writer.write(certificate.issues.first);
  writer.write(certificate.issues.count);
}

// `node` is nothing where the bytes name it.
Result<MemberCertificate> read_certificate(ByteReader& reader, const NodeId* node) {
  MemberCertificate certificate;
  const auto role = reader.read<std::uint8_t>();
  if (!role || *role > static_cast<std::uint8_t>(MemberRole::inviter))
    return bad_certificate("has no role");
  certificate.role = static_cast<MemberRole>(*role);
  if (node != nullptr) {
    certificate.node = *node;
  } else if (const auto raw = reader.take(32)) {
    certificate.node = *NodeId::from(*raw);
  }
  const auto serial = reader.read<std::uint64_t>();
  const auto from = reader.read<std::uint32_t>();
  const auto until = reader.read<std::uint32_t>();
  if (!until) return bad_certificate("is too short");
  certificate.serial = *serial;
  certificate.from_s = *from;
  certificate.until_s = *until;
  if (certificate.role == MemberRole::inviter) {
    const auto first = reader.read<std::uint64_t>();
    const auto count = reader.read<std::uint32_t>();
    if (!count) return bad_certificate("is too short");
    certificate.issues = {*first, *count};
  }
  const auto signature = reader.take(64);
  if (!signature) return bad_certificate("is too short");
  certificate.signature = *Signature::from(*signature);
  return certificate;
}

bool signed_by(const NodeId& signer, const MemberCertificate& certificate, const SwarmId& swarm) {
  return Ed25519Verifier{}.verify(signer, kDomain, signed_part(certificate, swarm),
                                  certificate.signature) == Verdict::valid;
}

std::optional<std::string> fault_in_signatures(const CertificateChain& chain, const NodeId& admin,
                                               const SwarmId& swarm) {
  const NodeId& signer = chain.issuer ? chain.issuer->node : admin;
  if (!signed_by(signer, chain.own, swarm))
    return chain.issuer ? "was not signed by the inviter that it names"
                        : "was not signed by this swarm's admin for this node";
  if (!chain.issuer) return std::nullopt;
  if (!signed_by(admin, *chain.issuer, swarm))
    return "comes from an inviter whose own was not signed by this swarm's admin";
  if (chain.issuer->role != MemberRole::inviter) return "was signed by a node that is no inviter";
  if (chain.own.role != MemberRole::member) return "makes an inviter, which only the admin can do";
  if (!chain.issuer->issues.contains(chain.own.serial))
    return "has a serial that its inviter may not give";
  return std::nullopt;
}

std::optional<std::string> fault_in_time(const MemberCertificate& certificate,
                                         std::uint64_t now_s) {
  if (now_s + kCalendarGrace < certificate.from_s)
    return "is valid only in " + std::to_string(certificate.from_s - now_s) + " s";
  if (now_s >= std::uint64_t{certificate.until_s} + kCalendarGrace)
    return "expired " + std::to_string(now_s - certificate.until_s) + " s ago";
  return std::nullopt;
}

}  // namespace

std::string_view name_of(MemberRole role) {
  return role == MemberRole::inviter ? "inviter" : "member";
}

Bytes signed_part(const MemberCertificate& certificate, const SwarmId& swarm) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.append(swarm.view());
  writer.write(static_cast<std::uint8_t>(certificate.role));
  writer.append(certificate.node.view());
  write_facts(writer, certificate);
  return bytes;
}

void sign(MemberCertificate& certificate, const SwarmId& swarm, const Signer& signer) {
  certificate.signature = signer.sign(kDomain, signed_part(certificate, swarm));
}

Bytes encode_chain(const CertificateChain& chain) {
  Bytes bytes;
  ByteWriter writer(bytes);
  const auto write = [&](const MemberCertificate& certificate, bool named) {
    writer.write(static_cast<std::uint8_t>(certificate.role));
    if (named) writer.append(certificate.node.view());
    write_facts(writer, certificate);
    writer.append(certificate.signature.view());
  };
  writer.write(kCertificateVersion);
  write(chain.own, false);
  if (chain.issuer) write(*chain.issuer, true);
  STARLING_CHECK_OP(bytes.size(), <=, limits::kMaxCertificate);
  return bytes;
}

Result<CertificateChain> decode_chain(const NodeId& shown_by, ByteView bytes) {
  if (bytes.size() > limits::kMaxCertificate)
    return fail(Errc::too_large, Doing::handshaking,
                "a certificate of " + std::to_string(bytes.size()) + " bytes");
  ByteReader reader(bytes);
  const auto version = reader.read<std::uint8_t>();
  if (!version || *version != kCertificateVersion)
    return bad_certificate("has a version other than 1");
  CertificateChain chain;
  TRY(chain.own, read_certificate(reader, &shown_by));
  if (reader.left() > 0) {
    TRY(chain.issuer, read_certificate(reader, nullptr));
  }
  if (reader.left() > 0) return bad_certificate("has bytes behind its end");
  // Two inviters' would not fit their bound, and no such chain is valid.
  if (chain.issuer && chain.own.role != MemberRole::member)
    return bad_certificate("has two inviters");
  return chain;
}

std::optional<std::string> fault_in(const CertificateChain& chain, const NodeId& admin,
                                    const SwarmId& swarm, std::uint64_t now_s) {
  if (auto fault = fault_in_time(chain.own, now_s)) return fault;
  if (chain.issuer)
    if (const auto fault = fault_in_time(*chain.issuer, now_s))
      return "comes from an inviter whose own " + *fault;
  return fault_in_signatures(chain, admin, swarm);
}

std::string print_membership(const Membership& membership) {
  return std::string(kMemberLine) + " 1\nswarm " + to_hex(membership.swarm.view()) + "\nadmin " +
         to_hex(membership.admin.view()) + "\nnode " + to_hex(membership.chain.own.node.view()) +
         "\ncertificate " + encode_base64(encode_chain(membership.chain)) + "\n";
}

Result<Membership> parse_membership(std::string_view text) {
  const auto bad_text = [](std::string_view what) {
    return fail(Errc::corrupt, Doing::reading_file, "the certificate " + std::string(what));
  };
  if (text.size() > limits::kMaxMembershipText)
    return fail(Errc::too_large, Doing::reading_file, "the certificate is too long");
  if (take_line(text, kMemberLine) != "1") return bad_text("has no line 'starling-member 1'");
  const auto swarm = take_hex_line<SwarmId>(text, "swarm");
  const auto admin = swarm ? take_hex_line<NodeId>(text, "admin") : std::nullopt;
  const auto node = admin ? take_hex_line<NodeId>(text, "node") : std::nullopt;
  if (!node) return bad_text("has no valid lines 'swarm', 'admin' and 'node'");
  const auto encoded = take_line(text, "certificate");
  if (text.find_first_not_of(" \t\r\n") != std::string_view::npos)
    return bad_text("has further lines");
  const auto bytes = encoded ? decode_base64(*encoded) : std::nullopt;
  if (!bytes) return bad_text("has no valid line 'certificate'");
  auto chain = decode_chain(*node, *bytes);
  if (!chain) return fail(Errc::corrupt, Doing::reading_file, chain.error().detail);
  if (const auto fault = fault_in_signatures(*chain, *admin, *swarm))
    return fail(Errc::bad_signature, Doing::reading_file, "the certificate " + *fault);
  return Membership{*swarm, *admin, *chain};
}

}  // namespace starling::transport
