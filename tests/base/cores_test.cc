#include "node/base/cores.h"

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <thread>

namespace starling {
namespace {

// A machine's /proc and /sys, as far as they matter here.
class Machine {
 public:
  void write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << content;
  }
  [[nodiscard]] int cores() const { return usable_cores(folder_.path()); }

 private:
  TempFolder folder_;
};

TEST_SUITE("base/cores") {
  const auto all = static_cast<int>(std::thread::hardware_concurrency());

  TEST_CASE("without a quota the cores are those that the process may run on") {
    CHECK(usable_cores("/nonexistent") == all);
    CHECK(usable_cores() >= 1);
    CHECK(usable_cores() <= all);
  }

  TEST_CASE("a quota of the process's group, or of one above it, counts, and never below one") {
    Machine machine;
    machine.write("proc/self/cgroup", "0::/system.slice/starling.service\n");
    machine.write("sys/fs/cgroup/system.slice/starling.service/cpu.max", "max 100000\n");
    CHECK(machine.cores() == all);
    machine.write("sys/fs/cgroup/system.slice/cpu.max", "130000 100000\n");
    CHECK(machine.cores() == 1);
    machine.write("sys/fs/cgroup/system.slice/cpu.max", "20000 100000\n");
    CHECK(machine.cores() == 1);
  }

  TEST_CASE("a container finds its quota at the mount, whatever its group is called outside") {
    Machine machine;
    machine.write("proc/self/cgroup", "0::/../pod1/x\n");
    machine.write("sys/fs/cgroup/cpu.max", "100000 100000\n");
    CHECK(machine.cores() == 1);
  }

  TEST_CASE("the first version of control groups counts as well") {
    Machine machine;
    machine.write("proc/self/cgroup", "3:cpu,cpuacct:/job\n2:memory:/job\n");
    machine.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    machine.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    CHECK(machine.cores() == all);
    machine.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
    CHECK(machine.cores() == 1);
  }

  TEST_CASE("files that make no sense limit nothing") {
    Machine machine;
    machine.write("proc/self/cgroup", "nonsense\n0::\n0:relative\n::/a\n");
    machine.write("sys/fs/cgroup/cpu.max", "0 0\n");
    CHECK(machine.cores() == all);
  }
}

}  // namespace
}  // namespace starling
