#include "node/observe/line_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace starling::node {

std::vector<std::string> LineTail::read() {
  std::vector<std::string> lines;
  if (open_) {
    const bool renamed = is_renamed();
    // After that question: a file that has lost its name gets no more lines.
    take(lines);
    if (!renamed) return lines;
  }
  open_ = std::make_unique<Descriptor>(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!open_->ok()) open_.reset();
  part_.clear();
  too_long_ = false;
  take(lines);
  return lines;
}

bool LineTail::is_renamed() const {
  struct stat named{};
  struct stat own{};
  return ::stat(file_.c_str(), &named) == 0 && ::fstat(open_->number(), &own) == 0 &&
         (named.st_ino != own.st_ino || named.st_dev != own.st_dev);
}

void LineTail::take(std::vector<std::string>& lines) {
  std::array<char, 65'536> buffer;
  while (open_) {
    const auto count = ::read(open_->number(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    std::string_view piece(buffer.data(), static_cast<std::size_t>(count));
    for (auto end = piece.find('\n'); end != std::string_view::npos; end = piece.find('\n')) {
      add(piece.substr(0, end));
      if (!std::exchange(too_long_, false)) lines.push_back(std::exchange(part_, {}));
      piece.remove_prefix(end + 1);
    }
    add(piece);
  }
}

void LineTail::add(std::string_view text) {
  too_long_ = too_long_ || part_.size() + text.size() > kMaxLine;
  if (too_long_)
    part_ = {};
  else
    part_.append(text);
}

}  // namespace starling::node
