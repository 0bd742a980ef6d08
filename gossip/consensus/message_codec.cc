// From the wire to our structs, everything checked.
#include "gossip/consensus/message_codec.h"

// clang-format off: the first of the two adds what headers of Cap'n Proto need to compile.
#include "transport/capnp_message.h"
#include "gossip/consensus/messages.capnp.h"
// clang-format on

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

namespace starling::gossip::consensus {
namespace {

using transport::view_of;

std::unexpected<Error> refuse(std::string detail) {
  return fail(Errc::bad_message, Doing::reading_message, std::move(detail));
}

// Fields read by copy(); the first wrong one is named.

template <class Id>
Result<Id> read_id(::capnp::Data::Reader data, const char* field) {
  const auto id = Id::from(view_of(data));
  if (!id) return refuse(std::string(field) + " of " + std::to_string(data.size()) + " bytes");
  return *id;
}

template <class Enum>
Result<Enum> read_enum(std::uint8_t raw, Enum last, const char* field) {
  if (raw > static_cast<std::uint8_t>(last))
    return refuse(std::string(field) + " " + std::to_string(raw) + " is not known");
  return static_cast<Enum>(raw);
}

Result<std::uint64_t> read_number(std::uint64_t value, std::uint64_t least, std::uint64_t most,
                                  const char* field) {
  if (value < least || value > most)
    return refuse(std::string(field) + " " + std::to_string(value) + " is not in " +
                  std::to_string(least) + " to " + std::to_string(most));
  return value;
}

Result<RoundId> read_round(wire::Round::Reader in) {
  RoundId round;
  TRY(round.run.kind, read_enum(in.getKind(), RunKind::merge, "kind of run"));
  round.run.number = in.getNumber();
  if ((round.run.kind == RunKind::finish) != (round.run.number == 0))
    return refuse("run number " + std::to_string(round.run.number) + " does not fit its kind");
  TRY(round.epoch.value, read_number(in.getEpoch(), 1, kMaxEpoch, "epoch"));
  return round;
}

Result<std::uint32_t> read_chunk(std::uint32_t chunk) {
  TRY(const auto value, read_number(chunk, 0, kMaxChunks - 1, "chunk"));
  return static_cast<std::uint32_t>(value);
}

// Round and chunk, with which all messages about one chunk begin.
template <class Reader, class M>
Result<void> read_target(Reader in, M& m) {
  TRY(m.round, read_round(in.getRound()));
  TRY(m.chunk, read_chunk(in.getChunk()));
  return {};
}

// Round and signer, with which all statements begin.
template <class Reader, class M>
Result<void> read_origin(Reader in, M& m) {
  TRY(m.round, read_round(in.getRound()));
  TRY(m.signer, read_id<NodeId>(in.getSigner(), "signer"));
  return {};
}

// Ids one after the other, strictly ascending.
Result<std::vector<NodeId>> read_ids(ByteView raw, std::size_t most, const char* field) {
  if (raw.size() % 32 != 0 || raw.size() / 32 > most)
    return refuse(std::string(field) + " of " + std::to_string(raw.size()) + " bytes");
  std::vector<NodeId> ids;
  ids.reserve(raw.size() / 32);
  for (std::size_t at = 0; at < raw.size(); at += 32) {
    ids.push_back(*NodeId::from(raw.subspan(at, 32)));
    if (ids.size() > 1 && !(ids[ids.size() - 2] < ids.back()))
      return refuse(std::string(field) + " are not in ascending order");
  }
  return ids;
}

// Text for people: printable ASCII, so that no log or terminal has to trust it.
Result<std::string> read_text(ByteView raw, std::size_t most, const char* field) {
  if (raw.size() > most)
    return refuse(std::string(field) + " of " + std::to_string(raw.size()) + " bytes");
  const auto text = as_text(raw);
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }))
    return refuse(std::string(field) + " is not printable ASCII");
  return std::string(text);
}

Result<Finish> copy(wire::Finish::Reader in, const transport::Message&) {
  Finish m;
  TRY(m.round, read_round(in.getRound()));
  TRY(const auto revision, read_number(in.getRevision(), 0, kMaxRevision, "revision"));
  m.revision = static_cast<std::uint32_t>(revision);
  TRY(m.signer, read_id<NodeId>(in.getSigner(), "signer"));
  TRY(m.fingerprint, read_id<Hash>(in.getFingerprint(), "fingerprint"));
  TRY(m.reason, read_enum(in.getReason(), FinishReason::command, "reason"));
  TRY(m.role, read_enum(in.getRole(), Role::follower, "role"));
  TRY(m.rule, read_enum(in.getRule(), Rule::trimmed, "rule"));
  TRY(const auto weight, read_number(in.getWeight(), 1, kMaxWeight, "weight"));
  m.weight = static_cast<std::uint32_t>(weight);
  m.samples = in.getSamples();
  TRY(m.sessions, read_ids(view_of(in.getSessions()), kMaxListedSessions, "sessions"));
  if (std::binary_search(m.sessions.begin(), m.sessions.end(), m.signer))
    return refuse("a session of the signer with itself");
  if (in.getOrder().size() > 0) {
    TRY(m.order, read_id<Signature>(in.getOrder(), "order"));
  }
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  return m;
}

