#include "node/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace starling {

namespace {

namespace fs = std::filesystem;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr int kMaxCores = 1024;
constexpr int kMaxDepth = 64;  // groups above a process's own

// Cores' worth of time of one folder of either version; "max" and -1 are no limit.
double granted_in(const fs::path& folder) {
  double quota = 0;
  double period = 0;
  if (std::ifstream both(folder / "cpu.max"); both >> quota >> period && quota > 0 && period > 0)
    return quota / period;
  std::ifstream quota_file(folder / "cpu.cfs_quota_us");
  std::ifstream period_file(folder / "cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0)
    return quota / period;
  return kNoLimit;
}

// Of a group and those above it, up to where the controller is mounted. In a container the group's
// path may be that of the host, which is not there; the mount itself is the container's group.
double granted(const fs::path& mount, std::string group) {
  double least = granted_in(mount);
  for (int depth = 0; depth < kMaxDepth && group.size() > 1; ++depth) {
    least = std::min(least, granted_in(mount / group.substr(1)));
    group.resize(group.rfind('/'));
  }
  return least;
}

double granted_to_this_process(const fs::path& root) {
  double least = kNoLimit;
  std::ifstream groups(root / "proc/self/cgroup");  // number:controllers:/path
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (group.empty() || group.front() != '/') continue;
    if (controllers == ",,") least = std::min(least, granted(root / "sys/fs/cgroup", group));
    if (controllers.contains(",cpu,"))
      least = std::min(least, granted(root / "sys/fs/cgroup/cpu", group));
  }
  return least;
}

}  // namespace

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int usable_cores(const fs::path& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof(set), &set) == 0;
  const double cores = known ? CPU_COUNT(&set) : 1;
  return static_cast<int>(
      std::clamp(std::min(cores, granted_to_this_process(root)), 1.0, double{kMaxCores}));
}

}  // namespace starling
