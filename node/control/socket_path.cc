#include "node/control/socket_path.h"

#include "node/base/posix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace starling::node {

Result<SocketPath> SocketPath::in(const std::filesystem::path& dir) {
  auto direct = (dir / kControlSocket).string();
  if (direct.size() < sizeof(sockaddr_un::sun_path)) return SocketPath(std::move(direct), -1);
  const int folder = ::open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    const int error = errno;
    return fail(errc_of_errno(error), Doing::controlling,
                fmt::format("{}: {}", dir.string(), std::generic_category().message(error)));
  }
  return SocketPath(fmt::format("/proc/self/fd/{}/{}", folder, kControlSocket), folder);
}

SocketPath::SocketPath(SocketPath&& other) noexcept
    : text_(std::move(other.text_)), folder_(std::exchange(other.folder_, -1)) {}

SocketPath::~SocketPath() {
  if (folder_ >= 0) ::close(folder_);
}

}  // namespace starling::node
