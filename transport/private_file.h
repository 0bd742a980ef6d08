// Small files that hold keys: created once, readable by their owner alone.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"

#include <cstddef>
#include <filesystem>
#include <string>

namespace starling::transport {

// Whether a key file may come from a mount that somebody else manages.
enum class Ownership : std::uint8_t {
  own,      // made by this program: mode 0600 or narrower
  mounted,  // a secret that an orchestrator mounts: root's file that only our group reads, or any
            // mode on a read-only file system, is as private as the mount
};

// The contents of a key file.
//
// Errors:  not_found; permission if others than the owner may read or write it (see Ownership), or
//          if it is no regular file, or a link that leads nowhere; too_large above `max_bytes`;
//          io_failed. The detail names the path and, for a mode, the command that mends it.
[[nodiscard]] Result<std::string> read_private_file(const std::filesystem::path& path,
                                                    std::size_t max_bytes, Ownership ownership);

// Creates the file with mode 0600 and makes it durable (file and folder). It is there whole or not
// at all: a writer that dies leaves ".NAME.XXXXXX" at most, which is in nobody's way.
//
// Errors:  already_exists, and then nothing is touched; permission; disk_full; io_failed.
[[nodiscard]] Result<void> create_private_file(const std::filesystem::path& path,
                                               std::string_view text);

}  // namespace starling::transport
