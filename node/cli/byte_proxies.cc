#include "node/cli/byte_proxies.h"

#include "node/base/thread.h"
#include "node/state_dir.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = 65'536;
constexpr int kLookMs = 50;  // how late a mended line or a new door may be noticed
constexpr int kBacklog = 64;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

std::unexpected<Error> no_door(int error) {
  return fail(Errc::io_failed, Doing::starting,
              "no door on loopback: " + std::generic_category().message(error));
}

// A socket on loopback with this port; port 0 lets the kernel choose, which it then is. Several may
// have one port as long as none of them listens.
Result<int> bind_to(std::uint16_t& port) {
  const int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (number < 0) return no_door(errno);
  const int yes = 1;
  ::setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address = loopback(port);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (::bind(number, generic, size) != 0 || ::getsockname(number, generic, &size) != 0) {
    const int error = errno;
    ::close(number);
    return no_door(error);
  }
  port = ntohs(address.sin_port);
  return number;
}

// The socket's number in /proc, of the connection that this process sees as remote -> local.
std::string inode_of(std::uint16_t remote, std::uint16_t local) {
  std::ifstream table("/proc/net/tcp");
  const std::string wanted_local = fmt::format("0100007F:{:04X}", remote);
  const std::string wanted_remote = fmt::format("0100007F:{:04X}", local);
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::array<std::string, 10> word;
    for (auto& one : word) words >> one;
    if (word[1] == wanted_local && word[2] == wanted_remote) return word[9];
  }
  return {};
}

bool holds_socket(pid_t pid, const std::string& inode) {
  const std::string wanted = "socket:[" + inode + "]";
  std::error_code error;
  fs::directory_iterator at(fmt::format("/proc/{}/fd", pid), error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(at->path(), gone).string() == wanted) return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<ByteProxies>> ByteProxies::start(std::size_t count) {
  std::unique_ptr<ByteProxies> made(new ByteProxies);
  {
    const MutexLock lock(made->mutex_);
    for (std::size_t k = 0; k < count; ++k) {
      Door door;
      TRY(door.keeper, bind_to(door.port));
      made->doors_.push_back(std::move(door));
    }
  }
  made->thread_ = std::thread([&proxies = *made] { proxies.run(); });
  return made;
}

ByteProxies::~ByteProxies() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  for (Line& line : lines_) close_line(line);
  const MutexLock lock(mutex_);
  for (const Door& door : doors_) {
    if (door.listener >= 0) ::close(door.listener);
    ::close(door.keeper);
  }
}

std::string ByteProxies::address(std::size_t node) const {
  const MutexLock lock(mutex_);
  return fmt::format("127.0.0.1:{}", doors_[node].port);
}

Result<void> ByteProxies::open(std::size_t node, pid_t pid, fs::path address_file) {
  const MutexLock lock(mutex_);
  Door& door = doors_[node];
  door.pid = pid;
  door.address_file = std::move(address_file);
  if (door.listener >= 0) return {};
  TRY(const int listener, bind_to(door.port));
  if (::listen(listener, kBacklog) != 0) {
    const int error = errno;
    ::close(listener);
    return no_door(error);
  }
  door.listener = listener;
  return {};
}

void ByteProxies::close(std::size_t node) {
  const MutexLock lock(mutex_);
  Door& door = doors_[node];
  if (door.listener >= 0) {
    // Closing alone would leave it open for as long as the other thread polls it.
    ::shutdown(door.listener, SHUT_RD);
    ::close(std::exchange(door.listener, -1));
  }
  door.pid = -1;
}

void ByteProxies::split(std::vector<int> sides) {
  const MutexLock lock(mutex_);
  sides_ = std::move(sides);
}

bool ByteProxies::is_cut(const Line& line) {
  const MutexLock lock(mutex_);
  return line.dialler < sides_.size() && line.dialled < sides_.size() &&
         sides_[line.dialler] != sides_[line.dialled];
}

std::optional<std::size_t> ByteProxies::dialler_of(int accepted) {
  sockaddr_in remote{};
  sockaddr_in local{};
  socklen_t size = sizeof(remote);
  ::getpeername(accepted, reinterpret_cast<sockaddr*>(&remote), &size);
  size = sizeof(local);
  ::getsockname(accepted, reinterpret_cast<sockaddr*>(&local), &size);
  const auto inode = inode_of(ntohs(remote.sin_port), ntohs(local.sin_port));
  if (inode.empty()) return std::nullopt;
  std::vector<pid_t> pids;
  {
    const MutexLock lock(mutex_);
    for (const Door& door : doors_) pids.push_back(door.pid);
  }
  for (std::size_t node = 0; node < pids.size(); ++node)
    if (pids[node] > 0 && holds_socket(pids[node], inode)) return node;
  return std::nullopt;
}

