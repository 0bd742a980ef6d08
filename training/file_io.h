// Files of this folder: whole reads with a bound, writes that reach the disk, and what the
// operating system's error numbers mean to us.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace starling::training {

// The whole file.
//
// Errors:  not_found, permission, io_failed, too_large (more than max_bytes).
[[nodiscard]] Result<Bytes> read_whole_file(const std::filesystem::path& path,
                                            std::uint64_t max_bytes);

// The first bytes of a file, at most `max_bytes`, and the size of all of it.
struct FilePrefix {
  Bytes bytes;
  std::uint64_t file_bytes = 0;
};
// Errors:  not_found, permission, io_failed.
[[nodiscard]] Result<FilePrefix> read_prefix(const std::filesystem::path& path,
                                             std::uint64_t max_bytes);

// Writes text to a new file and flushes it. Errors: disk_full, permission, io_failed.
[[nodiscard]] Result<void> write_whole_file(const std::filesystem::path& path,
                                            std::string_view text);

// Flushes a folder's own entries: after a rename, so that it survives a power cut.
[[nodiscard]] Result<void> flush_folder(const std::filesystem::path& path);

// A file being written. Owned by its writer; one thread. Closing without close_durably() leaves
// what was written so far.
//
// A large file goes to the disk while it is written and does not stay in the page cache: a model
// is seldom read again by who wrote it, and its pages would push out the training data's.
class OutputFile {
 public:
  // Creates the file, or empties it; never through a symbolic link. Errors: disk_full, permission,
  // io_failed.
  [[nodiscard]] static Result<OutputFile> create(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;

  [[nodiscard]] Result<void> write(ByteView bytes);
  // Flushes to the disk and closes.
  [[nodiscard]] Result<void> close_durably();

 private:
  OutputFile(int descriptor, std::filesystem::path path);
  [[nodiscard]] Result<void> drop_behind();

  int descriptor_ = -1;
  std::filesystem::path path_;
  std::uint64_t written_ = 0;
};

}  // namespace starling::training