Result<Participants> copy(wire::Participants::Reader in, const transport::Message&) {
  Participants m;
  TRY_VOID(read_origin(in, m));
  TRY(const auto count, read_number(in.getCount(), 1, kMaxParticipants, "count"));
  m.count = static_cast<std::uint32_t>(count);
  TRY(m.set, read_id<Hash>(in.getSet(), "set"));
  TRY(m.graph, read_id<Hash>(in.getGraph(), "graph"));
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  return m;
}

SharedBytes attached(const transport::Message& message) {
  return message.attachment ? message.attachment : share({});
}

Result<Exponents> copy(wire::Exponents::Reader in, const transport::Message& message) {
  Exponents m;
  TRY_VOID(read_target(in, m));
  TRY(m.direction, read_enum(in.getDirection(), Direction::down, "direction"));
  m.values = attached(message);
  const auto bad = std::byte{255};
  if (std::find(m.values->begin(), m.values->end(), bad) != m.values->end())
    return refuse("an exponent byte of 255");
  return m;
}

Result<Sum> copy(wire::Sum::Reader in, const transport::Message& message) {
  Sum m;
  TRY_VOID(read_target(in, m));
  m.values = attached(message);
  return m;
}

Result<Contribution> copy(wire::Contribution::Reader in, const transport::Message& message) {
  Contribution m;
  TRY_VOID(read_target(in, m));
  TRY(m.origin, read_id<NodeId>(in.getOrigin(), "origin"));
  m.values = attached(message);
  return m;
}

Result<ResultChunk> copy(wire::ResultChunk::Reader in, const transport::Message& message) {
  ResultChunk m;
  TRY_VOID(read_target(in, m));
  TRY(m.hash, read_id<Hash>(in.getHash(), "hash"));
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  m.values = attached(message);
  return m;
}

Result<HashSignature> copy(wire::HashSignature::Reader in, const transport::Message&) {
  HashSignature m;
  TRY_VOID(read_origin(in, m));
  TRY(m.claim, read_id<Hash>(in.getClaim(), "claim"));
  TRY(m.hash, read_id<Hash>(in.getHash(), "hash"));
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  return m;
}

Result<Refusal> copy(wire::Refusal::Reader in, const transport::Message&) {
  Refusal m;
  TRY_VOID(read_origin(in, m));
  TRY(m.reason, read_enum(in.getReason(), RefusalReason::bad_bytes, "reason"));
  TRY(m.rule, read_enum(in.getRule(), Rule::trimmed, "rule"));
  TRY(m.chunk, read_chunk(in.getChunk()));
  TRY(m.accused, read_id<NodeId>(in.getAccused(), "accused"));
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  return m;
}

Result<Equivocation> copy(wire::Equivocation::Reader in, const transport::Message& message) {
  Equivocation m;
  if (in.getKind() == 0) {
    TRY(auto first, copy(in.getFirstParticipants(), message));
    TRY(auto second, copy(in.getSecondParticipants(), message));
    m.round = first.round;
    m.proof = std::pair(first, second);
  } else if (in.getKind() == 1) {
    TRY(auto first, copy(in.getFirstHash(), message));
    TRY(auto second, copy(in.getSecondHash(), message));
    m.round = first.round;
    m.proof = std::pair(first, second);
  } else {
    return refuse("a proof of an unknown kind");
  }
  return m;
}

Result<CertificateMessage> copy(wire::CertificateMessage::Reader in,
                                const transport::Message& message) {
  CertificateMessage m;
  auto& certificate = m.certificate;
  TRY(certificate.epoch.value, read_number(in.getEpoch(), 1, kMaxEpoch, "epoch"));
  TRY(certificate.fingerprint, read_id<Hash>(in.getFingerprint(), "fingerprint"));
  TRY(certificate.hash, read_id<Hash>(in.getHash(), "hash"));
  TRY(certificate.set, read_id<Hash>(in.getSet(), "set"));
  TRY(const auto members, read_number(in.getParticipants(), 1, kMaxParticipants, "participants"));
  certificate.samples = in.getSamples();
  TRY(certificate.model, read_text(view_of(in.getModel()), kMaxModelName, "model"));
  TRY(m.manifest, read_id<Hash>(in.getManifest(), "manifest"));
  TRY(const auto chunks, read_number(in.getChunks(), 0, kMaxChunks, "chunks"));
  const auto raw = message.attached();
  if (raw.size() != members * 96 + chunks * 32)
    return refuse("a certificate of " + std::to_string(members) + " participants and " +
                  std::to_string(chunks) + " chunks with " + std::to_string(raw.size()) + " bytes");
  TRY(certificate.participants, read_ids(raw.first(members * 32), members, "participants"));
  certificate.signatures.reserve(members);
  for (std::size_t at = members * 32; at < members * 96; at += 64)
    certificate.signatures.push_back(*Signature::from(raw.subspan(at, 64)));
  m.chunks.reserve(chunks);
  for (std::size_t at = members * 96; at < raw.size(); at += 32)
    m.chunks.push_back(*Hash::from(raw.subspan(at, 32)));
  return m;
}

