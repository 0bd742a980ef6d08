#include "transport/revocation.h"

#include "node/base/bytes.h"
#include "transport/base64.h"
#include "transport/identity.h"

#include <utility>

namespace starling::transport {
namespace {

constexpr std::string_view kFirstWord = "starling-revoked ";
constexpr std::uint8_t kRevocationVersion = 1;

std::unexpected<Error> bad_list(std::string_view what) {
  return fail(Errc::bad_message, Doing::reading_message,
              "a list of revocations " + std::string(what));
}

Bytes encode_unsigned(const Revocations& list) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.write(kRevocationVersion);
  writer.write(list.number);
  writer.write(static_cast<std::uint32_t>(list.serials.size()));
  writer.write(static_cast<std::uint32_t>(list.nodes.size()));
  for (const auto serial : list.serials) writer.write(serial);
  for (const auto& node : list.nodes) writer.append(node.view());
  return bytes;
}

}  // namespace

Bytes revoked_part(const Revocations& list, const SwarmId& swarm) {
  Bytes bytes = to_bytes(swarm.view());
  const auto encoded = encode_unsigned(list);
  bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  return bytes;
}

std::optional<std::string> Revocations::fault_in(const NodeId& node,
                                                 const CertificateChain* chain) const {
  if (nodes.contains(node)) return "was revoked";
  if (chain == nullptr) return std::nullopt;
  if (serials.contains(chain->own.serial)) return "has a certificate that was revoked";
  if (!chain->issuer) return std::nullopt;
  if (nodes.contains(chain->issuer->node) || serials.contains(chain->issuer->serial))
    return "has a certificate of an inviter that was revoked";
  return std::nullopt;
}

bool Revocations::replaces(const Revocations& other) const {
  if (number != other.number) return number > other.number;
  return number > 0 && signature.bytes > other.signature.bytes;
}

void sign(Revocations& list, const SwarmId& swarm, const Signer& admin) {
  list.signature = admin.sign(kRevokedDomain, revoked_part(list, swarm));
}

bool signed_by(const NodeId& admin, const Revocations& list, const SwarmId& swarm) {
  return Ed25519Verifier{}.verify(admin, kRevokedDomain, revoked_part(list, swarm),
                                  list.signature) == Verdict::valid;
}

Result<Bytes> encode_revocations(const Revocations& list) {
  auto bytes = encode_unsigned(list);
  ByteWriter(bytes).append(list.signature.view());
  if (bytes.size() > limits::kMaxRevocations)
    return fail(Errc::too_large, Doing::signing,
                "a list of " + std::to_string(list.serials.size()) + " serials and " +
                    std::to_string(list.nodes.size()) + " nodes has " +
                    std::to_string(bytes.size()) + " bytes, of at most " +
                    std::to_string(limits::kMaxRevocations) +
                    ": rotate the secret and begin with a new admin key");
  return bytes;
}

Result<Revocations> decode_revocations(ByteView bytes) {
  if (bytes.size() > limits::kMaxRevocations)
    return fail(Errc::too_large, Doing::reading_message,
                "a list of revocations of " + std::to_string(bytes.size()) + " bytes");
  ByteReader reader(bytes);
  const auto version = reader.read<std::uint8_t>();
  if (!version || *version != kRevocationVersion) return bad_list("has a version other than 1");
  Revocations list;
  const auto number = reader.read<std::uint64_t>();
  const auto serials = reader.read<std::uint32_t>();
  const auto nodes = reader.read<std::uint32_t>();
  if (!nodes) return bad_list("is too short");
  if (*number == 0) return bad_list("has no number");
  list.number = *number;
  if (std::uint64_t{*serials} * 8 + std::uint64_t{*nodes} * 32 + 64 != reader.left())
    return bad_list("has another length than it says");
  for (std::uint32_t i = 0; i < *serials; ++i) {
    const auto serial = *reader.read<std::uint64_t>();
    if (!list.serials.empty() && serial <= *list.serials.rbegin())
      return bad_list("is not in order");
    list.serials.insert(list.serials.end(), serial);
  }
  for (std::uint32_t i = 0; i < *nodes; ++i) {
    const auto node = *NodeId::from(*reader.take(32));
    if (!list.nodes.empty() && node <= *list.nodes.rbegin()) return bad_list("is not in order");
    list.nodes.insert(list.nodes.end(), node);
  }
  list.signature = *Signature::from(*reader.take(64));
  return list;
}

Result<std::string> print_revocations(const Revocations& list) {
  TRY(const auto bytes, encode_revocations(list));
  return std::string(kFirstWord) + encode_base64(bytes) + "\n";
}

Result<Revocations> parse_revocations(std::string_view text) {
  const auto corrupt = [](std::string what) {
    return fail(Errc::corrupt, Doing::reading_file, std::move(what));
  };
  if (text.size() > kMaxRevocationsText)
    return fail(Errc::too_large, Doing::reading_file, "the list of revocations is too long");
  if (!text.starts_with(kFirstWord)) return corrupt("this is no list of revocations");
  text.remove_prefix(kFirstWord.size());
  const auto bytes = decode_base64(text);
  if (!bytes) return corrupt("the list of revocations is no base64");
  auto list = decode_revocations(*bytes);
  if (!list) return corrupt(list.error().detail);
  return std::move(*list);
}

}  // namespace starling::transport
