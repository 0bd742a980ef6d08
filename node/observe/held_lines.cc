#include "node/observe/held_lines.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace starling::node {

namespace {

// Between two tries of the end, where a terminal has room for less than a line end needs.
constexpr auto kPause = std::chrono::milliseconds(10);

// A terminal says that it has room, takes the text of a line, and waits with its end until somebody
// reads. O_NONBLOCK on the caller's description would be on everybody's who shares it: a shell, the
// other programs of a pipe. A regular file keeps its place, and O_APPEND.
int without_waits(int given) {
  struct stat what{};
  if (::fstat(given, &what) != 0 || S_ISREG(what.st_mode)) return given;
  const std::string path = "/proc/self/fd/" + std::to_string(given);
  const int own = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  return own < 0 ? given : own;  // a socket, a pipe without a reader, what only root may open
}

bool has_room(int descriptor, Duration patience) {
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  pollfd asked{.fd = descriptor, .events = POLLOUT, .revents = 0};
  return ::poll(&asked, 1, static_cast<int>(wait)) == 1;
}

}  // namespace

HeldLines::HeldLines(int descriptor, Notice notice)
    : given_(descriptor), descriptor_(without_waits(descriptor)), notice_(std::move(notice)) {}

HeldLines::~HeldLines() {
  {
    const MutexLock lock(mutex_);
    write_kept(kPatience);
  }
  if (descriptor_ != given_) ::close(descriptor_);
}

void HeldLines::write(std::string_view line) {
  const MutexLock lock(mutex_);
  if (held_) {
    keep_held(line);
    return;
  }
  write_kept(Duration{0});
  if (bytes_ + line.size() > kMost) {
    ++dropped_;
    return;
  }
  if (dropped_ > 0) {
    kept_.push_back(notice_(dropped_));
    bytes_ += kept_.back().size();
    dropped_ = 0;
  }
  kept_.emplace_back(line);
  bytes_ += line.size();
  write_kept(Duration{0});
}

std::deque<std::string>::iterator HeldLines::first_whole() {
  return kept_.begin() + (first_sent_ > 0 ? 1 : 0);
}

void HeldLines::keep_held(std::string_view line) {
  if (line.size() > kMost) {
    ++dropped_;
    return;
  }
  kept_.emplace_back(line);
  bytes_ += line.size();
  for (; bytes_ > kMost; ++dropped_) {
    const auto oldest = first_whole();
    bytes_ -= oldest->size();
    kept_.erase(oldest);
  }
}

void HeldLines::hold() {
  const MutexLock lock(mutex_);
  held_ = true;
}

void HeldLines::release() {
  const MutexLock lock(mutex_);
  held_ = false;
  if (dropped_ > 0) {
    const auto notice = kept_.insert(first_whole(), notice_(std::exchange(dropped_, 0)));
    bytes_ += notice->size();
  }
  write_kept(Duration{0});
}

ssize_t HeldLines::write_some(std::string_view text) const {
  // A pipe that has room at all takes so much at once (pipe(7)): for where it could not be opened.
  const std::size_t size = std::min<std::size_t>(text.size(), PIPE_BUF);
  if (descriptor_ == given_) {
    const auto sent = ::send(descriptor_, text.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0 || errno != ENOTSOCK) return sent;
  }
  return ::write(descriptor_, text.data(), size);
}

void HeldLines::write_kept(Duration patience) {
  while (!kept_.empty() && has_room(descriptor_, patience)) {
    const std::string_view rest = std::string_view(kept_.front()).substr(first_sent_);
    const auto sent = write_some(rest);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      if (patience < kPause) return;
      (void)::poll(nullptr, 0, static_cast<int>(kPause.count()));
      patience -= kPause;
      continue;
    }
    // A full disk, a reader that is gone: there is nobody to tell.
    first_sent_ += sent < 0 ? rest.size() : static_cast<std::size_t>(sent);
    if (first_sent_ < kept_.front().size()) continue;
    bytes_ -= kept_.front().size();
    kept_.pop_front();
    first_sent_ = 0;
  }
}

int LineStream::overflow(int character) {
  using Traits = std::char_traits<char>;
  if (character == Traits::eof()) return 0;
  const char text = Traits::to_char_type(character);
  take({&text, 1});
  return character;
}

std::streamsize LineStream::xsputn(const char* text, std::streamsize size) {
  take({text, static_cast<std::size_t>(size)});
  return size;
}

void LineStream::take(std::string_view text) {
  line_ += text;
  const auto last = line_.rfind('\n');
  if (last == std::string::npos) return;
  lines_.write(std::string_view(line_).substr(0, last + 1));
  line_.erase(0, last + 1);
}

}  // namespace starling::node
