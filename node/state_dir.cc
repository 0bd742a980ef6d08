#include "node/state_dir.h"

#include "node/base/fault.h"
#include "node/base/posix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

namespace fs = std::filesystem;

std::unexpected<Error> system_error(Doing doing, const fs::path& path, std::string_view what,
                                    int error) {
  return fail(errc_of_errno(error), doing,
              fmt::format("{}: cannot {}: {}", path.string(), what,
                          std::generic_category().message(error)));
}

bool write_all(int descriptor, ByteView bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

std::string first_line(int descriptor) {
  std::array<char, 64> buffer{};
  const auto read = ::pread(descriptor, buffer.data(), buffer.size(), 0);
  const std::string_view text(buffer.data(), read > 0 ? static_cast<std::size_t>(read) : 0);
  return std::string(text.substr(0, text.find_first_not_of("0123456789")));
}

// What the shell opened for this process (`@<(command)`, /dev/stdin) may be a pipe: whoever writes
// into it was started along with the process. At every other name a FIFO or a device would keep a
// node from its start for as long as nobody writes into it. /dev/null is how one says "an empty
// file".
bool is_handed_over(const fs::path& file) {
  const auto folder = file.parent_path();
  return file == "/dev/stdin" || file == "/dev/null" || folder == "/dev/fd" ||
         folder == "/proc/self/fd";
}

// What processes left that were killed inside write_whole(). One that still runs is spared:
// `starling key` may be at work beside the node that starts.
void remove_unfinished(const fs::path& folder) {
  constexpr std::string_view kEnd = ".new";
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') || !name.ends_with(kEnd)) continue;
    const std::string_view stem = std::string_view(name).substr(0, name.size() - kEnd.size());
    const std::string_view digits = stem.substr(stem.rfind('.') + 1);
    pid_t writer = 0;
    const auto [rest, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), writer);
    if (bad != std::errc() || rest != digits.data() + digits.size() || writer <= 0) continue;
    // Our own number: the process of a container has the same one at each start.
    const bool gone = writer == ::getpid() || (::kill(writer, 0) != 0 && errno == ESRCH);
    if (gone) ::unlink(entry->path().c_str());
  }
}

// A folder that cannot be had, with the remedy.
std::unexpected<Error> unusable(Error error) {
  if (error.code != Errc::disk_full)
    error.detail += "; let this user write there, or choose another --dir";
  return std::unexpected(std::move(error));
}

std::unexpected<Error> in_use(const fs::path& folder, int lock) {
  const auto holder = first_line(lock);
  return fail(Errc::already_exists, Doing::starting,
              fmt::format("{} is in use by process {}: one folder belongs to one node; choose "
                          "another --dir, or stop that one with `starling leave --dir {}`",
                          folder.string(), holder.empty() ? "?" : holder, folder.string()));
}

fs::path whole_path(const fs::path& dir) {
  std::error_code error;
  const auto path = fs::absolute(dir, error).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

Result<void> write_whole(const fs::path& file, ByteView bytes, FileMode mode) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  // One name per file and process: two threads never write the same file at the same time.
  const fs::path fresh = folder / fmt::format(".{}.{}.new", file.filename().string(), ::getpid());
  {
    if (fault::maybe("state.create"))
      return system_error(Doing::writing_file, file, "be written", EACCES);
    const Descriptor out(::open(fresh.c_str(),
                                O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                                static_cast<mode_t>(mode)));
    if (out.number() < 0) return system_error(Doing::writing_file, file, "be written", errno);
    const bool full = fault::maybe("state.write");
    if (full || !write_all(out.number(), bytes) || ::fsync(out.number()) != 0) {
      const int error = full ? ENOSPC : errno;
      ::unlink(fresh.c_str());
      return system_error(Doing::writing_file, file, "be written", error);
    }
  }
  const bool refused = fault::maybe("state.before_rename");
  if (refused || ::rename(fresh.c_str(), file.c_str()) != 0) {
    const int error = refused ? EIO : errno;
    ::unlink(fresh.c_str());
    return system_error(Doing::writing_file, file, "be replaced", error);
  }
  fault::pass("state.after_rename");
  if (const int error = flush_folder(folder); error != 0)
    return system_error(Doing::writing_file, folder, "be flushed", error);
  return {};
}

Result<void> write_whole(const fs::path& file, std::string_view text, FileMode mode) {
  return write_whole(file, as_bytes(text), mode);
}

