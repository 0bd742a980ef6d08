// A resolver for tests, which says nothing to some names until it is told to.
#pragma once

#include "node/base/clock.h"
#include "node/base/mutex.h"
#include "node/base/result.h"
#include "transport/resolver.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace starling::transport {

// Says nothing to names that begin with "silent" until it is told to, no address to "unknown", and
// 127.0.0.1 to all others.
//
// Owners: the test, and each thread that looks a name up. Thread: any.
class Names {
 public:
  Result<Addresses> look_up(const std::string& host) {
    const MutexLock lock(mutex_);
    asked_.push_back(host);
    ++inside_;
    most_inside_ = std::max(most_inside_, inside_);
    changed_.notify_all();
    // The bound is for a test that fails: it shall end.
    const auto end = clock_.now() + std::chrono::seconds(10);
    while (host.starts_with("silent") && !speaks_ && clock_.now() < end)
      (void)changed_.wait_for(mutex_, std::chrono::seconds(1));
    --inside_;
    changed_.notify_all();
    if (host == "unknown") return fail(Errc::resolve_failed, Doing::resolving, host + ": not here");
    return Addresses{asio::ip::address_v4::loopback()};
  }

  void speak() {
    const MutexLock lock(mutex_);
    speaks_ = true;
    changed_.notify_all();
  }

  bool wait_for_inside(int count) {
    const MutexLock lock(mutex_);
    const auto end = clock_.now() + std::chrono::seconds(30);
    while (inside_ != count && clock_.now() < end)
      (void)changed_.wait_for(mutex_, std::chrono::seconds(1));
    return inside_ == count;
  }

  int inside() {
    const MutexLock lock(mutex_);
    return inside_;
  }
  int most_inside() {
    const MutexLock lock(mutex_);
    return most_inside_;
  }
  std::vector<std::string> asked() {
    const MutexLock lock(mutex_);
    return asked_;
  }

 private:
  SteadyClock clock_;
  Mutex mutex_;
  CondVar changed_;
  bool speaks_ STARLING_GUARDED_BY(mutex_) = false;
  int inside_ STARLING_GUARDED_BY(mutex_) = 0;
  int most_inside_ STARLING_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> asked_ STARLING_GUARDED_BY(mutex_);
};

}  // namespace starling::transport
