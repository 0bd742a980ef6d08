#include "node/observe/line_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

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
    part_.append(buffer.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (auto end = part_.find('\n'); end != std::string::npos; end = part_.find('\n', begin)) {
      lines.push_back(part_.substr(begin, end - begin));
      begin = end + 1;
    }
    part_.erase(0, begin);
  }
}

}  // namespace starling::node
