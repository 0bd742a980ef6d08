#include "node/control/caller.h"

#include "node/base/posix_file.h"
#include "node/config/values.h"
#include "node/control/socket_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>

namespace starling::node {

namespace {

class Socket {
 public:
  Socket() : number_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

std::unexpected<Error> failed(std::string_view what, int error) {
  return fail(Errc::io_failed, Doing::controlling,
              fmt::format("{}: {}", what, std::generic_category().message(error)));
}

std::unexpected<Error> no_answer(Duration patience) {
  return fail(Errc::timed_out, Doing::controlling,
              fmt::format("the node did not answer for {}: its process stands still, or is busy",
                          show_duration(patience)));
}

// A node that stands still accepts nobody, and where verbs wait for it there is room for a few:
// without a limit connect() would wait for ever.
void limit_waiting(const Socket& socket, Duration patience) {
  const auto whole = std::max(patience, Duration(1));
  const timeval limit{.tv_sec = whole / std::chrono::seconds(1),
                      .tv_usec = (whole % std::chrono::seconds(1)).count()};
  (void)::setsockopt(socket.number(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// The process that holds DIR/lock (state_dir.h): one that has no control socket yet, or none any
// more.
std::optional<pid_t> holder_of(const std::filesystem::path& dir) {
  const auto file = dir / "lock";
  const Descriptor lock(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  std::array<char, 32> text{};
  if (!lock.ok() || ::pread(lock.number(), text.data(), text.size(), 0) <= 0) return std::nullopt;
  pid_t holder = 0;
  std::from_chars(text.data(), text.data() + text.size(), holder);
  // Asked first: to try the lock would keep out a node that starts in this very moment.
  if (holder <= 0 || (::kill(holder, 0) != 0 && errno == ESRCH)) return std::nullopt;
  const bool held = ::flock(lock.number(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return held ? std::optional(holder) : std::nullopt;
}

Result<void> connect_to(const Socket& socket, const std::filesystem::path& dir, Duration patience) {
  const auto nobody = [&] {
    if (const auto holder = holder_of(dir))
      return fail(
          Errc::not_found, Doing::controlling,
          fmt::format("process {} is starting in {}, or about to end, and takes no requests "
                      "now: its log says what it does (data.opening: a large set on slow "
                      "storage takes minutes)",
                      *holder, dir.string()));
    return fail(Errc::not_found, Doing::controlling,
                fmt::format("no node runs in {}: start one with `starling run --dir {}`, or say "
                            "where yours is with --dir",
                            dir.string(), dir.string()));
  };
  if (socket.number() < 0) return failed("no socket", errno);
  limit_waiting(socket, patience);
  const auto path = SocketPath::in(dir);
  if (!path && path.error().code == Errc::not_found) return nobody();
  if (!path) return fail(path.error());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(static_cast<void*>(address.sun_path), path->text().c_str(), path->text().size() + 1);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.number(), generic, sizeof(address)) == 0) return {};
  const int error = errno;
  if (error == ENOENT || error == ECONNREFUSED || error == ENOTDIR) return nobody();
  if (error == EAGAIN) return no_answer(patience);
  if (error == EACCES || error == EPERM)
    return fail(Errc::permission, Doing::controlling,
                fmt::format("the node in {} belongs to another user", dir.string()));
  return failed(dir.string(), error);
}

Result<void> send_all(const Socket& socket, std::string_view text, Duration patience) {
  while (!text.empty()) {
    const auto sent = ::send(socket.number(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return no_answer(patience);
    if (sent <= 0) return failed("the node does not listen", errno);
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return {};
}

// Reads the next line; `rest` keeps what came after it.
Result<std::string> next_line(const Socket& socket, std::string& rest, Duration patience) {
  const int patience_ms = static_cast<int>(
      std::min<std::int64_t>(patience.count() / 1'000, std::int64_t{24} * 3'600'000));
  std::size_t searched = 0;
  std::array<char, 65'536> buffer;
  while (true) {
    const auto end = rest.find('\n', searched);
    if (end != std::string::npos) {
      auto line = rest.substr(0, end);
      rest.erase(0, end + 1);
      return line;
    }
    searched = rest.size();
    if (rest.size() > kMaxControlReply)
      return fail(Errc::bad_message, Doing::controlling, "the node's answer has no end");
    pollfd waiting{socket.number(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, patience_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return no_answer(patience);
    const auto count = ::recv(socket.number(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      return fail(Errc::closed, Doing::controlling, "the node ended before it answered");
    rest.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

Result<std::string> ask_node(const std::filesystem::path& dir, const ControlRequest& request,
                             Duration patience,
                             const std::function<void(const std::string&)>& on_progress) {
  const Socket socket;
  TRY_VOID(connect_to(socket, dir, patience));
  TRY_VOID(send_all(socket, encode_request(request), patience));
  std::string rest;
  while (true) {
    TRY(const auto line, next_line(socket, rest, patience));
    TRY(auto answer, parse_answer(line));
    if (answer.kind == ControlAnswer::Kind::error) return fail(std::move(answer.error));
    if (answer.kind == ControlAnswer::Kind::result) return std::move(answer.body);
    if (on_progress) on_progress(answer.body);
  }
}

}  // namespace starling::node
