// A Log that counts the lines of one event.
#pragma once

#include "node/base/log.h"
#include "node/base/mutex.h"

#include <initializer_list>
#include <string>
#include <string_view>

namespace starling {

// Any thread may write.
class CountingLog final : public Log {
 public:
  explicit CountingLog(std::string_view event) : event_(event) {}

  void write(LogLevel, std::string_view event, std::initializer_list<LogField>) override {
    const MutexLock lock(mutex_);
    if (event == event_) ++count_;
  }
  [[nodiscard]] int count() const {
    const MutexLock lock(mutex_);
    return count_;
  }

 private:
  const std::string event_;
  mutable Mutex mutex_;
  int count_ STARLING_GUARDED_BY(mutex_) = 0;
};

}  // namespace starling