int ByteProxies::accepted_at(std::size_t node, int listener) {
  const MutexLock lock(mutex_);
  // Shut since, its number may be another door's already.
  if (doors_[node].listener != listener) return -1;
  return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

void ByteProxies::accept_at(std::size_t node, int listener) {
  const int accepted = accepted_at(node, listener);
  if (accepted < 0) return;
  const auto dialler = dialler_of(accepted);
  if (!dialler) {  // no node of this swarm, or one that is gone
    ::close(accepted);
    return;
  }
  Line line;
  line.dialler = *dialler;
  line.dialled = node;
  line.ends[0] = accepted;
  lines_.push_back(std::move(line));
}

// To where the node said that it listens; without an answer the line is over.
void ByteProxies::connect(Line& line) {
  fs::path file;
  {
    const MutexLock lock(mutex_);
    file = doors_[line.dialled].address_file;
  }
  const auto text = read_whole(file, 512);
  std::uint16_t port = 0;
  if (text) {
    const auto colon = text->rfind(':');
    const char* end = text->data() + text->size();
    if (colon != std::string::npos) (void)std::from_chars(text->data() + colon + 1, end, port);
  }
  const int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (port == 0 || number < 0 || ::connect(number, generic, sizeof(address)) != 0) {
    if (number >= 0) ::close(number);
    close_line(line);
    return;
  }
  line.ends[1] = number;
  line.ways[0] = {line.ends[0], line.ends[1], {}, false};
  line.ways[1] = {line.ends[1], line.ends[0], {}, false};
}

void ByteProxies::close_line(Line& line) {
  for (int& end : line.ends)
    if (end >= 0) ::close(std::exchange(end, -1));
}

bool ByteProxies::carry(Line& line, short first_events, short second_events) {
  if (((first_events | second_events) & (POLLERR | POLLNVAL)) != 0) return false;
  // Gone both ways, and read to its end: nothing would ever come of it again.
  if ((first_events & POLLHUP) != 0 && line.ways[0].ended) return false;
  if ((second_events & POLLHUP) != 0 && line.ways[1].ended) return false;
  for (Way& way : line.ways) {
    if (!way.ended && way.bytes.empty()) {
      way.bytes.resize(kPiece);
      const auto count = ::recv(way.from, way.bytes.data(), way.bytes.size(), MSG_DONTWAIT);
      way.bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
      if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (count == 0) {
        way.ended = true;
        ::shutdown(way.to, SHUT_WR);
      }
    }
    if (way.bytes.empty()) continue;
    const auto count =
        ::send(way.to, way.bytes.data(), way.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (count > 0) way.bytes.erase(way.bytes.begin(), way.bytes.begin() + count);
  }
  return !(line.ways[0].ended && line.ways[1].ended);
}

void ByteProxies::run() {
  name_this_thread("byte proxies");
  while (!stopping_) {
    std::vector<pollfd> polled;
    std::vector<std::pair<std::size_t, int>> open_doors;
    {
      const MutexLock lock(mutex_);
      for (std::size_t node = 0; node < doors_.size(); ++node) {
        if (doors_[node].listener < 0) continue;
        open_doors.emplace_back(node, doors_[node].listener);
        polled.push_back({doors_[node].listener, POLLIN, 0});
      }
    }
    std::vector<std::size_t> live;
    for (std::size_t k = 0; k < lines_.size(); ++k) {
      Line& line = lines_[k];
      if (is_cut(line)) continue;
      if (line.ends[1] < 0) connect(line);
      if (line.ends[0] < 0) continue;
      live.push_back(k);
      // An end is asked for what is wanted of it: bytes to read, or room to write.
      for (std::size_t end = 0; end < 2; ++end) {
        const Way& reads = line.ways[end];
        const Way& writes = line.ways[1 - end];
        const int in = reads.bytes.empty() && !reads.ended ? POLLIN : 0;
        const int out = writes.bytes.empty() ? 0 : POLLOUT;
        polled.push_back({line.ends[end], static_cast<short>(in | out), 0});
      }
    }
    (void)::poll(polled.data(), polled.size(), kLookMs);
    const pollfd* ends = polled.data() + open_doors.size();
    for (std::size_t k = 0; k < live.size(); ++k, ends += 2)
      if ((ends[0].revents | ends[1].revents) != 0 && !is_cut(lines_[live[k]]) &&
          !carry(lines_[live[k]], ends[0].revents, ends[1].revents))
        close_line(lines_[live[k]]);
    std::erase_if(lines_, [](const Line& line) { return line.ends[0] < 0; });
    for (std::size_t k = 0; k < open_doors.size(); ++k)
      if (polled[k].revents != 0) accept_at(open_doors[k].first, open_doors[k].second);
  }
}

}  // namespace starling::node