Result<ChunkRequest> copy(wire::ChunkRequest::Reader in, const transport::Message&) {
  ChunkRequest m;
  TRY_VOID(read_target(in, m));
  TRY(m.hash, read_id<Hash>(in.getHash(), "hash"));
  return m;
}

Result<Chunk> copy(wire::Chunk::Reader in, const transport::Message& message) {
  Chunk m;
  TRY(m.chunk, read_chunk(in.getChunk()));
  TRY(m.hash, read_id<Hash>(in.getHash(), "hash"));
  m.values = attached(message);
  return m;
}

Result<Acknowledge> copy(wire::Acknowledge::Reader in, const transport::Message&) {
  Acknowledge m;
  TRY_VOID(read_origin(in, m));
  TRY(m.hash, read_id<Hash>(in.getHash(), "hash"));
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  return m;
}

Result<MergeRequest> copy(wire::MergeRequest::Reader in, const transport::Message&) {
  MergeRequest m;
  TRY(m.number, read_number(in.getNumber(), 1, UINT64_MAX, "number"));
  TRY(m.signer, read_id<NodeId>(in.getSigner(), "signer"));
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  return m;
}

Result<MergeAbort> copy(wire::MergeAbort::Reader in, const transport::Message&) {
  MergeAbort m;
  TRY(m.number, read_number(in.getNumber(), 1, UINT64_MAX, "number"));
  TRY(m.signer, read_id<NodeId>(in.getSigner(), "signer"));
  TRY(m.reason, read_text(view_of(in.getReason()), kMaxAbortReason, "reason"));
  TRY(m.signature, read_id<Signature>(in.getSignature(), "signature"));
  return m;
}

template <class Schema, class M>
Result<ConsensusMessage> read(const transport::Message& message) {
  constexpr bool kBulk = std::is_same_v<M, CertificateMessage> || requires(M m) { m.values; };
  if (!kBulk && !message.attached().empty()) return refuse("an attachment where none belongs");
  TRY(auto value, (transport::read_capnp<Schema, M>(
                      message.body, kMaxConsensusBody,
                      [&](auto reader) -> Result<M> { return copy(reader, message); })));
  return ConsensusMessage(std::move(value));
}

}  // namespace

Result<ConsensusMessage> decode(const transport::Message& message) {
  if (message.attached().size() > kMaxConsensusAttachment)
    return fail(Errc::too_large, Doing::reading_message,
                "an attachment of " + std::to_string(message.attached().size()) + " bytes");
  switch (static_cast<MessageType>(message.type)) {
    case MessageType::finish:
      return read<wire::Finish, Finish>(message);
    case MessageType::participants:
      return read<wire::Participants, Participants>(message);
    case MessageType::exponents:
      return read<wire::Exponents, Exponents>(message);
    case MessageType::sum:
      return read<wire::Sum, Sum>(message);
    case MessageType::contribution:
      return read<wire::Contribution, Contribution>(message);
    case MessageType::result_chunk:
      return read<wire::ResultChunk, ResultChunk>(message);
    case MessageType::hash_signature:
      return read<wire::HashSignature, HashSignature>(message);
    case MessageType::refusal:
      return read<wire::Refusal, Refusal>(message);
    case MessageType::certificate:
      return read<wire::CertificateMessage, CertificateMessage>(message);
    case MessageType::chunk_request:
      return read<wire::ChunkRequest, ChunkRequest>(message);
    case MessageType::chunk:
      return read<wire::Chunk, Chunk>(message);
    case MessageType::acknowledge:
      return read<wire::Acknowledge, Acknowledge>(message);
    case MessageType::merge_request:
      return read<wire::MergeRequest, MergeRequest>(message);
    case MessageType::merge_abort:
      return read<wire::MergeAbort, MergeAbort>(message);
    case MessageType::equivocation:
      return read<wire::Equivocation, Equivocation>(message);
  }
  return refuse("type " + std::to_string(message.type) + " is no message of the consensus");
}

}  // namespace starling::gossip::consensus
