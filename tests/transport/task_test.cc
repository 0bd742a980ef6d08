#include "transport/task.h"

#include "node/base/log.h"
#include "transport/task_group.h"

#include <asio/io_context.hpp>
#include <asio/thread_pool.hpp>
#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>

namespace starling::transport {
namespace {

using namespace std::chrono_literals;

Task<Result<int>> answer_after(Duration time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  const auto [error] = co_await timer.async_wait(as_result);
  if (error) co_return fail(Errc::cancelled, Doing::probing, "stopped");
  co_return 42;
}

// Runs one coroutine in a group until everything has ended.
template <class Make>
void run_in_group(Make make) {
  asio::io_context io{1};
  NullLog log;
  TaskGroup tasks(io.get_executor(), log);
  tasks.spawn("test", std::move(make));
  io.run();
  CHECK(tasks.running() == 0);
}

TEST_SUITE("transport/task") {
  TEST_CASE("a deadline passes a result through, or cancels what is late") {
    std::optional<Result<int>> fast;
    std::optional<Result<int>> slow;
    run_in_group([&]() -> Task<> {
      auto soon = answer_after(1ms);
      fast = co_await with_deadline(10s, Doing::probing, std::move(soon));
      auto late = answer_after(1h);
      slow = co_await with_deadline(5ms, Doing::probing, std::move(late));
    });
    REQUIRE(fast);
    CHECK(fast->value() == 42);
    REQUIRE(slow);
    CHECK(slow->error().code == Errc::timed_out);
    CHECK(slow->error().doing == Doing::probing);
  }

  TEST_CASE("a job runs on the pool and its caller goes on where it was") {
    asio::thread_pool pool(1);
    std::thread::id pool_thread;
    std::thread::id after;
    int result = 0;
    run_in_group([&]() -> Task<> {
      auto job = [&pool_thread] {
        pool_thread = std::this_thread::get_id();
        return 7;
      };
      result = co_await on_pool(pool, std::move(job));
      after = std::this_thread::get_id();
    });
    CHECK(result == 7);
    CHECK(pool_thread != std::this_thread::get_id());
    CHECK(after == std::this_thread::get_id());
    pool.join();
  }

  TEST_CASE("what a job on the pool throws comes to its caller") {
    asio::thread_pool pool(1);
    bool caught = false;
    run_in_group([&]() -> Task<> {
      auto job = []() -> int { throw std::bad_alloc(); };
      try {
        (void)co_await on_pool(pool, std::move(job));
      } catch (const std::bad_alloc&) {
        caught = true;
      }
    });
    CHECK(caught);
    pool.join();
  }

  TEST_CASE("stopping a group cancels its tasks as a result, joins them, and starts no more") {
    asio::io_context io{1};
    NullLog log;
    TaskGroup group(io.get_executor(), log);
    TaskGroup stopper(io.get_executor(), log);
    int cancelled = 0;
    bool stopped = false;
    for (int i = 0; i < 3; ++i)
      group.spawn("wait", [&cancelled]() -> Task<> {
        auto waiting = answer_after(1h);
        const auto waited = co_await with_deadline(2h, Doing::probing, std::move(waiting));
        if (!waited && waited.error().code == Errc::cancelled) ++cancelled;
        // Cancellation is not an exception: an orderly end may still wait.
        auto more = answer_after(1ms);
        if (co_await std::move(more)) ++cancelled;
      });
    io.poll();
    stopper.spawn("stop", [&]() -> Task<> {
      co_await group.stop();
      co_await group.stop();
      stopped = true;
    });
    io.run();
    CHECK(stopped);
    CHECK(cancelled == 6);
    CHECK(group.running() == 0);
    bool ran = false;
    group.spawn("late", [&ran]() -> Task<> {
      ran = true;
      co_return;
    });
    CHECK_FALSE(ran);
  }

  TEST_CASE("a task that is cancelled before its first step is no bug") {
    asio::io_context io{1};
    NullLog log;
    int bugs = 0;
    TaskGroup group(io.get_executor(), log, [&bugs](const Error&) { ++bugs; });
    TaskGroup stopper(io.get_executor(), log);
    bool stopped = false;
    stopper.spawn("stop", [&]() -> Task<> {
      co_await group.stop();
      stopped = true;
    });
    // Its first step waits in line behind the other's.
    group.spawn("new", []() -> Task<> {
      auto waiting = answer_after(1h);
      (void)co_await std::move(waiting);
    });
    io.run();
    CHECK(stopped);
    CHECK(bugs == 0);
    CHECK(group.running() == 0);
  }

  TEST_CASE("a task that throws is a bug that its owner hears of") {
    asio::io_context io{1};
    NullLog log;
    int bugs = 0;
    TaskGroup group(io.get_executor(), log, [&bugs](const Error&) { ++bugs; });
    group.spawn("broken", []() -> Task<> {
      throw std::runtime_error("bug");
      co_return;
    });
    io.run();
    CHECK(bugs == 1);
    CHECK(group.running() == 0);
  }
}

}  // namespace
}  // namespace starling::transport
