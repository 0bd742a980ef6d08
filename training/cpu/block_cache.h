// BlockCache: memory for tensors that is asked of the system once and then handed round.
#pragma once

#include "node/base/mutex.h"

#include <array>
#include <cstddef>

namespace starling::training {

// Blocks of memory on 64-byte boundaries, in eight size classes to each power of two. A released
// block waits in its class for the next request of that class, so a training step that does what
// the step before did takes no page fault and no system call. All memory lies in 2 MiB pages where
// the system has them: large blocks in mappings of their own, small ones cut from shared mappings.
//
// Lives as long as the process (tensors may outlive everything else). Thread: any.
// Cost:    at most 1/8 beyond what was asked, and what idle classes hold: nothing goes back to the
//          system but by trim(), which allocate() calls before it gives up.
class BlockCache {
 public:
  constexpr BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // At least `bytes` > 0 bytes, not cleared; null if the system has no more memory.
  [[nodiscard]] void* allocate(std::size_t bytes);
  // Takes back what allocate() gave; null is ignored.
  void release(void* block);
  // Returns idle large blocks to the system: how many bytes.
  std::size_t trim();

  // Bytes that were asked of the system and not returned.
  [[nodiscard]] std::size_t mapped_bytes() const;

 private:
  struct Header;
  struct Class {
    Mutex mutex;
    Header* idle STARLING_GUARDED_BY(mutex) = nullptr;
  };
  static constexpr std::size_t kClasses = 8 * 48;

  [[nodiscard]] void* fresh(std::size_t number, std::size_t capacity);
  [[nodiscard]] std::byte* cut(std::size_t capacity) STARLING_REQUIRES(mutex_);
  [[nodiscard]] std::byte* map(std::size_t bytes) STARLING_REQUIRES(mutex_);
  void unmap(std::byte* begin, std::size_t bytes);

  std::array<Class, kClasses> classes_;
  mutable Mutex mutex_;
  std::size_t mapped_ STARLING_GUARDED_BY(mutex_) = 0;
  std::size_t coloured_ STARLING_GUARDED_BY(mutex_) = 0;  // large blocks so far
  // What is left of the mapping that small blocks are cut from.
  std::byte* rest_ STARLING_GUARDED_BY(mutex_) = nullptr;
  std::size_t rest_bytes_ STARLING_GUARDED_BY(mutex_) = 0;
};

}  // namespace starling::training
