// Loopback: two nodes' transports in this process, with one encrypted session over 127.0.0.1.
//
// Each end has an io thread, as a node has: the own end lives on the calling thread and does its
// work inside run_until(), the other one on a thread of its own. Membership, training and files are
// not here.
#pragma once

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "transport/identity.h"
#include "transport/secret.h"
#include "transport/transport.h"

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace starling::node::bench {

// What one end is made of.
struct LoopbackEnd {
  asio::io_context io{1};
  NullLog log;
  transport::Identity identity = transport::Identity::generate();
  std::unique_ptr<transport::Transport> transport;

  [[nodiscard]] NodeId id() const { return identity.id(); }
};

// Two ends and their session.
//
// Owned by one bench, on one thread, the own end's io thread. connect() comes after attach() and
// before everything else; close() ends both, and the destructor calls it. The events must live
// until then.
class Loopback {
 public:
  Loopback();
  ~Loopback();
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  // Makes both transports and says whom they tell.
  void attach(transport::SessionEvents& own, transport::SessionEvents& their) ON_IO_THREAD;
  // Opens the session.
  //
  // Errors:  listen_failed; timed_out.
  Result<void> connect() ON_IO_THREAD;
  // Says goodbye and joins the other end's thread. Idempotent.
  void close() ON_IO_THREAD;

  [[nodiscard]] LoopbackEnd& own() { return own_; }
  // Its members are for its own thread; see run_at().
  [[nodiscard]] LoopbackEnd& their() { return their_; }

  // Runs handlers of the own end until the condition holds.
  //
  // Errors:  closed when the session ended; timed_out after a minute.
  Result<void> run_until(const std::function<bool()>& done) ON_IO_THREAD;

  // Runs `job` wherever `executor` runs things, and gives its result; the own end goes on
  // meanwhile.
  template <class Executor, class Job>
  std::invoke_result_t<Job&> run_at(const Executor& executor, Job job) {
    std::optional<std::invoke_result_t<Job&>> result;
    asio::post(executor, [this, &job, &result] {
      auto value = job();
      asio::post(own_.io,
                 [&result, value = std::move(value)]() mutable { result = std::move(value); });
    });
    while (!result) run_some();
    return std::move(*result);
  }
  template <class Job>
  std::invoke_result_t<Job&> run_there(Job job) {
    return run_at(their_.io.get_executor(), std::move(job));
  }

  // CPU time that each end's two threads have used so far, in seconds.
  struct CpuSeconds {
    double own = 0;
    double their = 0;
  };
  [[nodiscard]] CpuSeconds cpu_seconds();

 private:
  void run_some();
  void make(LoopbackEnd& end, transport::SessionEvents& events, transport::SwarmKey key);

  LoopbackEnd own_;
  LoopbackEnd their_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{their_.io.get_executor()};
  std::thread thread_;
  bool closed_ = false;
};

}  // namespace starling::node::bench
