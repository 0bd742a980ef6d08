// LineTail: the lines of a file that another process writes, as they come.
#pragma once

#include "node/base/posix_file.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::node {

// Follows a file that only grows, and that its writer renames at some size to begin a new one under
// the same name (observe/events.h): nothing is lost as long as it is looked at between two renames.
//
// Owned by whoever looks; one thread, which waits for the disk and for nothing else. What cannot be
// opened now is tried again at the next look.
class LineTail {
 public:
  // A longer line is passed over: no event is longer (EventLogOptions::max_waiting_bytes), and a
  // file that somebody overwrote may be one line.
  static constexpr std::size_t kMaxLine = std::size_t{1} << 20;

  explicit LineTail(std::filesystem::path file) : file_(std::move(file)) {}

  // The whole lines that were written since the last call, without their ends; at the first call
  // all that are there.
  [[nodiscard]] std::vector<std::string> read();

 private:
  [[nodiscard]] bool is_renamed() const;
  void take(std::vector<std::string>& lines);
  void add(std::string_view text);

  std::filesystem::path file_;
  std::unique_ptr<Descriptor> open_;  // the file that had the name when it was opened
  std::string part_;                  // of a line whose end is not written
  bool too_long_ = false;             // that line
};

}  // namespace starling::node
