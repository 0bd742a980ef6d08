#include "training/data/side_threads.h"

#include <system_error>
#include <thread>
#include <vector>

namespace starling::training {

void run_beside(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::jthread> threads;
  threads.reserve(count);
  try {
    for (std::size_t number = 1; number < count; ++number)
      threads.emplace_back([&work, number] { work(number); });
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): fewer do the same
  }
  work(0);
}

}  // namespace starling::training
