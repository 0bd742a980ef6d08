#include "node/observe/host_sampler.h"

#include "node/base/random.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <string>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view kStat =
    "4242 (star) ling) S 1 4242 4242 0 -1 4194560 2210 0 3 0 150 50 0 0 20 0 9 0 8000 900000000 "
    "2048 18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 0 0 0 0 0\n";
constexpr std::string_view kNet =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
    "    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
    "  eth0: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0\n"
    " wlan0:10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n";
constexpr std::string_view kDisks =
    " 259 0 nvme0n1 10 0 100 0 5 0 50 0 0 0 0 0 0 0 0\n"
    " 259 1 nvme0n1p1 10 0 100 0 5 0 50 0 0 0 0 0 0 0 0\n"
    "   8 0 sda 1 0 8 0 1 0 16 0 0 0 0\n"
    "   8 1 sda1 1 0 8 0 1 0 16 0 0 0 0\n"
    "   7 0 loop0 1 0 800 0 1 0 1600 0 0 0 0\n"
    " 253 0 dm-0 1 0 800 0 1 0 1600 0 0 0 0\n";

}  // namespace

TEST_SUITE("node/host_sampler") {
  TEST_CASE("the process's numbers are found behind a name with brackets and spaces") {
    const auto stat = parse_process_stat(kStat);
    REQUIRE(stat);
    CHECK(stat->cpu_ticks == 200);
    CHECK(stat->resident_pages == 2'048);
  }

  TEST_CASE("storage traffic is taken, not what the page cache served") {
    const auto io = parse_process_io("rchar: 9\nwchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n");
    REQUIRE(io);
    CHECK(io->read_bytes == 4'096);
    CHECK(io->written_bytes == 8'192);
  }

  TEST_CASE("loopback is not the network") {
    const auto network = parse_network(kNet);
    REQUIRE(network);
    CHECK(network->received_bytes == 1'010);
    CHECK(network->sent_bytes == 2'020);
  }

  TEST_CASE("a partition or a stacked device does not count twice") {
    const auto disks = parse_disks(kDisks);
    REQUIRE(disks);
    CHECK(disks->read_bytes == (100 + 8) * 512);
    CHECK(disks->written_bytes == (50 + 16) * 512);
  }

  TEST_CASE("idle and waiting for storage are not busy") {
    const auto cpu = parse_host_cpu("cpu  10 1 9 70 10 0 0 0 0 0\ncpu0 1 1 1 1\n");
    REQUIRE(cpu);
    CHECK(cpu->busy_ticks == 20);
    CHECK(cpu->all_ticks == 100);
    CHECK(parse_available_memory("MemTotal: 9 kB\nMemAvailable:   100 kB\n") == 102'400U);
  }

  TEST_CASE("texts of another shape give nothing and never crash") {
    for (const auto* text : {"", "\n", "1 (x", "1 (x) S", ")", "cpu", "cpu  a b c d",
                             "read_bytes:", "eth0: 1 2 3", "MemAvailable: x kB"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_process_stat(text));
      CHECK_FALSE(parse_process_io(text));
      CHECK_FALSE(parse_network(text));
      CHECK_FALSE(parse_disks(text));
      CHECK_FALSE(parse_host_cpu(text));
      CHECK_FALSE(parse_available_memory(text));
    }
    const std::array<std::string, 3> bases{std::string(kStat), std::string(kNet),
                                           std::string(kDisks)};
    for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      auto text = bases[static_cast<std::size_t>(rng.below(3))];
      for (auto changes = 1 + rng.below(6); changes > 0; --changes)
        text[static_cast<std::size_t>(rng.below(text.size()))] = static_cast<char>(rng.below(256));
      text.resize(static_cast<std::size_t>(rng.below(text.size() + 1)));
      (void)parse_process_stat(text);
      (void)parse_network(text);
      (void)parse_disks(text);
      (void)parse_host_cpu(text);
    }
  }

  TEST_CASE("the cores in use come from two looks") {
    const TempFolder scratch;
    std::filesystem::create_directories(scratch.path() / "proc" / "self" / "fd");
    scratch.write("proc/self/stat", kStat);
    scratch.write("proc/stat", "cpu  10 0 10 80 0 0 0 0\n");
    HostSampler sampler(scratch.path());
    const auto first = sampler.sample(TimePoint(10s));
    CHECK(first.cpu_ratio == 0);
    CHECK_FALSE(first.host_cpu_ratio);

    auto later = std::string(kStat);
    later.replace(later.find(" 150 50 "), 8, " 250 50 ");
    scratch.write("proc/self/stat", later);
    scratch.write("proc/stat", "cpu  60 0 10 130 0 0 0 0\n");
    const auto second = sampler.sample(TimePoint(12s));

    CHECK(second.cpu_ratio == doctest::Approx(0.5));  // 100 ticks of 10 ms in 2 s
    REQUIRE(second.host_cpu_ratio);
    CHECK(*second.host_cpu_ratio == doctest::Approx(0.5));
  }

  TEST_CASE("memory that is left in a container is what its limit leaves, not the machine's") {
    const TempFolder scratch;
    std::filesystem::create_directories(scratch.path() / "proc" / "self" / "fd");
    std::filesystem::create_directories(scratch.path() / "sys" / "fs" / "cgroup");
    scratch.write("proc/meminfo", "MemTotal:  64000 kB\nMemAvailable:  32000 kB\n");
    scratch.write("proc/self/cgroup", "0::/\n");
    HostSampler sampler(scratch.path());
    CHECK(sampler.sample(TimePoint(1s)).available_memory_bytes == 32'000 * 1'024);
    scratch.write("sys/fs/cgroup/memory.max", "1000000\n");
    scratch.write("sys/fs/cgroup/memory.current", "400000\n");
    CHECK(sampler.sample(TimePoint(2s)).available_memory_bytes == 600'000);
  }

  TEST_CASE("this process can be looked at") {
    HostSampler sampler;
    const auto sample = sampler.sample(TimePoint(1s));
    CHECK(sample.resident_bytes > 100'000);
    CHECK(sample.open_fds >= 3);
  }
}
