// Files of a node's folder that it cannot use, and over which it is about to write.
#pragma once

#include "node/base/result.h"

#include <filesystem>
#include <string_view>

namespace starling::node {

// Whether reading a file ended in `why` because there is nothing under its name. A link to nothing
// is something: it says where the bytes were.
[[nodiscard]] bool is_absent(const std::filesystem::path& file, const Error& why);

// What set_aside() calls the file.
[[nodiscard]] std::filesystem::path name_aside(std::filesystem::path file, std::string_view ending);

// Renames a file, folder or link to FILE.ENDING, so that what is written under its name next does
// not destroy it. A file that an earlier start set aside is replaced.
//
// Returns: the new name.
// Errors:  permission, io_failed and the like of the system; the file is where it was.
[[nodiscard]] Result<std::filesystem::path> set_aside(const std::filesystem::path& file,
                                                      std::string_view ending);

}  // namespace starling::node
