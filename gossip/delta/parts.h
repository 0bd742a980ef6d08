// Parts: a walk over the blocks of a model, divided so that several threads can take it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

namespace starling::gossip {

// Does job(0) to job(parts - 1), in any order and on any threads, and returns when all are done.
using ForEachPart =
    std::function<void(std::size_t parts, const std::function<void(std::size_t)>& job)>;

// All on the calling thread.
inline void one_after_another(std::size_t parts, const std::function<void(std::size_t)>& job) {
  for (std::size_t part = 0; part < parts; ++part) job(part);
}

// Blocks of a part: 2 MiB of x and as much of r. It does not depend on the number of threads, so
// that sums over parts are the same for any.
inline constexpr std::size_t kPartBlocks = 128;

// Threads that do so at the most: what more of them would wait for is memory.
inline constexpr int kMostCodecThreads = 4;

struct BlockRange {
  std::size_t begin;
  std::size_t end;
};

[[nodiscard]] inline std::size_t part_count(std::size_t blocks) {
  return (blocks + kPartBlocks - 1) / kPartBlocks;
}
[[nodiscard]] inline BlockRange part_of(std::size_t blocks, std::size_t part) {
  return {part * kPartBlocks, std::min(blocks, (part + 1) * kPartBlocks)};
}

}  // namespace starling::gossip
