#include "node/set_aside.h"

#include "node/base/posix_file.h"

#include <fmt/format.h>

#include <system_error>

namespace starling::node {

namespace fs = std::filesystem;

bool is_absent(const fs::path& file, const Error& why) {
  std::error_code ignored;
  return why.code == Errc::not_found &&
         fs::symlink_status(file, ignored).type() == fs::file_type::not_found;
}

fs::path name_aside(fs::path file, std::string_view ending) {
  file += ".";
  file += ending;
  return file;
}

Result<fs::path> set_aside(const fs::path& file, std::string_view ending) {
  auto aside = name_aside(file, ending);
  std::error_code error;
  fs::rename(file, aside, error);
  if (error)
    return fail(errc_of_errno(error.value()), Doing::writing_file,
                fmt::format("{}: cannot be renamed to {}: {}", file.string(), aside.string(),
                            error.message()));
  return aside;
}

}  // namespace starling::node
