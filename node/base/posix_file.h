// What every layer that opens files needs of POSIX: what an errno means, and a descriptor that
// closes itself.
#pragma once

#include "node/base/error.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

namespace starling {

// The code of a failed file operation: not_found, already_exists, permission, disk_full, or
// io_failed for everything else.
[[nodiscard]] Errc errc_of_errno(int number);

// Says of a name at which nothing was found (ENOENT, ENOTDIR) that it, or a folder above it, is a
// symbolic link that leads nowhere: link, target and remedy. Such a file is not absent: it lies on
// a disk that is not mounted, or was moved. Empty where there is no such link.
[[nodiscard]] std::string dead_link(const std::filesystem::path& file);

// Makes new, renamed and removed names in a folder durable; "" is the working folder. 0, or the
// errno.
[[nodiscard]] int flush_folder(const std::filesystem::path& folder);

// Removes a file so that it stays gone. 0, or the errno: ENOENT where there was none.
[[nodiscard]] int remove_durably(const std::filesystem::path& file);

// A file descriptor that is closed when it goes; negative: none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool ok() const { return number_ >= 0; }
  // Hands the descriptor over: closing it is the caller's business from now on.
  [[nodiscard]] int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace starling
