// Packed files: a whole data set, decoded or made smaller beforehand, in one file (`packed:FILE`).
//
//   header    96 bytes, see PackedHeader
//   samples   one after the other, training before validation
//   index     the name that the set had, the names of the classes, then 24 bytes a sample
//
// Little-endian throughout. The header holds the hash of everything but the samples, the index a
// CRC-32 of each of those: a damaged file is refused, a damaged sample is one bad sample.
#pragma once

#include "node/base/result.h"
#include "training/data/byte_source.h"
#include "training/data/dataset.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling::training {

inline constexpr std::array<char, 16> kPackedMagic{'s', 't', 'a', 'r', 'l', 'i', 'n', 'g',
                                                   ' ', 'p', 'a', 'c', 'k', 'e', 'd', '\n'};
inline constexpr std::uint32_t kPackedVersion = 1;

// Fields in the order in which they are stored, after the magic.
struct PackedHeader {
  std::uint32_t version = kPackedVersion;
  std::uint32_t channels = 3;  // of pixels; encoded samples count as 3
  std::uint32_t classes = 0;
  std::uint32_t train = 0;  // samples
  std::uint32_t val = 0;
  std::uint32_t reserved = 0;  // 0
  std::uint64_t index_at = 0;  // where the samples end; the index goes on to the end of the file
  std::uint64_t index_bytes = 0;
  Hash hash;  // of the fields above and the index
};
inline constexpr std::size_t kPackedHeaderBytes = 16 + 6 * 4 + 2 * 8 + 32 + 8;

// Where one sample lies.
struct PackedEntry {
  std::uint64_t at = 0;
  std::uint32_t bytes = 0;
  std::uint32_t label = 0;
  // Pixels, HWC, of this size; 0 x 0: an encoded image.
  std::uint16_t height = 0;
  std::uint16_t width = 0;
  std::uint32_t crc32 = 0;
};
inline constexpr std::size_t kPackedEntryBytes = 24;
// Longest side that an entry can tell.
inline constexpr std::uint32_t kMaxPackedSide = 65'535;

struct PackedIndex {
  PackedHeader header;
  std::string origin;  // the SPEC that was packed
  std::vector<std::string> classes;
  std::vector<PackedEntry> entries;  // train + val
};

[[nodiscard]] Bytes encode_header(const PackedHeader& header);
// The index without the header's hash and places, which follow from it.
[[nodiscard]] Bytes encode_index(const PackedIndex& index);
// The hash that a header with these fields has over this index.
[[nodiscard]] Hash hash_of(const PackedHeader& header, ByteView index);
[[nodiscard]] std::uint32_t crc32_of(ByteView bytes);

// Header and index of a packed file, checked: counts, places inside the file, labels, sizes.
//
// Errors:  data_failed naming the file and what is wrong with it; no_memory for an index that has
//          its hash.
// Cost:    reads the index twice, 24 bytes a sample, and nothing else; memory is taken for an index
//          that has its hash, and by what the samples take at most 24 times that.
[[nodiscard]] Result<PackedIndex> read_packed_index(const ByteSource& file);

// The sets of a packed file; `spec.paths` is that file.
//
// A sample whose bytes do not have the stored checksum is an error of that sample alone. Samples
// are read, not mapped: see byte_source.h.
// Errors:  those of read_packed_index().
[[nodiscard]] Result<DataSets> open_packed(const DataSpec& spec);
// The same of bytes that are not in a file. Thread: any.
[[nodiscard]] Result<DataSets> open_packed(std::unique_ptr<ByteSource> file,
                                           const std::string& name);

}  // namespace starling::training
