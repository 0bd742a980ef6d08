// What the result buffer holds, chunk by chunk.
#pragma once

#include "node/base/ids.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace starling::gossip::consensus {

// Hash of the bytes that each chunk of the result buffer holds. While a job that writes a chunk is
// out, that chunk counts as unknown, so nobody serves or certifies bytes that are about to change.
class ChunkStore {
 public:
  explicit ChunkStore(std::uint32_t chunks) : entries_(chunks) {}

  void begin_write(std::uint32_t chunk) { ++entries_[chunk].writes; }
  // `hash`: what the job wrote; nothing where it failed.
  void end_write(std::uint32_t chunk, std::optional<Hash> hash) {
    auto& entry = entries_[chunk];
    if (entry.writes > 0) --entry.writes;
    entry.hash = hash;
  }
  void set(std::uint32_t chunk, const Hash& hash) { entries_[chunk].hash = hash; }

  [[nodiscard]] bool holds(std::uint32_t chunk, const Hash& hash) const {
    const auto& entry = entries_[chunk];
    return entry.writes == 0 && entry.hash == hash;
  }
  [[nodiscard]] bool is_being_written(std::uint32_t chunk) const {
    return entries_[chunk].writes > 0;
  }

 private:
  struct Entry {
    std::optional<Hash> hash;
    std::uint32_t writes = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace starling::gossip::consensus
