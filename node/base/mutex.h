// Mutex, MutexLock and CondVar with the annotations that libstdc++'s lack: the only file that
// includes <mutex>.
#pragma once

#include "node/base/thread.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace starling {

class STARLING_CAPABILITY("mutex") Mutex {
 public:
  void lock() STARLING_ACQUIRE() { mutex_.lock(); }
  void unlock() STARLING_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class STARLING_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) STARLING_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() STARLING_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits with a Mutex that the caller holds.
class CondVar {
 public:
  void wait(Mutex& mutex) STARLING_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False if the time ran out first.
  bool wait_for(Mutex& mutex, std::chrono::microseconds time) STARLING_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const auto status = condition_.wait_for(lock, time);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace starling
