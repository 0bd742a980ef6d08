// A library that CUDA loads into a program by CUDA_INJECTION64_PATH: at the end it prints the time
// of every kernel of the last step, by CUPTI, which sees those of a replayed graph, too. A step
// ends with the kernel whose name holds KERNEL_TIMES_END (default: sgd_kernel); a second such
// kernel close behind belongs to it.
#include "node/base/mutex.h"

#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

using namespace starling;

namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
// Fewer kernels than any step has.
constexpr std::size_t kFewest = 20;

struct Activity {
  std::uint64_t begin;  // ns
  std::uint64_t end;
  std::string name;
};
Mutex mutex;
std::vector<Activity> activities STARLING_GUARDED_BY(mutex);

void CUPTIAPI request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

template <class Record>
void keep(const CUpti_Activity* record, const char* name) STARLING_REQUIRES(mutex) {
  const auto* const found = reinterpret_cast<const Record*>(record);
  activities.push_back({found->start, found->end, name});
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t used) {
  const std::unique_ptr<std::uint8_t, decltype(&std::free)> owned(buffer, &std::free);
  const MutexLock lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* const kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      keep<CUpti_ActivityKernel9>(record, kernel->name == nullptr ? "?" : kernel->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      keep<CUpti_ActivityMemcpy5>(record, "copy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      keep<CUpti_ActivityMemset4>(record, "fill");
    }
  }
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? plain.get() : name;
}

// The last step: [first, last) of the activities in order of time.
std::pair<std::size_t, std::size_t> last_step() STARLING_REQUIRES(mutex) {
  const char* const chosen = std::getenv("KERNEL_TIMES_END");
  const std::string end = chosen == nullptr ? "sgd_kernel" : chosen;
  std::size_t last = 0;
  for (std::size_t i = activities.size(); i-- > 0;) {
    if (!activities[i].name.contains(end)) continue;
    if (last > i + kFewest) return {i + 1, last + 1};
    if (last == 0) last = i;
  }
  return {0, activities.size()};
}

void print() {
  (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const MutexLock lock(mutex);
  std::ranges::sort(activities, {}, &Activity::begin);
  const auto [first, last] = last_step();
  if (first == last) return;
  struct Sum {
    double us = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums;
  double all = 0;
  for (std::size_t i = first; i < last; ++i) {
    const double us = static_cast<double>(activities[i].end - activities[i].begin) / 1e3;
    sums[activities[i].name].us += us;
    ++sums[activities[i].name].count;
    all += us;
  }
  std::vector<std::pair<std::string, Sum>> sorted(sums.begin(), sums.end());
  std::ranges::sort(sorted, std::ranges::greater{},
                    [](const auto& entry) { return entry.second.us; });
  std::fprintf(
      stderr,
      "%10.1f us from the first kernel's begin to the last one's end, %.1f in %zu kernels\n",
      static_cast<double>(activities[last - 1].end - activities[first].begin) / 1e3, all,
      last - first);
  for (const auto& [name, sum] : sorted)
    std::fprintf(stderr, "%10.1f us %5d x %.160s\n", sum.us, sum.count, demangled(name).c_str());
}

}  // namespace

extern "C" int InitializeInjection() {
  (void)cuptiActivityRegisterCallbacks(request_buffer, take_buffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS)
      std::fprintf(stderr, "kernel_times: CUPTI does not record activities of kind %d\n", kind);
  (void)std::atexit(print);
  return 1;
}
