#include "node/base/posix_file.h"

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

}  // namespace starling
