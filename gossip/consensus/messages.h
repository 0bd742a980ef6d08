// What nodes say to one another during a final consensus or a merge, as plain structs.
//
// Two kinds: *statements* (Finish, Participants, HashSignature, Refusal, Acknowledge, MergeRequest,
// MergeAbort) are signed by one node and forwarded by everybody who sees them for the first time;
// the rest travels between two neighbours only. Meaning and order: messages.capnp and README.md.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"
#include "node/base/signing.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace starling::gossip::consensus {

// The most participants of one run: |sum| stays below 2^62 at weight 2^20 each.
inline constexpr std::size_t kMaxParticipants = 4096;
// The most ids for which statements are kept (participants and followers).
inline constexpr std::size_t kMaxStatements = 16384;
// Sessions that one Finish names; a node with more names those with the lowest ids.
inline constexpr std::size_t kMaxListedSessions = 128;
// Tries of one run before it is given up. The deadlines of all of them add up to 9.25 minutes.
inline constexpr std::uint64_t kMaxEpoch = 12;
// Revisions of one Finish in one epoch: a session came or went while it was collected, or another
// minute of a long reduction has passed, and these last for 17 hours.
inline constexpr std::uint32_t kMaxRevision = 1024;
inline constexpr std::uint32_t kMaxWeight = 1U << 20;
// Chunks of one model: 2^16 chunks of 64 blocks are 1.7e10 parameters.
inline constexpr std::uint32_t kMaxChunks = 1U << 16;
inline constexpr std::size_t kMaxModelName = 64;
// The participants of the median rule: every contribution passes through one node (rulings 37).
inline constexpr std::size_t kMaxMedianParticipants = 64;

enum class RunKind : std::uint8_t {
  finish,  // the final consensus
  merge,   // the same path in the middle of a run, no freeze, no certificate (rulings 39)
};

// Which run a message belongs to. The final consensus has number 0, a merge a random one.
struct RunId {
  RunKind kind = RunKind::finish;
  std::uint64_t number = 0;
  friend auto operator<=>(const RunId&, const RunId&) = default;
};

// One try of a run.
struct RoundId {
  RunId run;
  Epoch epoch;
  friend auto operator<=>(const RoundId&, const RoundId&) = default;
};

enum class FinishReason : std::uint8_t {
  budget,   // the signer's P reached the budget
  command,  // a person asked for it; also every merge
};

enum class Role : std::uint8_t {
  participant,  // contributes its replica
  follower,     // weight 0: fetches the certified model in the end
};

enum class Rule : std::uint8_t {
  mean,     // weighted mean
  median,   // coordinate-wise median: asked for, or somebody refused the mean (rulings 37)
  trimmed,  // coordinate-wise mean without the smallest and the largest quarter, where asked for
};

// "I take part in this epoch, these are my sessions." A higher revision replaces a lower.
struct Finish {
  RoundId round;
  std::uint32_t revision = 0;
  NodeId signer;
  Hash fingerprint;  // of the settings; also bound into the signature of every other statement
  FinishReason reason = FinishReason::budget;
  Role role = Role::participant;
  Rule rule = Rule::mean;
  std::uint32_t weight = 1;      // 1 to kMaxWeight
  std::uint64_t samples = 0;     // P as the signer knows it
  std::vector<NodeId> sessions;  // sorted, no repetition, without the signer
  // The admin's signature on the order to finish, of a signer that joined by command where only the
  // admin may end the run (`finish.by`). Who passes a Finish on need not have checked it.
  std::optional<Signature> order = std::nullopt;
  Signature signature;
};

// "These take part and this is how they are connected": one per signer and epoch.
struct Participants {
  RoundId round;
  NodeId signer;
  std::uint32_t count = 0;
  Hash set;    // sorted ids with weights, rule and samples
  Hash graph;  // sessions among them
  Signature signature;
};

enum class Direction : std::uint8_t { up, down };

// Block exponents of one chunk: a maximum on the way up, everybody's maximum on the way down.
struct Exponents {
  RoundId round;
  std::uint32_t chunk = 0;
  Direction direction = Direction::up;
  SharedBytes values;  // attachment: one biased exponent byte (0 to 254) a block
};

// The weighted sum over the sender's subtree.
struct Sum {
  RoundId round;
  std::uint32_t chunk = 0;
  SharedBytes values;  // attachment: packed integers, see arithmetic.h
};

// One member's own values on their way to the root (median and trimmed mean only).
struct Contribution {
  RoundId round;
  std::uint32_t chunk = 0;
  NodeId origin;
  SharedBytes values;  // attachment: fp32
};

// The values of a chunk on their way down, signed by the chunk's root.
struct ResultChunk {
  RoundId round;
  std::uint32_t chunk = 0;
  Hash hash;            // of the values: fp32 (int64 for counters), little-endian
  Signature signature;  // by root(chunk) over (fingerprint, round, chunk, hash)
  SharedBytes values;   // attachment: the values; means of parameters packed, see ResultForm
};

// "I hold the whole result, checked it, and its hash is h": one per signer and epoch.
struct HashSignature {
  RoundId round;
  NodeId signer;
  Hash claim;  // claim_of() the certificate that this signature is for
  Hash hash;   // h = BLAKE2b(manifest | chunk hashes)
  Signature signature;
};

