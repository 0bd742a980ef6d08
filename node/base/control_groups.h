// What the control groups of this process leave it: a container's limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace starling {

// Of a process's group and the groups above it the tightest one counts, of version 2 and version 1
// of the kernel's interface. What cannot be read limits nothing. `root` is where /proc and /sys are
// looked for: another folder in tests.
//
// Thread:  any. Cost: a few small files for each group.

// Cores' worth of time (cpu.max; cpu.cfs_quota_us over cpu.cfs_period_us); infinity without limit.
[[nodiscard]] double granted_cores(const std::filesystem::path& root = "/");

// Bytes that may still be taken before the kernel ends a process of the group (memory.max less what
// is used); pages of files, which it would give back first, are not counted as used. Nothing
// without limit.
[[nodiscard]] std::optional<std::uint64_t> granted_memory_left(
    const std::filesystem::path& root = "/");

}  // namespace starling
