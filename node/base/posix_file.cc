#include "node/base/posix_file.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>

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

std::string dead_link(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  // The lowest name that is there, which only a link to nothing is without leading anywhere.
  fs::path there = file;
  while (!there.empty() && there.has_relative_path() &&
         fs::symlink_status(there, error).type() == fs::file_type::not_found)
    there = there.parent_path();
  if (!fs::is_symlink(there, error) || fs::status(there, error).type() != fs::file_type::not_found)
    return {};
  const std::string target = fs::read_symlink(there, error).string();
  std::string text = file.string() + ": ";
  if (there != file) text += there.string() + " is ";
  return text + "a symbolic link to " + target + ", where nothing is: mount or put back " + target +
         ", or remove the link to begin without it";
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
