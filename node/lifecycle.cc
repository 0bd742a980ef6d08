#include "node/lifecycle.h"

#include "node/base/mutex.h"
#include "node/cli/exit_code.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <system_error>
#include <utility>

namespace starling::node {

Signals::Signals(asio::io_context& io, Log& log, Calls calls)
    : signals_(io, SIGINT, SIGTERM), reloads_(io, SIGHUP), log_(log), calls_(std::move(calls)) {}

void Signals::start() {
  wait();
  wait_for_reload();
}

void Signals::stop() {
  std::error_code ignored;
  signals_.cancel(ignored);
  reloads_.cancel(ignored);
}

void Signals::wait_for_reload() {
  reloads_.async_wait([this](const std::error_code& error, int) {
    if (error) return;
    assert_io_thread();
    wait_for_reload();
    calls_.reload();
  });
}

void Signals::wait() {
  signals_.async_wait([this](const std::error_code& error, int number) {
    if (error) return;
    assert_io_thread();
    const StopWish wish = requests_.on_signal(clock_.now());
    if (wish == StopWish::end) {
      ::_exit(
          number_of(number == SIGINT ? ExitCode::second_interrupt : ExitCode::second_terminate));
    }
    if (wish == StopWish::same_again) return wait();
    log_.info("node.leaving", {{"signal", number == SIGINT ? "SIGINT" : "SIGTERM"},
                               {"again", "a second signal exits at once"}});
    // First, because leaving may stop everything before it returns, this wait included.
    wait();
    calls_.leave();
  });
}

Watchdog::~Watchdog() {
  disarmed_ = true;
  if (thread_.joinable()) thread_.join();
}

void Watchdog::arm(Duration limit, std::function<std::string()> still_running) {
  if (thread_.joinable()) return;
  auto watch = [this, limit, still_running = std::move(still_running)] {
    name_this_thread("watchdog");
    constexpr std::chrono::milliseconds kLook(50);
    for (Duration waited{0}; waited < limit; waited += kLook) {
      if (disarmed_) return;
      (void)::poll(nullptr, 0, static_cast<int>(kLook.count()));
    }
    if (disarmed_) return;
    log_.error("node.stop_hangs", {{"still_running", still_running()},
                                   {"did", "ended the process; the newest checkpoint is whole"}});
    ::_exit(number_of(ExitCode::internal));
  };
  try {
    thread_ = std::thread(std::move(watch));
  } catch (const std::system_error& refused) {
    log_.warn("node.no_watchdog", {{"why", refused.what()},
                                   {"did", "stops all the same; nothing ends it if that hangs"}});
  }
}

}  // namespace starling::node
