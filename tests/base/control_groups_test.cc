#include "node/base/control_groups.h"

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

namespace starling {
namespace {

// `tests/base/cores_test.cc` asks for the cores.
TEST_SUITE("base/control_groups") {
  TEST_CASE("without a limit nothing is said of memory") {
    CHECK_FALSE(granted_memory_left("/nonexistent"));
    const TempFolder groups;
    groups.write("proc/self/cgroup", "0::/job\n");
    groups.write("sys/fs/cgroup/job/memory.max", "max\n");
    groups.write("sys/fs/cgroup/job/memory.current", "4096\n");
    CHECK_FALSE(granted_memory_left(groups.path()));
  }

  TEST_CASE("memory that is left is the limit less what is used, the pages of files not counted") {
    const TempFolder groups;
    groups.write("proc/self/cgroup", "0::/job\n");
    groups.write("sys/fs/cgroup/job/memory.max", "1000000\n");
    groups.write("sys/fs/cgroup/job/memory.current", "900000\n");
    CHECK(granted_memory_left(groups.path()) == 100'000);
    groups.write("sys/fs/cgroup/job/memory.stat",
                 "anon 500000\nfile 400000\ninactive_anon 7\nactive_file 100000\n"
                 "inactive_file 200000\n");
    CHECK(granted_memory_left(groups.path()) == 400'000);
    groups.write("sys/fs/cgroup/job/memory.current", "2000000\n");
    CHECK(granted_memory_left(groups.path()) == 0);
  }

  TEST_CASE("of a group and the groups above it the tightest counts") {
    const TempFolder groups;
    groups.write("proc/self/cgroup", "0::/kube/pod\n");
    groups.write("sys/fs/cgroup/kube/pod/memory.max", "1000\n");
    groups.write("sys/fs/cgroup/kube/pod/memory.current", "100\n");
    groups.write("sys/fs/cgroup/kube/memory.max", "2000\n");
    groups.write("sys/fs/cgroup/kube/memory.current", "1500\n");
    CHECK(granted_memory_left(groups.path()) == 500);
  }

  TEST_CASE("the first version counts as well, and its largest number is no limit") {
    const TempFolder groups;
    groups.write("proc/self/cgroup", "3:cpu,cpuacct:/other\n2:memory:/job\n");
    groups.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    groups.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3000\n");
    CHECK_FALSE(granted_memory_left(groups.path()));
    groups.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
    groups.write("sys/fs/cgroup/memory/job/memory.stat",
                 "inactive_file 9\ntotal_inactive_file 1000\n");
    CHECK(granted_memory_left(groups.path()) == 3'000);
  }

  TEST_CASE("files that make no sense limit nothing") {
    const TempFolder groups;
    groups.write("proc/self/cgroup", "nonsense\n0::\n0:relative\n0::/a\n");
    groups.write("sys/fs/cgroup/memory.max", "-1\n");
    groups.write("sys/fs/cgroup/a/memory.max", "1000\n");
    groups.write("sys/fs/cgroup/a/memory.current", "lots\n");
    CHECK_FALSE(granted_memory_left(groups.path()));
  }
}

}  // namespace
}  // namespace starling
