// Slot<T>: the newest value, handed from one thread to another; an older one that nobody took is
// lost.
#pragma once

#include "node/base/mutex.h"

#include <optional>
#include <utility>

namespace starling {

// Thread:  any number of writers and readers.
template <class T>
class Slot {
 public:
  void put(T value) {
    const MutexLock lock(mutex_);
    value_ = std::move(value);
  }

  [[nodiscard]] std::optional<T> take() {
    const MutexLock lock(mutex_);
    return std::exchange(value_, std::nullopt);
  }

 private:
  Mutex mutex_;
  std::optional<T> value_ STARLING_GUARDED_BY(mutex_);
};

}  // namespace starling
