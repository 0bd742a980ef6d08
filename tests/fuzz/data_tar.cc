// Any bytes as a tar shard, as they are and with right sums: indexing ends, and every sample lies
// inside the archive.
#include "node/base/check.h"
#include "training/data/tar_shards.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace {

using namespace starling;
using namespace starling::training;

// The sums would stop every change of a header: they are made right, as an author of bad archives
// would. Any block may be a header, so each gets one, but for the empty ones that end an archive.
void mend_sums(Bytes& archive) {
  constexpr std::size_t kBlock = 512;
  constexpr std::size_t kSumAt = 148;
  constexpr std::size_t kSumBytes = 8;
  for (std::size_t at = 0; at + kBlock <= archive.size(); at += kBlock) {
    const auto block = std::span(archive).subspan(at, kBlock);
    if (std::ranges::all_of(block, [](std::byte b) { return b == std::byte{0}; })) continue;
    const auto field = block.subspan(kSumAt, kSumBytes);
    std::ranges::fill(field, std::byte{' '});
    unsigned sum = 0;
    for (const std::byte byte : block) sum += std::to_integer<unsigned>(byte);
    for (std::size_t digit = 6; digit-- > 0; sum /= 8)
      field[digit] = static_cast<std::byte>('0' + sum % 8);
  }
}

void try_archive(Bytes archive) {
  const std::size_t size = archive.size();
  std::vector<std::unique_ptr<ByteSource>> shards;
  shards.push_back(std::make_unique<MemorySource>("fuzz", std::move(archive)));
  NullLog log;
  const auto sets = open_tar_shards(std::move(shards), "fuzz", log);
  if (!sets) return;
  STARLING_CHECK(sets->train || sets->val);
  for (const auto& set : {std::cref(sets->train), std::cref(sets->val)}) {
    if (!set.get()) continue;
    Sample sample;
    for (std::uint32_t i = 0; i < set.get()->size(); ++i) {
      STARLING_CHECK(set.get()->read(i, sample));
      STARLING_CHECK(sample.label >= 0 && sample.label < set.get()->classes());
      STARLING_CHECK(sample.bytes.size() <= size);
      STARLING_CHECK(!set.get()->sample_name(i).empty());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes archive = to_bytes(std::as_bytes(std::span(data, size)));
  try_archive(archive);
  mend_sums(archive);
  try_archive(std::move(archive));
  return 0;
}
