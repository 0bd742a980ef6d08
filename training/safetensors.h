// safetensors files: a bounded reader of foreign bytes and a streaming writer.
//
// A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes:
//   {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}}
// The reader takes nothing on trust: the tensors must tile the data exactly (no hole, no overlap),
// shapes must multiply to the bytes claimed, names must be unique, and every length is checked
// before it is used. No byte is ever executed.
#pragma once

#include "node/base/bytes.h"
#include "node/base/hash.h"
#include "node/base/ids.h"
#include "node/base/result.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::training {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

[[nodiscard]] std::string_view name_of(DType dtype);
[[nodiscard]] std::uint64_t bytes_of(DType dtype);

// Limits of a header. ResNet-101 has 626 tensors and a header of 70 KB.
inline constexpr std::uint64_t kMaxSafetensorsHeader = std::uint64_t{4} << 20;
inline constexpr std::size_t kMaxSafetensorsTensors = 16'384;
inline constexpr std::size_t kMaxSafetensorsRank = 8;
inline constexpr std::size_t kMaxSafetensorsName = 512;

// One tensor as the header describes it.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // in the data that follows the header
  std::uint64_t end = 0;

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;  // in the file
};

// Checks a header and says where the tensors are.
//
// Shapes:  `prefix` starts at byte 0 of the file and holds at least the whole header; `file_bytes`
//          is the size of the whole file.
// Errors:  corrupt for everything that the format does not allow, with the name or place.
// Cost:    linear in the header; at most 4 MiB and 16,384 tensors.
// Thread:  any; pure.
// Tested:  tests/training/safetensors_test.cc, tests/fuzz/training_safetensors.cc.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(ByteView prefix,
                                                                 std::uint64_t file_bytes);

// The same from a file, of which the header alone is read.
//
// Errors:  not_found, permission, io_failed, corrupt.
[[nodiscard]] Result<SafetensorsHeader> read_safetensors_header(const std::filesystem::path& path);

// A whole file in memory.
//
// A value; owned by whoever loads it. Cost: the file's size in memory.
class SafetensorsFile {
 public:
  // Reads and checks a file of at most `max_bytes`.
  //
  // Errors:  not_found, permission, io_failed, too_large, corrupt.
  [[nodiscard]] static Result<SafetensorsFile> read(const std::filesystem::path& path,
                                                    std::uint64_t max_bytes);
  // Checks bytes that are in memory already.
  [[nodiscard]] static Result<SafetensorsFile> parse(Bytes bytes);

  [[nodiscard]] const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const {
    return header_.metadata;
  }
  // Null if there is no tensor of that name.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  [[nodiscard]] ByteView data(const TensorEntry& tensor) const;
  // BLAKE2b-256 of the whole file.
  [[nodiscard]] Hash hash() const { return hash_of(bytes_); }

 private:
  SafetensorsFile(Bytes bytes, SafetensorsHeader header);

  Bytes bytes_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Writes a file tensor by tensor, so that no second copy of a model is needed.
//
// The caller declares every tensor, appends their bytes in that order and calls finish(), which
// flushes to the disk. Destroyed before that, it leaves a partial file: write to a temporary name.
// A hasher, if there is one, gets every byte of the file; it must outlive the writer.
class SafetensorsWriter {
 public:
  // Creates the file and writes the header; begin and end of the entries are ignored.
  //
  // Errors:  disk_full, permission, io_failed.
  [[nodiscard]] static Result<SafetensorsWriter> create(
      const std::filesystem::path& path, std::vector<TensorEntry> tensors,
      const std::map<std::string, std::string>& metadata, Hasher* hasher = nullptr);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;

  // Appends the bytes of the next tensor.
  [[nodiscard]] Result<void> append(ByteView bytes);
  // Flushes to the disk.
  [[nodiscard]] Result<void> finish();

 private:
  struct Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace starling::training
