// CPU, memory, network and disk of this process and its host, from /proc and /sys.
#pragma once

#include "node/base/clock.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace starling::node {

// Of /proc/self/stat, in clock ticks and pages.
struct ProcessStat {
  std::uint64_t cpu_ticks = 0;  // user and system, all threads
  std::uint64_t resident_pages = 0;
};
struct ProcessIo {
  std::uint64_t read_bytes = 0;  // from storage, not from the page cache
  std::uint64_t written_bytes = 0;
};
struct NetworkTotals {
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_bytes = 0;
};
struct DiskTotals {
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
};
struct HostCpu {
  std::uint64_t busy_ticks = 0;
  std::uint64_t all_ticks = 0;
};

// Each parses one file of /proc; nothing if the text does not have the expected shape. Pure.
[[nodiscard]] std::optional<ProcessStat> parse_process_stat(std::string_view text);
[[nodiscard]] std::optional<ProcessIo> parse_process_io(std::string_view text);
// /proc/net/dev: all interfaces but lo.
[[nodiscard]] std::optional<NetworkTotals> parse_network(std::string_view text);
// /proc/diskstats: whole disks only (a partition's bytes are its disk's as well).
[[nodiscard]] std::optional<DiskTotals> parse_disks(std::string_view text);
[[nodiscard]] std::optional<HostCpu> parse_host_cpu(std::string_view text);
// MemAvailable of /proc/meminfo, in bytes.
[[nodiscard]] std::optional<std::uint64_t> parse_available_memory(std::string_view text);

// What one look saw. Totals count from the start of the process (or of the host); a file that this
// machine does not have leaves its part empty.
struct HostSample {
  TimePoint at;
  double cpu_seconds = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_fds = 0;
  std::optional<ProcessIo> io;
  std::optional<NetworkTotals> network;
  std::optional<DiskTotals> disks;
  std::optional<double> host_cpu_ratio;  // busy share of all cores since the look before
  std::optional<std::uint64_t> available_memory_bytes;  // in a container no more than its limit
  double cpu_ratio = 0;  // cores that this process used since the look before
};

// Looks at /proc and the control groups, once a second at most.
//
// A value with the state of one series of looks; owned by the node. Cost: some twelve small files,
// 0.3 ms. Thread:  any; one at a time.
class HostSampler {
 public:
  // `root` is where /proc and /sys are looked for: another folder in tests.
  explicit HostSampler(const std::filesystem::path& root = "/")
      : root_(root), proc_((root / "proc").string()) {}
  [[nodiscard]] HostSample sample(TimePoint now);

 private:
  std::filesystem::path root_;
  std::string proc_;
  std::optional<HostSample> last_;
  std::optional<HostCpu> last_cpu_;
};

}  // namespace starling::node
