// A replica at one step, cut into chunks that can come from several nodes.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"
#include "node/base/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace starling::bootstrap {

inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
// 448 MiB: the list of hashes then fits the body of one message.
inline constexpr std::size_t kMaxChunks = 1792;

// What a snapshot is. Two snapshots with one id are the same bytes.
struct Manifest {
  Hash fingerprint;  // of the settings it was trained with
  std::uint64_t step = 0;
  double age = 0;  // of the replica, in steps (rulings 7); valid_age()
  std::uint64_t total_bytes = 0;
  std::vector<Hash> chunk_hashes;

  friend bool operator==(const Manifest&, const Manifest&) = default;

  [[nodiscard]] std::size_t chunks() const { return chunk_hashes.size(); }
  // Bytes of one chunk: kChunkBytes, the last one what is left.
  [[nodiscard]] std::size_t chunk_bytes(std::size_t index) const;
  // BLAKE2b of all fields.
  [[nodiscard]] Hash id() const;
};

// Whether a replica can be that old: not below 0, not above what the exchange room takes in an
// offer.
[[nodiscard]] bool valid_age(double age);

// Errors:  bad_message unless sizes, number of chunks and age fit each other and the bounds.
[[nodiscard]] Result<void> check_manifest(const Manifest& manifest);

// A whole snapshot: immutable.
struct Snapshot {
  Manifest manifest;
  std::vector<SharedBytes> chunks;
};
// Owners: the sponsor that serves it and the job that installs it.
using SharedSnapshot = std::shared_ptr<const Snapshot>;

// Bytes of a replica, which may lie in several places (parameters, batch norm, ...), as a snapshot.
//
// Rule:    the parts in order, without gaps. `about` says everything but total_bytes and hashes.
// Errors:  too_large above kMaxChunks chunks.
// Cost:    one copy and one hash of everything, at the speed of memory. A job for the pool.
// Thread:  any; pure.
[[nodiscard]] Result<Snapshot> cut_snapshot(const std::vector<ByteView>& parts, Manifest about);

}  // namespace starling::bootstrap
