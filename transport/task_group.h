// TaskGroup: the owner of coroutines. None outlives its owner.
#pragma once

#include "node/base/check.h"
#include "node/base/error.h"
#include "node/base/log.h"
#include "transport/task.h"

#include <asio/any_io_executor.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/cancellation_signal.hpp>

#include <cstddef>
#include <exception>
#include <functional>
#include <list>
#include <string_view>
#include <utility>

namespace starling::transport {

// All coroutines of one owner, who cannot be destroyed before they have ended.
//
// A member of the object whose member functions it runs; `stop()` must have finished before the
// destructor. Lives on the executor it was given, and so does everything it spawns. A coroutine
// that throws is a bug of ours, or has no memory: it is logged with its name, and `on_bug` is
// told, which starts an orderly stop.
class TaskGroup {
 public:
  using OnBug = std::function<void(const Error&)>;

  TaskGroup(asio::any_io_executor executor, Log& log, OnBug on_bug = {})
      : executor_(std::move(executor)), log_(log), on_bug_(std::move(on_bug)), empty_(executor_) {
    empty_.expires_at(asio::steady_timer::time_point::max());
  }
  ~TaskGroup() { STARLING_CHECK_OP(running_.size(), ==, 0U); }
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  // Starts a coroutine: `make` is a callable that returns Task<>, passed uninvoked. After stop()
  // began, nothing is started. `name` is a literal: what the watchdog prints.
  template <class Make>
  void spawn(std::string_view name, Make make) {
    if (stopping_) return;
    const auto entry = running_.emplace(running_.end(), name);
    auto done = [this, entry](std::exception_ptr error) { on_end(entry, std::move(error)); };
    asio::co_spawn(executor_, run(entry, std::move(make)),
                   asio::bind_cancellation_slot(entry->cancel.slot(), std::move(done)));
  }

  // Cancels everything and waits until it ended. Idempotent; may be awaited by several.
  Task<> stop() {
    stopping_ = true;
    for (auto entry = running_.begin(); entry != running_.end();)
      (entry++)->cancel.emit(asio::cancellation_type::terminal);
    while (!running_.empty()) {
      const auto [error] = co_await empty_.async_wait(as_result);
      (void)error;  // cancel() is how on_end() wakes us
    }
  }

  [[nodiscard]] std::size_t running() const { return running_.size(); }
  [[nodiscard]] bool stopping() const { return stopping_; }

 private:
  struct Entry {
    explicit Entry(std::string_view task_name) : name(task_name) {}
    std::string_view name;
    asio::cancellation_signal cancel;
    bool begun = false;
  };

  template <class Make>
  static Task<> run(std::list<Entry>::iterator entry, Make make) {
    entry->begun = true;
    co_await asio::this_coro::throw_if_cancelled(false);
    auto task = make();
    co_await std::move(task);
  }

  void on_end(std::list<Entry>::iterator entry, std::exception_ptr error) {
    const auto name = entry->name;
    // Asio throws at what is cancelled before its first step: nothing of ours has run.
    const bool ours = entry->begun;
    running_.erase(entry);
    if (error && ours) report(name, std::move(error));
    if (running_.empty()) empty_.cancel();
  }

  void report(std::string_view name, std::exception_ptr error) {
    try {
      std::rethrow_exception(std::move(error));
    } catch (...) {
      const Error thrown = current_error(Doing::training, Errc::internal);
      log_.error("task.threw", {{"task", name}, {"what", thrown.detail}});
      if (on_bug_) on_bug_(thrown);
    }
  }

  asio::any_io_executor executor_;
  Log& log_;
  OnBug on_bug_;
  asio::steady_timer empty_;
  std::list<Entry> running_;
  bool stopping_ = false;
};

}  // namespace starling::transport
