// Coroutines of Asio under our names: Task, as_result, with_deadline, on_pool. The only file that
// touches asio::experimental.
//
// The nine rules of coroutines are in the style guide; the one that every caller here meets is
// "name it, then co_await it": g++ 12 destroys temporaries of a co_await expression twice.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"

#include <asio/associated_executor.hpp>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace starling::transport {

template <class T = void>
using Task = asio::awaitable<T>;

// Completion token: `auto [error, n] = co_await socket.async_read_some(buffer, as_result);`
// NOLINTNEXTLINE(readability-identifier-naming): read like Asio's own tokens.
inline constexpr auto as_result = asio::experimental::as_tuple(asio::use_awaitable);

// From here on the calling coroutine sees cancellation as error codes, not as exceptions: without
// it every co_await after a cancellation throws, also those of an orderly end. TaskGroup does this
// for everything it spawns.
inline Task<> cancel_by_result() { co_await asio::this_coro::throw_if_cancelled(false); }

namespace task_detail {

template <class T>
Task<Result<T>> quietly(Task<Result<T>> operation) {
  co_await asio::this_coro::throw_if_cancelled(false);
  auto result = co_await std::move(operation);
  co_return result;
}

inline Task<std::error_code> wait_quietly(Duration time) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto executor = co_await asio::this_coro::executor;
  asio::steady_timer timer(executor, time);
  const auto [error] = co_await timer.async_wait(as_result);
  co_return error;
}

}  // namespace task_detail

// The operation's result, or timed_out if it takes longer; then it was cancelled and has ended.
//
// Errors:  timed_out; cancelled if the caller was cancelled; those of the operation.
template <class T>
Task<Result<T>> with_deadline(Duration time, Doing doing, Task<Result<T>> operation) {
  using namespace asio::experimental::awaitable_operators;
  auto quiet = task_detail::quietly<T>(std::move(operation));
  auto timer = task_detail::wait_quietly(time);
  auto both = std::move(quiet) || std::move(timer);
  auto first = co_await std::move(both);
  if (first.index() == 0) co_return std::move(std::get<0>(first));
  if (std::get<1>(first)) co_return fail(Errc::cancelled, doing, "stopping");
  co_return fail(Errc::timed_out, doing, "no end within the deadline");
}

// Runs `job` on the pool and resumes the caller on its own executor, where what the job threw is
// thrown again.
//
// Rule:    the job touches nothing that anybody else uses meanwhile. A cancellation of the caller
//          waits for the job.
template <class Job>
// NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): the pool outlives all.
Task<std::invoke_result_t<Job&>> on_pool(asio::thread_pool& pool, Job job) {
  std::optional<std::invoke_result_t<Job&>> result;
  std::exception_ptr thrown;
  auto initiate = [&pool, &job, &result, &thrown](auto handler) {
    auto executor = asio::get_associated_executor(handler);
    auto work = asio::make_work_guard(executor);
    auto run = [&job, &result, &thrown, executor, work = std::move(work),
                handler = std::move(handler)]() mutable {
      try {
        result.emplace(job());
      } catch (...) {
        thrown = std::current_exception();
      }
      asio::post(executor, std::move(handler));
      work.reset();
    };
    asio::post(pool, std::move(run));
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>&, void()>(initiate,
                                                                        asio::use_awaitable);
  if (thrown) std::rethrow_exception(thrown);
  co_return std::move(*result);
}

}  // namespace starling::transport
