// The path of a Unix socket, short enough for a socket address wherever its folder is.
#pragma once

#include "node/base/result.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace starling::node {

inline constexpr std::string_view kControlSocket = "control.sock";

// A name for DIR/control.sock that fits into a socket address (107 characters): the path itself, or
// "/proc/self/fd/N/control.sock" through a descriptor of the folder, which this object keeps open.
//
// A value that can be moved; needed only for the moment of bind() or connect().
class SocketPath {
 public:
  // Errors:  not_found, permission, io_failed.
  [[nodiscard]] static Result<SocketPath> in(const std::filesystem::path& dir);
  ~SocketPath();
  SocketPath(SocketPath&& other) noexcept;
  SocketPath& operator=(SocketPath&&) = delete;

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  SocketPath(std::string text, int folder) : text_(std::move(text)), folder_(folder) {}

  std::string text_;
  int folder_ = -1;
};

}  // namespace starling::node
