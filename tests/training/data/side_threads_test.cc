#include "training/data/side_threads.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

using namespace starling::training;

namespace {

// While it lives the system refuses every new thread of this process: no stack of that size fits.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_attr_init(&usual_);
    ::pthread_getattr_default_np(&usual_);
    pthread_attr_t huge;
    ::pthread_attr_init(&huge);
    ::pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
    ::pthread_setattr_default_np(&huge);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&usual_);
    ::pthread_attr_destroy(&usual_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t usual_{};
};

// Takes ten pieces from one place on up to four threads; how often each piece was done.
std::array<int, 10> done_by_four(std::atomic<int>& calls) {
  std::array<std::atomic<int>, 10> done{};
  std::atomic<std::size_t> next = 0;
  run_beside(4, [&](std::size_t) {
    ++calls;
    for (std::size_t i = next++; i < done.size(); i = next++) ++done[i];
  });
  std::array<int, 10> times{};
  std::ranges::copy(done, times.begin());
  return times;
}

}  // namespace

TEST_SUITE("training/data/side_threads") {
  TEST_CASE("every thread is called once, and all have ended afterwards") {
    std::atomic<int> calls = 0;
    const auto times = done_by_four(calls);
    CHECK(calls == 4);
    CHECK(std::ranges::count(times, 1) == 10);
  }

  TEST_CASE("a machine that allows not one more thread has the work done all the same") {
    const NoThreads none;
    std::atomic<int> calls = 0;
    const auto times = done_by_four(calls);
    CHECK(calls == 1);
    CHECK(std::ranges::count(times, 1) == 10);
  }
}
