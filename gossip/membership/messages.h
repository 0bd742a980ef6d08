// Messages of the membership room, as plain structs. Bytes: message_codec.h; prose: messages.capnp.
#pragma once

#include "gossip/membership/member_record.h"

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace starling::gossip {

inline constexpr std::size_t kBuckets = 256;
inline constexpr std::size_t kMaxMembershipBody = std::size_t{16} << 10;
// Statements in one message: more are sent in further messages.
inline constexpr std::size_t kMaxFactsBytes = kMaxMembershipBody - 1024;

// Which bucket of the digest an id belongs to.
[[nodiscard]] inline std::size_t bucket_of(const NodeId& id) {
  return std::to_integer<std::size_t>(id.bytes[0]);
}

// "Are you there?", on every session, every 500 ms.
struct Heartbeat {
  std::uint64_t seq = 0;
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

struct HeartbeatAck {
  std::uint64_t seq = 0;
  friend bool operator==(const HeartbeatAck&, const HeartbeatAck&) = default;
};

// "Can you reach this member? I cannot."
struct ProbeRequest {
  std::uint64_t nonce = 0;
  NodeId subject;
  friend bool operator==(const ProbeRequest&, const ProbeRequest&) = default;
};

enum class ProbeVerdict : std::uint8_t { reachable = 1, unreachable = 2, no_session = 3 };

struct ProbeReply {
  std::uint64_t nonce = 0;
  NodeId subject;
  ProbeVerdict verdict = ProbeVerdict::no_session;
  friend bool operator==(const ProbeReply&, const ProbeReply&) = default;
};

// A record and how long ago its subject signed it, as added up by those who passed it on: what
// lets a record expire at about the same time everywhere without anybody's wall clock.
struct AgedRecord {
  MemberRecord record;
  std::uint32_t age_s = 0;
  friend bool operator==(const AgedRecord&, const AgedRecord&) = default;
};

// Statements: new ones (pushed, passed on once), or those of a bucket that was asked for.
struct Facts {
  std::vector<AgedRecord> records;
  std::vector<Accusation> accusations;
  std::vector<ProgressReport> reports;
  // Nonzero: part of the answer to the BucketRequest with this nonce.
  std::uint64_t answers = 0;
  // In an answer: the id after which the rest must be asked for; nothing: this was the last part.
  std::optional<NodeId> more_after;
  friend bool operator==(const Facts&, const Facts&) = default;

  [[nodiscard]] bool empty() const {
    return records.empty() && accusations.empty() && reports.empty();
  }
};

// One hash for each bucket of ids; buckets that differ are asked for.
struct Digest {
  std::array<std::uint64_t, kBuckets> buckets{};
  bool wants_reply = false;  // the other side answers with its own digest
  friend bool operator==(const Digest&, const Digest&) = default;
};

struct BucketRequest {
  std::uint64_t nonce = 0;  // not zero
  std::bitset<kBuckets> buckets;
  NodeId after;  // only ids above this one
  friend bool operator==(const BucketRequest&, const BucketRequest&) = default;
};

using MembershipMessage =
    std::variant<Heartbeat, HeartbeatAck, ProbeRequest, ProbeReply, Facts, Digest, BucketRequest>;

}  // namespace starling::gossip
