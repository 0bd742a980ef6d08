// The messages of an edge: opening it, exchanging on it, finding back after a lost session, closing
// it.
//
// The two ends of an edge are the two ends of the authenticated session that carries the message,
// so no message names them. Every message names the generation of the edge (rulings 9).
#pragma once

#include "gossip/delta/jobs.h"
#include "gossip/delta/level.h"
#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/units.h"

#include <cstdint>
#include <string_view>
#include <variant>

namespace starling::gossip {

// From where both ends take their first reference.
enum class OpenMode : std::uint8_t {
  genesis,   // the genesis of the settings, which both can make: no bytes
  snapshot,  // the proposer's replica at L6, attached
};

// Why an edge starts over with a new reference.
enum class ResetReason : std::uint8_t {
  sequence_differs,    // the ends are further apart than one exchange
  chain_differs,       // same sequence number, other payloads before it
  spot_differs,        // a block of the reference is not the same
  generation_differs,  // one end missed an opening
  bad_payload,         // a delta does not decode
  bad_header,          // a header contradicts the state of the edge
};

// Why an edge ends or an opening is refused.
enum class CloseReason : std::uint8_t {
  not_wanted,         // fell out of the topology
  full,               // degree + 2 edges are taken, or too many strangers open edges at the moment
  stale_generation,   // the opening's generation is not above the one known here, which is named
  too_many_resets,    // more than three in an hour: closed for ten minutes
  cooling,            // still within those ten minutes, or after a leave push
  genesis_differs,    // the proposer's genesis has another hash: other settings
  bad_snapshot,       // the snapshot does not decode to the announced hash
  timed_out,          // an opening or a resumption got no reply
  unknown_edge,       // a resumption of an edge that does not exist here
  replica_changed,    // this end took over another replica
  leaving,            // this end leaves the swarm
  finishing,          // this end drains for the final consensus and opens nothing
  failed,             // this end could not carry out a job of its own
  misbehaved,         // the other end sent what does not decode three times within an hour
  too_many_openings,  // eight at once, then more than one a minute: try again later
  // Never on the wire:
  session_lost,    // the session ended while the edge was being opened, or did not come back
  peer_restarted,  // another process answers for the peer: what it held is gone
};

// What an offer is for.
enum class Purpose : std::uint8_t {
  regular,
  leave,  // hands over what was not sent before its sender leaves: not clipped, the edge ends after
};

[[nodiscard]] std::string_view name_of(OpenMode mode);
[[nodiscard]] std::string_view name_of(ResetReason reason);
[[nodiscard]] std::string_view name_of(CloseReason reason);

// What the sender of an offer or an answer says of its own replica.
struct ReplicaFigures {
  std::uint64_t samples = 0;  // processed by the sender, ever
  std::uint64_t steps = 0;    // taken by the sender, ever
  double age = 0;             // steps behind this replica (rulings 7), finite, >= 0
};

// Proposes an edge. The receiver acknowledges, or refuses with EdgeClose.
struct EdgeOpen {
  Generation generation;
  OpenMode mode = OpenMode::genesis;
  Hash reference;        // of r, as both ends must have it
  double age = 0;        // of the proposer's replica
  Bytes record;          // the proposer's signed member record, may be empty
  SharedBytes snapshot;  // L6 bytes; null in mode genesis
};

// The reference is set at the receiver as well: the edge is open with sequence number 0.
struct EdgeOpenAck {
  Generation generation;
  Hash reference;
  double age = 0;
};

// The first half of an exchange.
struct Offer {
  Generation generation;
  Seq seq;
  std::uint64_t chain8 = 0;   // first bytes of the hash chain before this exchange
  std::uint64_t attempt = 0;  // counts the offers that the sender made on this generation
  Purpose purpose = Purpose::regular;
  ReplicaFigures figures;
  float expected_wait = 0;  // steps of the sender until it has the answer, on average; >= 0
  Spot spot;                // one block of the sender's reference
  Payload payload;
};

// The second half. The weight holds for both ends.
struct Answer {
  Generation generation;
  Seq seq;
  std::uint64_t chain8 = 0;
  Weight weight;
  ReplicaFigures figures;
  Payload payload;
};

// The offer is not answered; its payload is void at both ends.
struct Busy {
  Generation generation;
  Seq seq;
  Hash offer;  // name_of_offer() of the void one
  Duration retry_after{};
};

// Whether a resuming end has an offer that was not answered.
enum class Pending : std::uint8_t { none, offer };

// First message of each end about an edge on a new session between the same two processes.
struct Resume {
  Generation generation;
  Seq seq;
  std::uint64_t chain8 = 0;
  Pending pending = Pending::none;
};

// The edge starts over as `generation`: the end with the lower id sends EdgeOpen with a snapshot.
struct EdgeReset {
  Generation generation;
  ResetReason reason = ResetReason::sequence_differs;
};

// Every generation up to this one is closed.
struct EdgeClose {
  Generation generation;
  CloseReason reason = CloseReason::not_wanted;
};

using ExchangeMessage =
    std::variant<EdgeOpen, EdgeOpenAck, Offer, Answer, Busy, Resume, EdgeReset, EdgeClose>;

// The name of one offer, by which Busy says what is void: a hash over its header, in which no two
// offers of one end are the same. The payload is not in it because this runs on the io thread.
[[nodiscard]] Hash name_of_offer(const Offer& offer);

// Whether the exchange with this number pools BatchNorm statistics: every 16th.
[[nodiscard]] constexpr Statistics statistics_of(Seq seq) {
  return seq.value % 16 == 15 ? Statistics::with : Statistics::without;
}

namespace exchange_limits {
inline constexpr std::size_t kMaxBody = 2 * 1024;
inline constexpr std::size_t kMaxRecord = 512;
// Generations and sequence numbers count one by one from zero: a number beyond is a lie, and
// leaves room to count on.
inline constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 62;
inline constexpr std::size_t kMaxAttachment = 256 * 1024 * 1024;
// Above every count that a real run can reach, below what loses precision in a double.
inline constexpr double kMaxAge = 1e15;
// No exchange and no sponsor takes a replica beyond: room for steps until nobody would read it.
inline constexpr double kMaxOwnAge = kMaxAge / 2;
inline constexpr float kMaxWait = 1e9F;
inline constexpr std::chrono::milliseconds kMaxRetry{60'000};
}  // namespace exchange_limits

}  // namespace starling::gossip
