// Lifecycle: signals, and the watchdog that ends a process whose orderly stop hangs.
#pragma once

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/thread.h"
#include "node/stop_requests.h"

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace starling::node {

// Turns signals into calls: the first SIGINT or SIGTERM asks to leave, a second one half a second
// later or more ends the process at once with 130 or 143. SIGHUP asks to read again what may change
// while the node runs.
//
// Owned by the node; stop() lets the io context drain. Thread: io.
class Signals {
 public:
  struct Calls {
    std::function<void()> leave;
    std::function<void()> reload;
  };

  Signals(asio::io_context& io, Log& log, Calls calls);

  void start() ON_IO_THREAD;
  void stop() ON_IO_THREAD;

 private:
  void wait() ON_IO_THREAD;
  void wait_for_reload() ON_IO_THREAD;

  asio::signal_set signals_;
  asio::signal_set reloads_;
  Log& log_;
  Calls calls_;
  SteadyClock clock_;
  StopRequests requests_;
};

// Ends the process with status 1 if it is still there when the time is over: a node that was asked
// to stop must not sit in a scheduler's grace period because one thread hangs. Says first what was
// still running.
//
// Owned by run_verb(), armed when the stop begins; disarmed by its destructor.
class Watchdog {
 public:
  explicit Watchdog(Log& log) : log_(log) {}
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // `still_running` is called on the watchdog's own thread and must not touch what may hang.
  void arm(Duration limit, std::function<std::string()> still_running);

 private:
  Log& log_;
  std::atomic<bool> disarmed_{false};
  std::thread thread_;
};

}  // namespace starling::node
