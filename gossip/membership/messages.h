// Messages of the membership room, as plain structs. Bytes: message_codec.h; prose: messages.capnp.
#pragma once

#include "gossip/membership/member_record.h"

#include <array>
#include <bitset>
#include <compare>
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

// "Are you there?", on every session on which nothing was heard for half a second or a second.
struct Heartbeat {
  std::uint64_t seq = 0;
  bool unneeded = false;   // the sender could do without this session
  std::uint64_t view = 0;  // digest_hash() of the sender's, where views are compared; 0: not now
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

struct HeartbeatAck {
  std::uint64_t seq = 0;
  bool unneeded = false;  // as in Heartbeat
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

// How two nodes talk about a statement without sending it: whose it is, and how new. Ids with equal
// prefixes take 2^63 tries to make.
struct FactName {
  enum class Kind : std::uint8_t { record, report };
  std::uint64_t subject = 0;  // prefix_of the author's id
  Kind kind = Kind::record;
  std::uint64_t version = 0;  // incarnation or samples, modulo 2^63

  friend auto operator<=>(const FactName&, const FactName&) = default;
};
inline constexpr std::size_t kFactNameBytes = 16;

// In the order of the ids.
[[nodiscard]] inline std::uint64_t prefix_of(const NodeId& id) {
  std::uint64_t prefix = 0;
  for (std::size_t i = 0; i < 8; ++i)
    prefix = prefix << 8 | std::to_integer<std::uint64_t>(id.bytes[i]);
  return prefix;
}
// The smallest id with this prefix.
[[nodiscard]] inline NodeId first_id(std::uint64_t prefix) {
  NodeId id;
  for (std::size_t i = 0; i < 8; ++i) id.bytes[i] = static_cast<std::byte>(prefix >> (56 - 8 * i));
  return id;
}
// Where the id with this prefix is in a map by id, or the end.
[[nodiscard]] auto find_prefix(auto& by_id, std::uint64_t prefix) {
  const auto at = by_id.lower_bound(first_id(prefix));
  return at != by_id.end() && prefix_of(at->first) == prefix ? at : by_id.end();
}
inline constexpr std::uint64_t kVersions = std::uint64_t{1} << 63;
[[nodiscard]] inline FactName name_of(const MemberRecord& record) {
  return {prefix_of(record.id), FactName::Kind::record, record.incarnation.value % kVersions};
}
[[nodiscard]] inline FactName name_of(const ProgressReport& report) {
  return {prefix_of(report.id), FactName::Kind::report, report.samples % kVersions};
}

// Statements: new ones (pushed, passed on once), or those of a bucket that was asked for.
struct Facts {
  std::vector<AgedRecord> records;
  std::vector<Accusation> accusations;
  std::vector<ProgressReport> reports;
  // Statements that the sender can send, and those that it asks the receiver for.
  std::vector<FactName> has;
  std::vector<FactName> wants;
  // Nonzero: part of the answer to the BucketRequest with this nonce.
  std::uint64_t answers = 0;
  // In an answer: the id after which the rest must be asked for; nothing: this was the last part.
  std::optional<NodeId> more_after;
  friend bool operator==(const Facts&, const Facts&) = default;

  [[nodiscard]] bool empty() const {
    return records.empty() && accusations.empty() && reports.empty() && has.empty() &&
           wants.empty();
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
