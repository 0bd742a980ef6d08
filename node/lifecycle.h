// Lifecycle: signals, before a node is up and while it runs, and the watchdog that ends a process
// whose orderly stop hangs.
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

// What a process that prepares a node does at a signal. Opening the data of a large set takes
// minutes, in which nothing looks at a wish to stop: SIGINT and SIGTERM end the process in order
// (decision 0084), on a thread of this object. SIGHUP, SIGUSR1 and SIGQUIT ask something of a node
// that is not there yet, and SIGUSR2 nothing of any: they are ignored.
//
// Owned by run_verb(). From its constructor on SIGINT and SIGTERM are blocked in the calling thread
// and in those that it starts; end() lets the calling thread have them again.
class StartSignals {
 public:
  StartSignals();
  ~StartSignals() { end(); }
  StartSignals(const StartSignals&) = delete;
  StartSignals& operator=(const StartSignals&) = delete;

  // Once the first of the two comes, or where it came since the constructor, `before_end` is called
  // with it, and then the process ends with 0: nobody has met the node, and every file that it
  // writes is whole at every moment (state_dir.h). Where the machine refuses a thread both kill, as
  // they do by themselves.
  void watch(std::function<void(int signal)> before_end);
  // From now on somebody else handles them. Nothing where it was called before.
  void end();

 private:
  int signals_ = -1;  // a signalfd
  int over_ = -1;     // an eventfd
  bool ended_ = false;
  std::thread thread_;
};

// Turns signals into calls: the first SIGINT or SIGTERM asks to leave, a second one half a second
// later or more ends the process at once with 130 or 143. SIGHUP asks to read again what may change
// while the node runs, SIGUSR1 for a checkpoint, SIGQUIT for the node's state in the log.
//
// Signals are held from the constructor on, and handled from start() on. Owned by the node; stop()
// lets the io context drain. Thread: io.
class Signals {
 public:
  struct Calls {
    std::function<void()> leave;
    std::function<void()> reload;
    std::function<void()> checkpoint;
    std::function<void()> tell_state;
  };

  Signals(asio::io_context& io, Log& log, Calls calls);

  void start() ON_IO_THREAD;
  void stop() ON_IO_THREAD;

 private:
  void wait() ON_IO_THREAD;
  void wait_for_request() ON_IO_THREAD;

  asio::signal_set signals_;
  asio::signal_set asked_;  // for something else than the end
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
