// Many seeds on all processors: each is a world of its own, and what came of it is told in order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace starling::sim {

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t count = 1;
};

// As many threads as the machine runs at once.
[[nodiscard]] inline std::size_t all_processors() {
  return std::max(1U, std::thread::hardware_concurrency());
}

// Calls run(seed) for each seed, `jobs` of them at a time, and tell(seed, outcome) in the order of
// the seeds, each as soon as those before it were told.
//
// Thread:  run on threads of its own (a single job: on this one), tell on this one.
template <class Run, class Tell>
void over_seeds(Seeds seeds, std::size_t jobs, Run run, Tell tell) {
  using Outcome = decltype(run(seeds.first));
  if (jobs <= 1) {
    for (std::uint64_t i = 0; i < seeds.count; ++i) tell(seeds.first + i, run(seeds.first + i));
    return;
  }
  std::vector<std::optional<Outcome>> outcomes(seeds.count);
  std::vector<std::atomic<bool>> done(seeds.count);
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    for (std::uint64_t i = next++; i < seeds.count; i = next++) {
      outcomes[i] = run(seeds.first + i);
      done[i] = true;
      done[i].notify_one();
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t k = 0; k < std::min<std::uint64_t>(jobs, seeds.count); ++k)
    threads.emplace_back(work);
  for (std::uint64_t i = 0; i < seeds.count; ++i) {
    done[i].wait(false);
    tell(seeds.first + i, *std::exchange(outcomes[i], std::nullopt));
  }
}

}  // namespace starling::sim
