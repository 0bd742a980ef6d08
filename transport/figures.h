// What can be counted about sessions, for the status page and the metrics.
#pragma once

#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>

namespace starling::transport {

// Bytes of session records with their length prefix and tag, as they cross the wire; the handshake
// and TCP/IP headers are not in them.
struct ByteCount {
  std::uint64_t control = 0;
  std::uint64_t bulk = 0;

  [[nodiscard]] std::uint64_t total() const { return control + bulk; }

  ByteCount& operator+=(const ByteCount& other) {
    control += other.control;
    bulk += other.bulk;
    return *this;
  }
};

// Figures of one live session.
struct SessionFigures {
  NodeId peer;
  ByteCount sent;
  ByteCount received;
  std::uint64_t records_sent = 0;
  std::uint64_t records_received = 0;
  // Attachment bytes per second that the peer confirmed, averaged over bursts of at least
  // limits::kBulkChunk (EMA, gain 1/4); 0: never measured.
  double goodput = 0;
  std::size_t queued_control_bytes = 0;
  std::size_t queued_bulk_bytes = 0;
};

// Why handshakes failed, as the one who noticed it names it.
struct HandshakeFailures {
  std::uint64_t wrong_swarm = 0;
  std::uint64_t bad_message = 0;
  std::uint64_t bad_signature = 0;
  std::uint64_t wrong_identity = 0;
  std::uint64_t timed_out = 0;
  std::uint64_t replayed = 0;
  std::uint64_t refused = 0;  // by name, after authentication: duplicate, revoked, full, itself
  std::uint64_t crowded = 0;  // turned away before we said a byte: too many, or too fast
  std::uint64_t closed = 0;   // the other side went away
};

// Since start, sessions that ended included.
struct TransportTotals {
  std::uint64_t handshakes_ok = 0;
  HandshakeFailures handshakes_failed;
  std::uint64_t sessions_opened = 0;
  std::uint64_t sessions_closed = 0;
  std::uint64_t truncations = 0;  // a connection ended without a goodbye
  std::uint64_t bad_records = 0;  // records that broke a rule or did not decrypt
  std::uint64_t dials_failed = 0;
  ByteCount sent;
  ByteCount received;
  std::uint64_t records_sent = 0;
  std::uint64_t records_received = 0;
  std::size_t reserved_bytes = 0;  // of limits::kTransferBudget
  std::size_t unauthenticated = 0;
};

}  // namespace starling::transport
