// Bytes that can be read at any place: a file, or memory in tests and fuzzers.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace starling::training {

// Thread:  any, concurrently; immutable.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  // Fills `out` from `at` on.
  //
  // Errors:  data_failed naming the source where it ends earlier or the disk fails.
  [[nodiscard]] virtual Result<void> read_at(std::uint64_t at, std::span<std::byte> out) const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
};

// A file, opened for reading. Files that many readers share are read with pread(), not mapped: a
// file that shrinks is then an error instead of a SIGBUS.
//
// Errors:  data_failed naming the file and what the system said.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_file(const std::filesystem::path& path);

// The bytes of a whole file.
//
// Errors:  data_failed naming the file, also where it is larger than `max_bytes`.
[[nodiscard]] Result<Bytes> read_whole(const std::filesystem::path& path, std::uint64_t max_bytes);

// Memory that the source owns.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, Bytes bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}

  [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }
  [[nodiscard]] Result<void> read_at(std::uint64_t at, std::span<std::byte> out) const override;
  [[nodiscard]] const std::string& name() const override { return name_; }

 private:
  std::string name_;
  Bytes bytes_;
};

}  // namespace starling::training
