#include "node/base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

namespace {

namespace fs = std::filesystem;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr int kMaxDepth = 64;  // groups above a process's own

// A group and those above it, up to where the controller is mounted. In a container the group's
// path may be that of the host, which is not there; the mount itself is the container's group.
void add_groups(const fs::path& mount, std::string group, std::vector<fs::path>& found) {
  found.push_back(mount);
  for (int depth = 0; depth < kMaxDepth && group.size() > 1; ++depth) {
    found.push_back(mount / group.substr(1));
    group.resize(group.rfind('/'));
  }
}

std::vector<fs::path> groups_of_this_process(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> found;
  std::ifstream groups(root / "proc/self/cgroup");  // number:controllers:/path
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (group.empty() || group.front() != '/') continue;
    if (controllers == ",,") add_groups(root / "sys/fs/cgroup", group, found);
    if (controllers.contains("," + controller + ","))
      add_groups(root / "sys/fs/cgroup" / controller, group, found);
  }
  return found;
}

// Of one folder of either version; "max" and -1 are no limit.
double cores_of(const fs::path& folder) {
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

std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::uint64_t number = 0;
  if (std::ifstream in(file); in >> number) return number;
  return std::nullopt;
}

// Pages of files in a group, those of groups below it included.
std::uint64_t pages_of_files(const fs::path& folder, std::string_view prefix) {
  std::uint64_t pages = 0;
  std::ifstream stat(folder / "memory.stat");
  std::string name;
  for (std::uint64_t value = 0; stat >> name >> value;)
    if (name == std::string(prefix) + "inactive_file" ||
        name == std::string(prefix) + "active_file")
      pages += value;
  return pages;
}

std::optional<std::uint64_t> memory_left_in(const fs::path& folder) {
  auto limit = number_in(folder / "memory.max");
  auto used = number_in(folder / "memory.current");
  std::string_view prefix;
  if (!limit && !used) {
    limit = number_in(folder / "memory.limit_in_bytes");
    used = number_in(folder / "memory.usage_in_bytes");
    prefix = "total_";
  }
  // The first version has no word for no limit but the largest number of whole pages.
  if (!limit || !used || *limit > std::uint64_t{1} << 62) return std::nullopt;
  const std::uint64_t taken = *used - std::min(*used, pages_of_files(folder, prefix));
  return *limit - std::min(*limit, taken);
}

}  // namespace

double granted_cores(const fs::path& root) {
  double least = kNoLimit;
  for (const auto& folder : groups_of_this_process(root, "cpu"))
    least = std::min(least, cores_of(folder));
  return least;
}

std::optional<std::uint64_t> granted_memory_left(const fs::path& root) {
  std::optional<std::uint64_t> least;
  for (const auto& folder : groups_of_this_process(root, "memory"))
    if (const auto left = memory_left_in(folder); left && (!least || *left < *least)) least = left;
  return least;
}

}  // namespace starling
