#include "training/cpu/block_cache.h"

#include "node/base/random.h"
#include "node/base/units.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::training;
using namespace starling::units;

namespace {

bool holds_only(const void* block, std::size_t bytes, unsigned char value) {
  const auto* at = static_cast<const unsigned char*>(block);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (at[i] != value) return false;
  }
  return true;
}

}  // namespace

TEST_SUITE("training/cpu/block_cache") {
  TEST_CASE("blocks of every size lie on 64-byte boundaries and none overlaps another") {
    BlockCache cache;
    Rng rng(1);
    std::vector<std::pair<void*, std::size_t>> blocks;
    for (int i = 0; i < 300; ++i) {
      const std::size_t bytes = 1 + rng.below(std::uint64_t{1} << rng.below(23));
      void* block = cache.allocate(bytes);
      REQUIRE(block != nullptr);
      CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
      std::memset(block, i & 0xff, bytes);
      blocks.emplace_back(block, bytes);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      CAPTURE(blocks[i].second);
      CHECK(holds_only(blocks[i].first, blocks[i].second, static_cast<unsigned char>(i)));
      cache.release(blocks[i].first);
    }
    cache.release(nullptr);
  }

  TEST_CASE("what was released is handed out again, and nothing more is asked of the system") {
    BlockCache cache;
    const std::vector<std::size_t> sizes{300, 5'000, 200'000, 3_MiB, 40_MiB};
    const auto round = [&] {
      std::vector<void*> blocks;
      for (const std::size_t bytes : sizes) {
        blocks.push_back(cache.allocate(bytes));
        REQUIRE(blocks.back() != nullptr);
      }
      for (void* block : blocks) cache.release(block);
      return blocks;
    };
    const auto first = round();
    const std::size_t mapped = cache.mapped_bytes();

    const auto second = round();

    CHECK(first == second);
    CHECK(cache.mapped_bytes() == mapped);
    CHECK(mapped < 60_MiB);
  }

  TEST_CASE("trimming returns idle large blocks and keeps those in use") {
    BlockCache cache;
    void* used = cache.allocate(8_MiB);
    void* idle = cache.allocate(16_MiB);
    REQUIRE(used != nullptr);
    REQUIRE(idle != nullptr);
    std::memset(used, 7, 8_MiB);
    cache.release(idle);
    const std::size_t before = cache.mapped_bytes();

    const std::size_t returned = cache.trim();

    CHECK(returned >= 16_MiB);
    CHECK(cache.mapped_bytes() == before - returned);
    CHECK(holds_only(used, 8_MiB, 7));
    cache.release(used);
    (void)cache.trim();
    CHECK(cache.mapped_bytes() == 0);
  }

  TEST_CASE("a size that no machine has is refused with a null, not an overflow") {
    BlockCache cache;
    CHECK(cache.allocate(~std::size_t{0}) == nullptr);
    CHECK(cache.allocate(std::size_t{1} << 62) == nullptr);
  }

  TEST_CASE("threads that allocate and release at once never share a block") {
    BlockCache cache;
    std::atomic<int> torn = 0;
    std::vector<std::thread> threads;
    for (unsigned char t = 0; t < 4; ++t) {
      threads.emplace_back([&cache, &torn, t] {
        Rng rng(t);
        for (int i = 0; i < 2'000; ++i) {
          const std::size_t bytes = 64 + rng.below(4'000);
          void* block = cache.allocate(bytes);
          if (block == nullptr) {
            ++torn;
            continue;
          }
          std::memset(block, t, bytes);
          if (!holds_only(block, bytes, t)) ++torn;
          cache.release(block);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(torn == 0);
  }
}
