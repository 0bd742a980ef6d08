#include "training/cpu/block_cache.h"

#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/base/units.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <new>

namespace starling::training {

using namespace units;

// In the 64 bytes before a block.
struct BlockCache::Header {
  std::size_t number = 0;      // its class
  std::byte* begin = nullptr;  // of the mapping, or null for a block that was cut
  std::size_t bytes = 0;       // of the mapping
  Header* next = nullptr;      // while idle
};

namespace {

constexpr std::size_t kHeader = 64;
constexpr std::size_t kSmallest = 256;
constexpr std::size_t kHugePage = 2_MiB;
// Blocks below are cut from mappings of kShared bytes.
constexpr std::size_t kLarge = 1_MiB;
constexpr std::size_t kShared = 8_MiB;
// Large blocks begin at different cache sets: were they all at the start of a page, the streams of
// one loop would fight for the same few sets of the first-level cache.
constexpr std::size_t kColours = 8;
constexpr std::size_t kColourStride = 448;

struct SizeClass {
  std::size_t number;
  std::size_t capacity;
};

// The class whose blocks, header and colour included, hold `bytes`.
SizeClass class_of(std::size_t bytes) {
  const std::size_t size = std::max(bytes, kSmallest);
  const auto power = static_cast<std::size_t>(std::bit_width(size - 1)) - 1;
  const std::size_t base = std::size_t{1} << power;
  const std::size_t step = base / 8;
  const std::size_t eighth = (size - base + step - 1) / step;  // 1 to 8
  return {power * 8 + eighth - 1, base + eighth * step};
}

}  // namespace

void* BlockCache::allocate(std::size_t bytes) {
  // Larger than any address space: the sum below must not overflow.
  if (bytes > std::size_t{1} << 46) return nullptr;
  const auto [number, capacity] = class_of(bytes + kHeader);
  STARLING_DCHECK(number < kClasses);
  {
    Class& one = classes_[number];
    const MutexLock lock(one.mutex);
    if (one.idle != nullptr) {
      Header* header = one.idle;
      one.idle = header->next;
      return reinterpret_cast<std::byte*>(header) + kHeader;
    }
  }
  void* block = fresh(number, capacity);
  if (block == nullptr && trim() > 0) block = fresh(number, capacity);
  return block;
}

void BlockCache::release(void* block) {
  if (block == nullptr) return;
  auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(block) - kHeader);
  Class& one = classes_[header->number];
  const MutexLock lock(one.mutex);
  header->next = one.idle;
  one.idle = header;
}

void* BlockCache::fresh(std::size_t number, std::size_t capacity) {
  static_assert(sizeof(Header) <= kHeader);
  const MutexLock lock(mutex_);
  Header header{.number = number};
  std::byte* at = nullptr;
  if (capacity < kLarge) {
    at = cut(capacity);
    if (at == nullptr) return nullptr;
  } else {
    const std::size_t colour = coloured_++ % kColours * kColourStride;
    header.bytes = (capacity + colour + kHugePage - 1) / kHugePage * kHugePage;
    header.begin = map(header.bytes);
    if (header.begin == nullptr) return nullptr;
    at = header.begin + colour;
  }
  new (at) Header(header);
  return at + kHeader;
}

std::byte* BlockCache::cut(std::size_t capacity) {
  const std::size_t bytes = (capacity + kHeader - 1) / kHeader * kHeader;
  if (bytes > rest_bytes_) {
    // What is left of the last mapping is given up: an eighth of it at most.
    std::byte* begin = map(kShared);
    if (begin == nullptr) return nullptr;
    rest_ = begin;
    rest_bytes_ = kShared;
  }
  std::byte* at = rest_;
  rest_ += bytes;
  rest_bytes_ -= bytes;
  return at;
}

// `bytes` on a 2 MiB boundary, as huge pages where the system allows; null without memory.
std::byte* BlockCache::map(std::size_t bytes) {
  void* mapping = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapping);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  const std::size_t before = past == 0 ? 0 : kHugePage - past;
  if (before > 0) (void)::munmap(begin, before);
  (void)::munmap(begin + before + bytes, kHugePage - before);
  prefer_huge_pages(begin + before, bytes);
  mapped_ += bytes;
  return begin + before;
}

void BlockCache::unmap(std::byte* begin, std::size_t bytes) {
  (void)::munmap(begin, bytes);
  const MutexLock lock(mutex_);
  mapped_ -= bytes;
}

std::size_t BlockCache::trim() {
  std::size_t returned = 0;
  for (Class& one : classes_) {
    Header* idle = nullptr;
    {
      const MutexLock lock(one.mutex);
      idle = one.idle;
      one.idle = nullptr;
    }
    while (idle != nullptr) {
      Header* const next = idle->next;
      if (idle->begin == nullptr) {
        release(reinterpret_cast<std::byte*>(idle) + kHeader);
      } else {
        returned += idle->bytes;
        unmap(idle->begin, idle->bytes);
      }
      idle = next;
    }
  }
  return returned;
}

std::size_t BlockCache::mapped_bytes() const {
  const MutexLock lock(mutex_);
  return mapped_;
}

}  // namespace starling::training
