#include "node/base/posix_file.h"

#include <fcntl.h>

#include <cerrno>

namespace starling {

Errc errc_of_errno(int number) {
  switch (number) {
    case ENOENT:
    case ENOTDIR:
      return Errc::not_found;
    case EEXIST:
      return Errc::already_exists;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
      return Errc::permission;
    case ENOSPC:
    case EDQUOT:
      return Errc::disk_full;
    default:
      return Errc::io_failed;
  }
}

int flush_folder(const std::filesystem::path& folder) {
  const char* const name = folder.empty() ? "." : folder.c_str();
  const Descriptor open(::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: this file system cannot flush a folder, and has nothing to lose there.
  return open.ok() && (::fsync(open.number()) == 0 || errno == EINVAL) ? 0 : errno;
}

int remove_durably(const std::filesystem::path& file) {
  return ::unlink(file.c_str()) == 0 ? flush_folder(file.parent_path()) : errno;
}

}  // namespace starling
