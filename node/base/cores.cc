#include "node/base/cores.h"

#include "node/base/control_groups.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace starling {

namespace {

namespace fs = std::filesystem;

constexpr int kMaxCores = 1024;

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
  return static_cast<int>(std::clamp(std::min(cores, granted_cores(root)), 1.0, double{kMaxCores}));
}

}  // namespace starling