enum class RefusalReason : std::uint8_t {
  sanity,      // the result is too far from the signer's own replica
  not_finite,  // the signer's own replica is not finite: it withdraws
  bad_bytes,   // a neighbour's sums or results were malformed
};

struct Refusal {
  RoundId round;
  NodeId signer;
  RefusalReason reason = RefusalReason::sanity;
  Rule rule = Rule::mean;  // of the epoch that is refused
  std::uint32_t chunk = 0;
  NodeId accused;  // root of the chunk (sanity), the neighbour (bad_bytes), the signer (not_finite)
  Signature signature;
};

// Proof that a node signed two different things in one epoch: it is excluded by everybody who sees
// this, whatever epoch they are in (security T18). Not signed itself: both halves are.
struct Equivocation {
  RoundId round;
  std::variant<std::pair<Participants, Participants>, std::pair<HashSignature, HashSignature>>
      proof;

  [[nodiscard]] const NodeId& signer() const {
    return std::visit([](const auto& pair) -> const NodeId& { return pair.first.signer; }, proof);
  }
};

// What matters of a statement; two signatures over the same statement are no contradiction.
[[nodiscard]] bool says_the_same(const Participants& a, const Participants& b);
[[nodiscard]] bool says_the_same(const HashSignature& a, const HashSignature& b);

// Proof of the result. Who holds one never enters a later epoch, and shows it to anyone.
struct Certificate {
  Epoch epoch;
  Hash fingerprint;
  Hash hash;                          // h
  Hash set;                           // Participants::set of the epoch
  std::vector<NodeId> participants;   // sorted
  std::vector<Signature> signatures;  // one a participant, same order
  std::uint64_t samples = 0;
  std::string model;
  friend bool operator==(const Certificate&, const Certificate&) = default;
};

// A certificate and the chunk hashes behind its h.
struct CertificateMessage {
  Certificate certificate;
  Hash manifest;
  std::vector<Hash> chunks;
};

// "Send me this chunk." A zero hash asks the parent for this epoch's result again after a
// reconnect; otherwise the chunk with this hash, of a certified model.
struct ChunkRequest {
  RoundId round;
  std::uint32_t chunk = 0;
  Hash hash;
};

struct Chunk {
  std::uint32_t chunk = 0;
  Hash hash;           // of the attachment
  SharedBytes values;  // attachment: fp32 (int64 for counters), little-endian
};

// "I hold the certificate and the model that it certifies, and no power cut takes them."
struct Acknowledge {
  RoundId round;
  NodeId signer;
  Hash hash;
  Signature signature;
};

// "Let us merge now."
struct MergeRequest {
  std::uint64_t number = 0;  // random, not 0
  NodeId signer;
  Signature signature;
};

// "This merge is off": any member may say so, because a death or a Finish ends it anyway.
struct MergeAbort {
  std::uint64_t number = 0;
  NodeId signer;
  std::string reason;  // <= 200 bytes, for people
  Signature signature;
};

using ConsensusMessage =
    std::variant<Finish, Participants, Exponents, Sum, Contribution, ResultChunk, HashSignature,
                 Refusal, Equivocation, CertificateMessage, ChunkRequest, Chunk, Acknowledge,
                 MergeRequest, MergeAbort>;

// The run that a message belongs to; certificates and their chunks belong to the final consensus.
[[nodiscard]] RunId run_of(const ConsensusMessage& message);

// What is signed: the domain, and the bytes that the signature covers. `fingerprint` is the one of
// the swarm's settings, so no statement means anything in another swarm.
struct Statement {
  std::string_view domain;
  Bytes bytes;
};
[[nodiscard]] Statement statement_of(const Finish& message, const Hash& fingerprint);
[[nodiscard]] Statement statement_of(const Participants& message, const Hash& fingerprint);
[[nodiscard]] Statement statement_of(const HashSignature& message, const Hash& fingerprint);
[[nodiscard]] Statement statement_of(const Refusal& message, const Hash& fingerprint);
[[nodiscard]] Statement statement_of(const Acknowledge& message, const Hash& fingerprint);
[[nodiscard]] Statement statement_of(const MergeRequest& message, const Hash& fingerprint);
[[nodiscard]] Statement statement_of(const MergeAbort& message, const Hash& fingerprint);
// By the root of the chunk.
[[nodiscard]] Statement statement_of(const ResultChunk& message, const Hash& fingerprint);

// Signs as `signer`, filling in the signer's id where the message has one.
template <class Message>
void sign(Message& message, const Signer& signer, const Hash& fingerprint) {
  if constexpr (requires { message.signer; }) message.signer = signer.id();
  const auto statement = statement_of(message, fingerprint);
  message.signature = signer.sign(statement.domain, statement.bytes);
}
// Whether `by` signed this message.
template <class Message>
[[nodiscard]] Verdict check(const Message& message, const NodeId& by, const Verifier& verifier,
                            const Hash& fingerprint) {
  const auto statement = statement_of(message, fingerprint);
  return verifier.verify(by, statement.domain, statement.bytes, message.signature);
}

// Whether both halves are signed by one node, in the round that is named, and contradict each
// other.
[[nodiscard]] Verdict check(const Equivocation& message, const Verifier& verifier,
                            const Hash& fingerprint);

}  // namespace starling::gossip::consensus
