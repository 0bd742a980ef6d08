// From our structs to the wire.
#include "gossip/consensus/message_codec.h"

// clang-format off: the first of the two adds what headers of Cap'n Proto need to compile.
#include "transport/capnp_message.h"
#include "gossip/consensus/messages.capnp.h"
// clang-format on

#include <type_traits>
#include <utility>

namespace starling::gossip::consensus {
namespace {

using transport::data_of;

void write(wire::Round::Builder out, const RoundId& round) {
  out.setKind(static_cast<std::uint8_t>(round.run.kind));
  out.setNumber(round.run.number);
  out.setEpoch(round.epoch.value);
}

template <class Builder, class M>
void write_origin(Builder out, const M& m) {
  write(out.initRound(), m.round);
  out.setSigner(data_of(m.signer.view()));
}

template <class Builder, class M>
void write_target(Builder out, const M& m) {
  write(out.initRound(), m.round);
  out.setChunk(m.chunk);
}

Bytes joined(const std::vector<NodeId>& ids) {
  Bytes bytes;
  bytes.reserve(ids.size() * 32);
  for (const auto& id : ids) bytes.insert(bytes.end(), id.bytes.begin(), id.bytes.end());
  return bytes;
}

void write(wire::Finish::Builder out, const Finish& m) {
  write(out.initRound(), m.round);
  out.setRevision(m.revision);
  out.setSigner(data_of(m.signer.view()));
  out.setFingerprint(data_of(m.fingerprint.view()));
  out.setReason(static_cast<std::uint8_t>(m.reason));
  out.setRole(static_cast<std::uint8_t>(m.role));
  out.setRule(static_cast<std::uint8_t>(m.rule));
  out.setWeight(m.weight);
  out.setSamples(m.samples);
  out.setSessions(data_of(joined(m.sessions)));
  out.setSignature(data_of(m.signature.view()));
  if (m.order) out.setOrder(data_of(m.order->view()));
}

void write(wire::Participants::Builder out, const Participants& m) {
  write_origin(out, m);
  out.setCount(m.count);
  out.setSet(data_of(m.set.view()));
  out.setGraph(data_of(m.graph.view()));
  out.setSignature(data_of(m.signature.view()));
}

void write(wire::Exponents::Builder out, const Exponents& m) {
  write_target(out, m);
  out.setDirection(static_cast<std::uint8_t>(m.direction));
}

void write(wire::Sum::Builder out, const Sum& m) { write_target(out, m); }

void write(wire::Contribution::Builder out, const Contribution& m) {
  write_target(out, m);
  out.setOrigin(data_of(m.origin.view()));
}

void write(wire::ResultChunk::Builder out, const ResultChunk& m) {
  write_target(out, m);
  out.setHash(data_of(m.hash.view()));
  out.setSignature(data_of(m.signature.view()));
}

void write(wire::HashSignature::Builder out, const HashSignature& m) {
  write_origin(out, m);
  out.setClaim(data_of(m.claim.view()));
  out.setHash(data_of(m.hash.view()));
  out.setSignature(data_of(m.signature.view()));
}

void write(wire::Refusal::Builder out, const Refusal& m) {
  write_origin(out, m);
  out.setReason(static_cast<std::uint8_t>(m.reason));
  out.setRule(static_cast<std::uint8_t>(m.rule));
  out.setChunk(m.chunk);
  out.setAccused(data_of(m.accused.view()));
  out.setSignature(data_of(m.signature.view()));
}

void write(wire::Equivocation::Builder out, const Equivocation& m) {
  out.setKind(static_cast<std::uint8_t>(m.proof.index()));
  if (const auto* sets = std::get_if<0>(&m.proof)) {
    write(out.initFirstParticipants(), sets->first);
    write(out.initSecondParticipants(), sets->second);
  } else if (const auto* hashes = std::get_if<1>(&m.proof)) {
    write(out.initFirstHash(), hashes->first);
    write(out.initSecondHash(), hashes->second);
  }
}

void write(wire::CertificateMessage::Builder out, const CertificateMessage& m) {
  const auto& certificate = m.certificate;
  out.setEpoch(certificate.epoch.value);
  out.setFingerprint(data_of(certificate.fingerprint.view()));
  out.setHash(data_of(certificate.hash.view()));
  out.setSet(data_of(certificate.set.view()));
  out.setParticipants(static_cast<std::uint32_t>(certificate.participants.size()));
  out.setSamples(certificate.samples);
  out.setModel(data_of(as_bytes(certificate.model)));
  out.setManifest(data_of(m.manifest.view()));
  out.setChunks(static_cast<std::uint32_t>(m.chunks.size()));
}

void write(wire::ChunkRequest::Builder out, const ChunkRequest& m) {
  write_target(out, m);
  out.setHash(data_of(m.hash.view()));
}

void write(wire::Chunk::Builder out, const Chunk& m) {
  out.setChunk(m.chunk);
  out.setHash(data_of(m.hash.view()));
}

void write(wire::Acknowledge::Builder out, const Acknowledge& m) {
  write_origin(out, m);
  out.setHash(data_of(m.hash.view()));
  out.setSignature(data_of(m.signature.view()));
}

void write(wire::MergeRequest::Builder out, const MergeRequest& m) {
  out.setNumber(m.number);
  out.setSigner(data_of(m.signer.view()));
  out.setSignature(data_of(m.signature.view()));
}

void write(wire::MergeAbort::Builder out, const MergeAbort& m) {
  out.setNumber(m.number);
  out.setSigner(data_of(m.signer.view()));
  out.setReason(data_of(as_bytes(m.reason)));
  out.setSignature(data_of(m.signature.view()));
}

SharedBytes attachment_of(const CertificateMessage& m) {
  Bytes bytes;
  ByteWriter writer(bytes);
  for (const auto& id : m.certificate.participants) writer.append(id.view());
  for (const auto& signature : m.certificate.signatures) writer.append(signature.view());
  for (const auto& hash : m.chunks) writer.append(hash.view());
  return share(std::move(bytes));
}

template <class Schema, class M>
transport::Message made(MessageType type, const M& message) {
  transport::Message out;
  out.type = static_cast<std::uint16_t>(type);
  out.body = transport::write_capnp<Schema>([&](auto builder) { write(builder, message); });
  if constexpr (requires { message.values; }) {
    if (message.values && !message.values->empty()) out.attachment = message.values;
  } else if constexpr (std::is_same_v<M, CertificateMessage>) {
    out.attachment = attachment_of(message);
  }
  // Behind the certificate that tells what was acknowledged.
  out.in_order = std::is_same_v<M, Acknowledge>;
  return out;
}

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

}  // namespace

transport::Message encode(const ConsensusMessage& message) {
  using T = MessageType;
  return std::visit(
      Overloaded{
          [](const Finish& m) { return made<wire::Finish>(T::finish, m); },
          [](const Participants& m) { return made<wire::Participants>(T::participants, m); },
          [](const Exponents& m) { return made<wire::Exponents>(T::exponents, m); },
          [](const Sum& m) { return made<wire::Sum>(T::sum, m); },
          [](const Contribution& m) { return made<wire::Contribution>(T::contribution, m); },
          [](const ResultChunk& m) { return made<wire::ResultChunk>(T::result_chunk, m); },
          [](const HashSignature& m) { return made<wire::HashSignature>(T::hash_signature, m); },
          [](const Refusal& m) { return made<wire::Refusal>(T::refusal, m); },
          [](const Equivocation& m) { return made<wire::Equivocation>(T::equivocation, m); },
          [](const CertificateMessage& m) {
            return made<wire::CertificateMessage>(T::certificate, m);
          },
          [](const ChunkRequest& m) { return made<wire::ChunkRequest>(T::chunk_request, m); },
          [](const Chunk& m) { return made<wire::Chunk>(T::chunk, m); },
          [](const Acknowledge& m) { return made<wire::Acknowledge>(T::acknowledge, m); },
          [](const MergeRequest& m) { return made<wire::MergeRequest>(T::merge_request, m); },
          [](const MergeAbort& m) { return made<wire::MergeAbort>(T::merge_abort, m); },
      },
      message);
}

}  // namespace starling::gossip::consensus
