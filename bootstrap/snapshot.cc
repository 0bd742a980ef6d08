#include "bootstrap/snapshot.h"

#include "gossip/exchange/messages.h"
#include "node/base/hash.h"
#include "node/base/tree_hash.h"

#include <algorithm>
#include <string>
#include <utility>

namespace starling::bootstrap {
namespace {

std::size_t chunks_of(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + kChunkBytes - 1) / kChunkBytes);
}

}  // namespace

std::size_t Manifest::chunk_bytes(std::size_t index) const {
  if (index + 1 < chunks()) return kChunkBytes;
  return static_cast<std::size_t>(total_bytes - std::uint64_t{kChunkBytes} * (chunks() - 1));
}

Hash Manifest::id() const {
  Hasher hasher;
  Bytes age_bytes;
  ByteWriter(age_bytes).write(age);
  hasher.add("starling/snapshot/1").add(fingerprint.view()).add(step).add(age_bytes);
  hasher.add(total_bytes).add(static_cast<std::uint64_t>(chunk_hashes.size()));
  for (const auto& hash : chunk_hashes) hasher.add(hash.view());
  return hasher.finish();
}

// Comparisons with a NaN are false.
bool valid_age(double age) { return age >= 0 && age <= gossip::exchange_limits::kMaxAge; }

Result<void> check_manifest(const Manifest& manifest) {
  const auto refuse = [](std::string why) {
    return fail(Errc::bad_message, Doing::transferring_state, std::move(why));
  };
  if (manifest.chunk_hashes.empty() || manifest.chunks() > kMaxChunks)
    return refuse("a snapshot of " + std::to_string(manifest.chunks()) + " chunks");
  if (manifest.total_bytes > std::uint64_t{kMaxChunks} * kChunkBytes ||
      chunks_of(manifest.total_bytes) != manifest.chunks())
    return refuse(std::to_string(manifest.chunks()) + " chunks for a snapshot of " +
                  std::to_string(manifest.total_bytes) + " bytes");
  if (!valid_age(manifest.age)) return refuse("a snapshot without an age");
  return {};
}

Result<Snapshot> cut_snapshot(const std::vector<ByteView>& parts, Manifest about) {
  std::uint64_t total = 0;
  for (const auto& part : parts) total += part.size();
  if (total == 0 || total > std::uint64_t{kMaxChunks} * kChunkBytes)
    return fail(Errc::too_large, Doing::transferring_state,
                "a replica of " + std::to_string(total) + " bytes cannot be handed on; " +
                    std::to_string(std::uint64_t{kMaxChunks} * kChunkBytes) + " are the most");
  Snapshot snapshot;
  snapshot.manifest = std::move(about);
  snapshot.manifest.total_bytes = total;
  snapshot.manifest.chunk_hashes.clear();
  Bytes chunk;
  const auto close = [&] {
    snapshot.manifest.chunk_hashes.push_back(tree_hash_of(chunk));
    snapshot.chunks.push_back(share(std::exchange(chunk, {})));
  };
  for (auto part : parts) {
    while (!part.empty()) {
      if (chunk.empty()) chunk.reserve(kChunkBytes);
      const auto taken = std::min(part.size(), kChunkBytes - chunk.size());
      chunk.insert(chunk.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(taken));
      part = part.subspan(taken);
      if (chunk.size() == kChunkBytes) close();
    }
  }
  if (!chunk.empty()) close();
  return snapshot;
}

}  // namespace starling::bootstrap
