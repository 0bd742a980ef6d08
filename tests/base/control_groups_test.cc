#include "node/base/control_groups.h"

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace starling {
namespace {

// The control groups of a machine, as far as they matter here.
class Groups {
 public:
  void write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << content;
  }
  [[nodiscard]] std::optional<std::uint64_t> left() const {
    return granted_memory_left(folder_.path());
  }

 private:
  TempFolder folder_;
};

// `tests/base/cores_test.cc` asks for the cores.
TEST_SUITE("base/control_groups") {
  TEST_CASE("without a limit nothing is said of memory") {
    CHECK_FALSE(granted_memory_left("/nonexistent"));
    Groups groups;
    groups.write("proc/self/cgroup", "0::/job\n");
    groups.write("sys/fs/cgroup/job/memory.max", "max\n");
    groups.write("sys/fs/cgroup/job/memory.current", "4096\n");
    CHECK_FALSE(groups.left());
  }

  TEST_CASE("memory that is left is the limit less what is used, the pages of files not counted") {
    Groups groups;
    groups.write("proc/self/cgroup", "0::/job\n");
    groups.write("sys/fs/cgroup/job/memory.max", "1000000\n");
    groups.write("sys/fs/cgroup/job/memory.current", "900000\n");
    CHECK(groups.left() == 100'000);
    groups.write("sys/fs/cgroup/job/memory.stat",
                 "anon 500000\nfile 400000\ninactive_anon 7\nactive_file 100000\n"
                 "inactive_file 200000\n");
    CHECK(groups.left() == 400'000);
    groups.write("sys/fs/cgroup/job/memory.current", "2000000\n");
    CHECK(groups.left() == 0);
  }

  TEST_CASE("of a group and the groups above it the tightest counts") {
    Groups groups;
    groups.write("proc/self/cgroup", "0::/kube/pod\n");
    groups.write("sys/fs/cgroup/kube/pod/memory.max", "1000\n");
    groups.write("sys/fs/cgroup/kube/pod/memory.current", "100\n");
    groups.write("sys/fs/cgroup/kube/memory.max", "2000\n");
    groups.write("sys/fs/cgroup/kube/memory.current", "1500\n");
    CHECK(groups.left() == 500);
  }

  TEST_CASE("the first version counts as well, and its largest number is no limit") {
    Groups groups;
    groups.write("proc/self/cgroup", "3:cpu,cpuacct:/other\n2:memory:/job\n");
    groups.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    groups.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3000\n");
    CHECK_FALSE(groups.left());
    groups.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
    groups.write("sys/fs/cgroup/memory/job/memory.stat",
                 "inactive_file 9\ntotal_inactive_file 1000\n");
    CHECK(groups.left() == 3'000);
  }

  TEST_CASE("files that make no sense limit nothing") {
    Groups groups;
    groups.write("proc/self/cgroup", "nonsense\n0::\n0:relative\n0::/a\n");
    groups.write("sys/fs/cgroup/memory.max", "-1\n");
    groups.write("sys/fs/cgroup/a/memory.max", "1000\n");
    groups.write("sys/fs/cgroup/a/memory.current", "lots\n");
    CHECK_FALSE(groups.left());
  }
}

}  // namespace
}  // namespace starling
