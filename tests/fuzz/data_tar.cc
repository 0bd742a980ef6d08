// Any bytes as a tar shard: indexing ends, and every sample lies inside the archive.
#include "node/base/check.h"
#include "training/data/tar_shards.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::training;
  std::vector<std::unique_ptr<ByteSource>> shards;
  shards.push_back(
      std::make_unique<MemorySource>("fuzz", to_bytes(std::as_bytes(std::span(data, size)))));
  NullLog log;
  const auto sets = open_tar_shards(std::move(shards), "fuzz", log);
  if (!sets) return 0;
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
  return 0;
}
