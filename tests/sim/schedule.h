// Virtual time: what happens when, in one total order.
#pragma once

#include "node/base/clock.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace starling::sim {

using Action = std::move_only_function<void()>;

// A heap of actions by time; actions of the same moment run in the order in which they were added.
//
// Owned by the world; outlives everything that adds to it. Cost: O(log pending) an action.
class Schedule {
 public:
  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] std::uint64_t events() const { return events_; }
  [[nodiscard]] std::size_t pending() const { return heap_.size(); }

  // What lies in the past happens now.
  void at(TimePoint time, Action action) {
    heap_.push_back({std::max(time, now_), order_++, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), Later{});
  }
  void after(Duration delay, Action action) { at(now_ + delay, std::move(action)); }

  // Runs the next action; false if there is none until `limit`, which then is the present.
  bool run_next(TimePoint limit) {
    if (heap_.empty() || heap_.front().time > limit) {
      now_ = std::max(now_, limit);
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), Later{});
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.time;
    ++events_;
    entry.action();
    return true;
  }

 private:
  struct Entry {
    TimePoint time;
    std::uint64_t order;
    Action action;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return std::pair(a.time, a.order) > std::pair(b.time, b.order);
    }
  };

  TimePoint now_{std::chrono::hours(1)};
  std::uint64_t order_ = 0;
  std::uint64_t events_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace starling::sim