Result<std::string> read_whole(const fs::path& file, std::size_t max_bytes) {
  const bool piped = is_handed_over(file);
  const Descriptor in(::open(file.c_str(), O_RDONLY | O_CLOEXEC | (piped ? 0 : O_NONBLOCK)));
  if (in.number() < 0) {
    const int error = errno;
    if (auto dead = dead_link(file); !dead.empty())
      return fail(Errc::permission, Doing::reading_file, std::move(dead));
    return system_error(Doing::reading_file, file, "be opened", error);
  }
  struct stat info{};
  if (::fstat(in.number(), &info) != 0)
    return system_error(Doing::reading_file, file, "be read", errno);
  if (!piped && !S_ISREG(info.st_mode))
    return fail(
        Errc::permission, Doing::reading_file,
        fmt::format("{}: not a regular file: put a file there, or remove it", file.string()));
  std::string text;
  std::array<char, 65'536> buffer;
  while (true) {
    const auto read = ::read(in.number(), buffer.data(), buffer.size());
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return system_error(Doing::reading_file, file, "be read", errno);
    if (read == 0) return text;
    if (text.size() + static_cast<std::size_t>(read) > max_bytes)
      return fail(Errc::too_large, Doing::reading_file,
                  fmt::format("{}: larger than {} bytes", file.string(), max_bytes));
    text.append(buffer.data(), static_cast<std::size_t>(read));
  }
}

Result<fs::path> make_private_folder(fs::path folder, Doing doing) {
  if (!folder.has_filename()) folder = folder.parent_path();  // "state/": its parent is not itself
  std::error_code error;
  if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), error);
  if (error) return system_error(doing, folder.parent_path(), "be made", error.value());
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return folder;
  return system_error(doing, folder, "be made", errno);
}

Result<StateDir> StateDir::open(const fs::path& dir) {
  const auto made = make_private_folder(whole_path(dir), Doing::starting);
  if (!made) return unusable(made.error());
  const fs::path& path = *made;
  const fs::path lock_file = path / "lock";
  Descriptor lock(::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.number() < 0)
    return unusable(system_error(Doing::starting, lock_file, "be opened", errno).error());
  if (::flock(lock.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return system_error(Doing::starting, lock_file, "be locked", errno);
    return in_use(path, lock.number());
  }
  const auto mine = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock.number(), 0) != 0 || !write_all(lock.number(), as_bytes(mine)))
    return system_error(Doing::starting, lock_file, "be written", errno);
  StateDir state(path, lock.release());
  ::unlink(state.address_file().c_str());
  remove_unfinished(path);
  return state;
}

Result<StateDir> StateDir::look(const fs::path& dir) {
  StateDir state(whole_path(dir), -1);
  // The folder, or where it would be made.
  fs::path there = state.path_;
  std::error_code error;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, error))
    return unusable(system_error(Doing::starting, there, "be a folder of a node", ENOTDIR).error());
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    return unusable(system_error(Doing::starting, there, "be written", errno).error());
  const fs::path lock_file = state.path_ / "lock";
  const Descriptor lock(::open(lock_file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!lock.ok() && errno != ENOENT)
    return unusable(system_error(Doing::starting, lock_file, "be opened", errno).error());
  // Given back with the descriptor.
  if (lock.ok() && ::flock(lock.number(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return in_use(state.path_, lock.number());
  return state;
}

StateDir::StateDir(StateDir&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

StateDir::~StateDir() {
  if (lock_ < 0) return;
  ::unlink(address_file().c_str());
  ::close(lock_);  // and with it the lock; the file stays: removing it would race with an opener
}

Result<void> StateDir::write_address(std::string_view address) const {
  return write_whole(address_file(), std::string(address) + "\n");
}

Result<Incarnation> StateDir::read_incarnation() const {
  const auto file = path_ / "incarnation";
  const auto text = read_whole(file, 64);
  if (!text && text.error().code == Errc::not_found) return Incarnation{0};
  if (!text) return fail(text.error());
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  // Half of all numbers are more than a node ever uses, and leave room for what is added to one.
  constexpr std::uint64_t kMost = ~std::uint64_t{0} / 2;
  if (error != std::errc{} || std::string_view(end, text->data() + text->size()) != "\n" ||
      value > kMost)
    return fail(Errc::corrupt, Doing::reading_file,
                fmt::format("{}: not a number up to {}; remove identity.key as well to start as a "
                            "new node",
                            file.string(), kMost));
  return Incarnation{value};
}

Result<void> StateDir::write_incarnation_ceiling(Incarnation ceiling) const {
  if (fault::maybe("incarnation.before_write"))
    return system_error(Doing::writing_file, path_ / "incarnation", "be written", ENOSPC);
  return write_whole(path_ / "incarnation", fmt::format("{}\n", ceiling.value));
}

}  // namespace starling::node
