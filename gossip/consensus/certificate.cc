#include "gossip/consensus/certificate.h"

#include "node/base/hash.h"

#include <string>
#include <utility>

namespace starling::gossip::consensus {
namespace {

std::unexpected<Error> refuse_certificate(Errc code, std::string detail) {
  return fail(code, Doing::certifying, std::move(detail));
}

}  // namespace

Hash model_hash(const Hash& manifest, std::span<const Hash> chunks) {
  Hasher hasher;
  hasher.add(manifest.view());
  for (const auto& chunk : chunks) hasher.add(chunk.view());
  return hasher.finish();
}

Hash claim_of(const Certificate& certificate) {
  Hasher hasher;
  hasher.add("starling/consensus/claim/1")
      .add(certificate.set.view())
      .add(certificate.samples)
      .add(certificate.model.size())
      .add(std::string_view(certificate.model));
  for (const auto& id : certificate.participants) hasher.add(id.view());
  return hasher.finish();
}

Result<void> verify(const Certificate& certificate, const Hash& fingerprint,
                    const Verifier& verifier) {
  if (certificate.fingerprint != fingerprint)
    return refuse_certificate(Errc::settings_mismatch, "a certificate for settings " +
                                                           short_form(certificate.fingerprint) +
                                                           ", ours are " + short_form(fingerprint));
  const auto count = certificate.participants.size();
  if (count == 0 || count > kMaxParticipants || certificate.signatures.size() != count)
    return refuse_certificate(Errc::bad_message, std::to_string(count) + " participants with " +
                                                     std::to_string(certificate.signatures.size()) +
                                                     " signatures");
  if (certificate.epoch.value < 1 || certificate.epoch.value > kMaxEpoch ||
      certificate.model.size() > kMaxModelName)
    return refuse_certificate(Errc::bad_message, "an epoch or a model name that cannot be");
  for (std::size_t k = 1; k < count; ++k)
    if (!(certificate.participants[k - 1] < certificate.participants[k]))
      return refuse_certificate(Errc::bad_message, "the participants are not in ascending order");
  HashSignature statement;
  statement.round = {{}, certificate.epoch};
  statement.claim = claim_of(certificate);
  statement.hash = certificate.hash;
  for (std::size_t k = 0; k < count; ++k) {
    statement.signer = certificate.participants[k];
    statement.signature = certificate.signatures[k];
    if (check(statement, statement.signer, verifier, fingerprint) != Verdict::valid)
      return refuse_certificate(Errc::bad_signature,
                                "the signature of " + short_form(statement.signer) + " is wrong");
  }
  return {};
}

bool outranks(const Certificate& one, const Certificate& other) {
  if (one.participants.size() != other.participants.size())
    return one.participants.size() > other.participants.size();
  return one.hash < other.hash;
}

Result<void> verify(const CertificateMessage& message, const Hash& fingerprint,
                    const Verifier& verifier) {
  if (model_hash(message.manifest, message.chunks) != message.certificate.hash)
    return refuse_certificate(Errc::bad_message,
                              "the chunk hashes are not those of the certificate");
  return verify(message.certificate, fingerprint, verifier);
}

}  // namespace starling::gossip::consensus
