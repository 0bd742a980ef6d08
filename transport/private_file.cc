#include "transport/private_file.h"

#include "node/base/fault.h"
#include "node/base/posix_file.h"
#include "transport/secure_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace starling::transport {
namespace {

std::unexpected<Error> file_error(int code, Doing doing, const std::filesystem::path& path) {
  return fail(errc_of_errno(code), doing,
              path.string() + ": " + std::generic_category().message(code));
}

bool is_private(const struct stat& info, int fd, Ownership ownership) {
  if ((info.st_mode & 0077U) == 0) return true;
  if (ownership == Ownership::own || info.st_uid == ::geteuid()) return false;
  const bool group_reads_only = (info.st_mode & 0037U) == 0;
  if (info.st_uid == 0 && group_reads_only) return true;
  struct statvfs mount{};
  return ::fstatvfs(fd, &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0;
}

Result<void> write_all(int fd, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(errno, Doing::writing_file, path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// Moves a file to a name that nobody has; errno tells why not.
bool give_name(const std::string& fresh, const std::filesystem::path& path) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0)
    return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  // NFS, for one, cannot do that, but has hard links.
  if (::link(fresh.c_str(), path.c_str()) != 0) return false;
  ::unlink(fresh.c_str());
  return true;
}

}  // namespace

Result<std::string> read_private_file(const std::filesystem::path& path, std::size_t max_bytes,
                                      Ownership ownership) {
  constexpr auto kDoing = Doing::reading_file;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.ok()) {
    const int error = errno;
    if (auto dead = dead_link(path); !dead.empty())
      return fail(Errc::permission, kDoing, std::move(dead));
    return file_error(error, kDoing, path);
  }
  struct stat info{};
  if (::fstat(file.number(), &info) != 0) return file_error(errno, kDoing, path);
  if (!S_ISREG(info.st_mode))
    return fail(Errc::permission, kDoing, path.string() + " is not a regular file");
  if (!is_private(info, file.number(), ownership))
    return fail(Errc::permission, kDoing,
                path.string() + " can be read by others: chmod 600 " + path.string());
  std::string text(max_bytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const auto got = ::read(file.number(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(errno, kDoing, path);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > max_bytes) {
    wipe(std::as_writable_bytes(std::span(text)));
    return fail(Errc::too_large, kDoing,
                path.string() + " has more than " + std::to_string(max_bytes) + " bytes");
  }
  text.resize(size);
  return text;
}

Result<void> create_private_file(const std::filesystem::path& path, std::string_view text) {
  constexpr auto kDoing = Doing::writing_file;
  const auto folder = path.parent_path();
  // Under another name until it is whole: a key file that is half there would be refused at every
  // later start. Of several that write the same file at once each has its own. It ends with the
  // number of its process, by which a later start knows what a kill left (node/state_dir.cc).
  const std::string end = "." + std::to_string(::getpid()) + ".new";
  std::string fresh = (folder / ("." + path.filename().string() + ".XXXXXX" + end)).string();
  // 0600, and follows no link
  const Descriptor file(::mkostemps(fresh.data(), static_cast<int>(end.size()), O_CLOEXEC));
  if (!file.ok()) return file_error(errno, kDoing, path);
  auto written = fault::maybe("key.write") ? file_error(ENOSPC, kDoing, path)
                                           : write_all(file.number(), text, path);
  if (written && ::fsync(file.number()) != 0) written = file_error(errno, kDoing, path);
  if (written && !give_name(fresh, path)) written = file_error(errno, kDoing, path);
  if (!written) {
    ::unlink(fresh.c_str());
    return written;
  }
  fault::pass("key.written");
  if (const int error = flush_folder(folder); error != 0)
    return file_error(error, kDoing, folder.empty() ? "." : folder);
  return {};
}

}  // namespace starling::transport
