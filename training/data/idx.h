// MNIST's file format, as MNIST and Fashion-MNIST have it: an array of images and an array of
// labels, plain or gzip.
#pragma once

#include "node/base/bytes.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "training/data/dataset.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace starling::training {

// An array of bytes with 1 to 3 dimensions.
struct IdxArray {
  std::vector<std::uint32_t> shape;
  Bytes bytes;
};

// Raising it admits larger sets, which live in memory while the node runs.
inline constexpr std::uint64_t kMaxIdxBytes = 4ULL << 30;

// Parses an IDX file; gzip, of one member or several, is recognised by its first bytes. What is
// unpacked grows with what the file really holds, never with what its header promises.
//
// Errors:  data_failed, naming `name`: no IDX, not bytes, too large, more or fewer bytes than its
//          shape.
// Cost:    time and memory of the unpacked size.
[[nodiscard]] Result<IdxArray> parse_idx(const std::string& name, ByteView file,
                                         std::uint64_t max_bytes = kMaxIdxBytes);

// The `train-*` and `t10k-*` pairs of a folder; without the latter there is no validation set.
[[nodiscard]] Result<DataSets> open_idx(const DataSpec& spec);

}  // namespace starling::training
