#include "node/lifecycle.h"

#include "node/base/mutex.h"
#include "node/cli/exit_code.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

sigset_t ending_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StartSignals::StartSignals() {
  for (const int number : {SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT}) (void)::signal(number, SIG_IGN);
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void StartSignals::watch(std::function<void(int)> before_end) {
  const sigset_t set = ending_signals();
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  over_ = ::eventfd(0, EFD_CLOEXEC);
  auto look = [this, before_end = std::move(before_end)] {
    name_this_thread("start signals");
    std::array<pollfd, 2> asked{{{signals_, POLLIN, 0}, {over_, POLLIN, 0}}};
    while (::poll(asked.data(), asked.size(), -1) < 0) {
    }
    signalfd_siginfo info{};
    // What came before the end counts, also where both are there.
    if ((asked[0].revents & POLLIN) == 0 || ::read(signals_, &info, sizeof(info)) != sizeof(info))
      return;
    before_end(static_cast<int>(info.ssi_signo));
    ::_exit(number_of(ExitCode::good));
  };
  if (signals_ < 0 || over_ < 0) return end();
  try {
    thread_ = std::thread(std::move(look));
  } catch (const std::system_error&) {
    end();
  }
}

void StartSignals::end() {
  if (std::exchange(ended_, true)) return;
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    while (::write(over_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  for (const int descriptor : {signals_, over_})
    if (descriptor >= 0) ::close(descriptor);
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Signals::Signals(asio::io_context& io, Log& log, Calls calls)
    : signals_(io, SIGINT, SIGTERM),
      asked_(io, SIGHUP, SIGUSR1, SIGQUIT),
      log_(log),
      calls_(std::move(calls)) {}

void Signals::start() {
  wait();
  wait_for_request();
}

void Signals::stop() {
  std::error_code ignored;
  signals_.cancel(ignored);
  asked_.cancel(ignored);
}

void Signals::wait_for_request() {
  asked_.async_wait([this](const std::error_code& error, int number) {
    if (error) return;
    assert_io_thread();
    wait_for_request();
    if (number == SIGUSR1) return calls_.checkpoint();
    if (number == SIGQUIT) return calls_.tell_state();
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
