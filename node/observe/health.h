// Heartbeats of the threads that must not stand still, for /livez and the status.
#pragma once

#include "node/base/clock.h"

#include <atomic>
#include <cstdint>
#include <optional>

namespace starling::node {

// When each thread was last seen moving.
//
// Owned by the node. A heart that never beat is not asked for (a node that is still building its
// model has no train thread). Limits are generous: a busy machine is not a dead one. The train
// thread's is http.train_limit.
//
// Thread:  any.
class Health {
 public:
  explicit Health(Duration train_limit = std::chrono::minutes(10)) : train_limit_(train_limit) {}

  // The io thread beats from a timer, the train thread at its start and after steps; rest_train()
  // when it has nothing to do (final consensus, finished).
  void beat_io(TimePoint now) { io_ = now.time_since_epoch().count(); }
  void beat_train(TimePoint now) { train_ = now.time_since_epoch().count(); }
  void rest_train() { train_ = 0; }

  [[nodiscard]] bool live(TimePoint now) const {
    return !beyond(io_, now, kIoLimit) && !train_stands(now);
  }
  // How long the train thread has stood still; nothing while that is within its limit.
  [[nodiscard]] std::optional<Duration> train_stands(TimePoint now) const {
    return beyond(train_, now, train_limit_);
  }

 private:
  static constexpr Duration kIoLimit = std::chrono::seconds(60);

  static std::optional<Duration> beyond(std::int64_t beat, TimePoint now, Duration limit) {
    const Duration silence = now.time_since_epoch() - Duration(beat);
    return beat != 0 && silence > limit ? std::optional(silence) : std::nullopt;
  }

  const Duration train_limit_;
  std::atomic<std::int64_t> io_{0};
  std::atomic<std::int64_t> train_{0};
};

}  // namespace starling::node
