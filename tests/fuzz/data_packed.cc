// A packed file of any bytes: what opens has samples inside the file, and reading them ends.
#include "node/base/check.h"
#include "training/data/packed.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

using namespace starling;
using namespace starling::training;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes = to_bytes(std::as_bytes(std::span(data, size)));
  // The hash would stop every change: it is made right, as an author of bad files would.
  if (size >= kPackedHeaderBytes && (data[kPackedHeaderBytes - 1] & 1U) != 0) {
    PackedHeader header;
    std::uint64_t at = 0;
    ByteReader reader(std::span<const std::byte>(bytes).subspan(kPackedMagic.size()));
    for (std::uint32_t* field : {&header.version, &header.channels, &header.classes, &header.train,
                                 &header.val, &header.reserved})
      *field = *reader.read<std::uint32_t>();
    at = header.index_at = *reader.read<std::uint64_t>();
    header.index_bytes = *reader.read<std::uint64_t>();
    if (at <= size) {
      header.hash = hash_of(header, std::span<const std::byte>(bytes).subspan(at));
      std::ranges::copy(encode_header(header), bytes.begin());
    }
  }
  const auto sets = open_packed(std::make_unique<MemorySource>("input", std::move(bytes)), "input");
  if (!sets) return 0;
  for (const Dataset* set : {sets->train.get(), sets->val.get()}) {
    if (set == nullptr) continue;
    STARLING_CHECK(set->size() > 0 && set->size() * kPackedEntryBytes <= size);
    Sample sample;
    for (std::uint32_t i = 0; i < std::min(set->size(), 64U); ++i) {
      if (!set->read(i, sample)) continue;
      STARLING_CHECK(sample.bytes.size() <= size);
      STARLING_CHECK(sample.label >= 0 && sample.label < static_cast<std::int64_t>(set->classes()));
    }
  }
  return 0;
}
