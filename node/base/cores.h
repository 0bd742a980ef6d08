// Processors: how many threads that compute this process is given some for, and what they are.
#pragma once

#include <filesystem>
#include <string>

namespace starling {

// The cores that this process may use: of those that it may run on, no more than the control groups
// it is in are granted time on, rounded down; 1 to 1,024. A container that is given 2 of 64 cores
// would otherwise start 64 threads, each of which stands still for most of every period.
//
// `root` is where /proc and /sys are looked for: another folder in tests.
// Thread:  any. Cost: a few small files.
[[nodiscard]] int usable_cores(const std::filesystem::path& root = "/");

// As /proc/cpuinfo names it; "unknown".
[[nodiscard]] std::string cpu_model();

}  // namespace starling
