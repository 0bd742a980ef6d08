#include "node/observe/host_sampler.h"

#include "node/base/control_groups.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <vector>

namespace starling::node {

namespace {

constexpr std::uint64_t kSectorBytes = 512;  // of /proc/diskstats, whatever the disk has
constexpr std::size_t kMaxFile = 256 * 1024;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  std::size_t at = 0;
  while (at < line.size()) {
    const auto start = line.find_first_not_of(" \t", at);
    if (start == std::string_view::npos) break;
    const auto end = std::min(line.find_first_of(" \t", start), line.size());
    words.push_back(line.substr(start, end - start));
    at = end;
  }
  return words;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Calls `each` with every line; stops when it returns false.
template <class Each>
void for_lines(std::string_view text, Each each) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (!each(text.substr(0, end))) return;
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// The number after "name:" at the start of a line.
std::optional<std::uint64_t> labelled(std::string_view text, std::string_view name) {
  std::optional<std::uint64_t> value;
  for_lines(text, [&](std::string_view line) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':')
      return true;
    const auto words = words_of(line.substr(name.size() + 1));
    if (!words.empty()) value = number(words.front());
    return false;
  });
  return value;
}

// A disk, not a part of one or a stack on others: their bytes would count twice.
bool whole_disk(std::string_view name) {
  constexpr std::array<std::string_view, 6> kStacked{"loop", "ram", "dm-", "md", "zram", "sr"};
  for (const auto prefix : kStacked)
    if (name.starts_with(prefix)) return false;
  const bool numbered = !name.empty() && name.back() >= '0' && name.back() <= '9';
  if (!numbered) return true;
  if (!name.starts_with("nvme") && !name.starts_with("mmcblk")) return false;
  // nvme0n1 is a disk, nvme0n1p2 a part of it; the same for mmcblk0 and mmcblk0p1.
  const auto letter = name.find_last_not_of("0123456789");
  return letter == std::string_view::npos || name[letter] != 'p';
}

std::string read_small(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFile, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

std::uint64_t count_entries(const std::string& folder) {
  DIR* const dir = ::opendir(folder.c_str());
  if (dir == nullptr) return 0;
  std::uint64_t count = 0;
  while (const dirent* const entry = ::readdir(dir))
    if (entry->d_name[0] != '.') ++count;
  ::closedir(dir);
  return count > 0 ? count - 1 : 0;  // without the descriptor of this very look
}

}  // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view text) {
  // "pid (name) state ..."; the name may hold spaces and brackets, so count from the last bracket.
  const auto bracket = text.rfind(')');
  if (bracket == std::string_view::npos) return std::nullopt;
  const auto end = text.find('\n', bracket);
  const auto words = words_of(text.substr(bracket + 1, end - bracket - 1));
  if (words.size() < 22) return std::nullopt;  // state is field 3 of the manual page
  const auto user = number(words[11]);
  const auto system = number(words[12]);
  const auto pages = number(words[21]);
  if (!user || !system || !pages) return std::nullopt;
  return ProcessStat{*user + *system, *pages};
}

std::optional<ProcessIo> parse_process_io(std::string_view text) {
  const auto read = labelled(text, "read_bytes");
  const auto written = labelled(text, "write_bytes");
  if (!read || !written) return std::nullopt;
  return ProcessIo{*read, *written};
}

std::optional<NetworkTotals> parse_network(std::string_view text) {
  NetworkTotals totals;
  bool any = false;
  for_lines(text, [&](std::string_view line) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return true;  // the two lines of the heading
    const auto name = words_of(line.substr(0, colon));
    const auto words = words_of(line.substr(colon + 1));
    if (name.size() != 1 || words.size() < 9) return true;
    const auto received = number(words[0]);
    const auto sent = number(words[8]);
    if (!received || !sent) return true;
    any = true;
    if (name.front() == "lo") return true;
    totals.received_bytes += *received;
    totals.sent_bytes += *sent;
    return true;
  });
  if (!any) return std::nullopt;
  return totals;
}

std::optional<DiskTotals> parse_disks(std::string_view text) {
  DiskTotals totals;
  bool any = false;
  for_lines(text, [&](std::string_view line) {
    const auto words = words_of(line);
    if (words.size() < 11 || !whole_disk(words[2])) return true;
    const auto read = number(words[5]);
    const auto written = number(words[9]);
    if (!read || !written) return true;
    any = true;
    totals.read_bytes += *read * kSectorBytes;
    totals.written_bytes += *written * kSectorBytes;
    return true;
  });
  if (!any) return std::nullopt;
  return totals;
}

std::optional<HostCpu> parse_host_cpu(std::string_view text) {
  if (!text.starts_with("cpu ")) return std::nullopt;
  const auto words = words_of(text.substr(4, text.find('\n') - 4));
  if (words.size() < 4) return std::nullopt;
  HostCpu cpu;
  // user nice system idle iowait irq softirq steal; guest time is in user already.
  for (std::size_t i = 0; i < std::min<std::size_t>(words.size(), 8); ++i) {
    const auto ticks = number(words[i]);
    if (!ticks) return std::nullopt;
    cpu.all_ticks += *ticks;
    if (i != 3 && i != 4) cpu.busy_ticks += *ticks;
  }
  return cpu;
}

std::optional<std::uint64_t> parse_available_memory(std::string_view text) {
  const auto kib = labelled(text, "MemAvailable");
  if (!kib) return std::nullopt;
  return *kib * 1'024;
}

HostSample HostSampler::sample(TimePoint now) {
  HostSample sample;
  sample.at = now;
  if (const auto stat = parse_process_stat(read_small(proc_ + "/self/stat"))) {
    sample.cpu_seconds =
        static_cast<double>(stat->cpu_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    sample.resident_bytes =
        stat->resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  sample.open_fds = count_entries(proc_ + "/self/fd");
  sample.io = parse_process_io(read_small(proc_ + "/self/io"));
  sample.network = parse_network(read_small(proc_ + "/net/dev"));
  sample.disks = parse_disks(read_small(proc_ + "/diskstats"));
  sample.available_memory_bytes = parse_available_memory(read_small(proc_ + "/meminfo"));
  if (const auto left = granted_memory_left(root_); left)
    sample.available_memory_bytes = std::min(sample.available_memory_bytes.value_or(*left), *left);
  const auto cpu = parse_host_cpu(read_small(proc_ + "/stat"));
  if (cpu && last_cpu_ && cpu->all_ticks > last_cpu_->all_ticks &&
      cpu->busy_ticks >= last_cpu_->busy_ticks) {
    sample.host_cpu_ratio = static_cast<double>(cpu->busy_ticks - last_cpu_->busy_ticks) /
                            static_cast<double>(cpu->all_ticks - last_cpu_->all_ticks);
  }
  if (last_ && now > last_->at)
    sample.cpu_ratio = (sample.cpu_seconds - last_->cpu_seconds) / seconds(now - last_->at);
  last_cpu_ = cpu;
  last_ = sample;
  return sample;
}

}  // namespace starling::node
