#include "node/bench/loopback.h"

#include "node/base/cpu_time.h"

#include <asio/co_spawn.hpp>

#include <exception>

namespace starling::node::bench {

namespace {

constexpr Duration kLoopbackPatience = std::chrono::minutes(1);
constexpr Duration kTurn = std::chrono::milliseconds(20);

void stop(LoopbackEnd& end) {
  asio::co_spawn(
      end.io, [&transport = *end.transport] { return transport.stop(); },
      [](const std::exception_ptr&) {});
}

}  // namespace

Loopback::Loopback() : thread_([this] { their_.io.run(); }) {}

Loopback::~Loopback() {
  assert_io_thread();
  close();
}

void Loopback::make(LoopbackEnd& end, transport::SessionEvents& events, transport::SwarmKey key) {
  transport::TransportOptions options;
  options.name = "bench";
  options.instance = Instance{&end == &own_ ? 1U : 2U};
  // A fresh handshake in the middle of a repeat would begin the counts of a session anew.
  options.renew_after = std::chrono::hours(24);
  const transport::TransportHost host{end.io, events, end.log};
  end.transport =
      std::make_unique<transport::Transport>(host, end.identity, std::move(key), options);
}

void Loopback::attach(transport::SessionEvents& own, transport::SessionEvents& their) {
  const auto secret = transport::SwarmSecret::generate();
  make(own_, own, transport::SwarmKey::of(secret));
  make(their_, their, transport::SwarmKey::of(secret));
}

Result<void> Loopback::connect() {
  const auto listening = run_there([this] {
    assert_io_thread();
    return their_.transport->listen({"127.0.0.1", 0});
  });
  if (!listening) return fail(listening.error());
  own_.transport->dial({*listening, their_.id()});
  const SteadyClock clock;
  const TimePoint end = clock.now() + kLoopbackPatience;
  const auto there = [this] {
    assert_io_thread();
    return their_.transport->has_session(own_.id());
  };
  while (!own_.transport->has_session(their_.id()) || !run_there(there)) {
    if (clock.now() > end)
      return fail(Errc::timed_out, Doing::connecting, "no session over 127.0.0.1 within a minute");
    run_some();
  }
  return {};
}

void Loopback::close() {
  if (std::exchange(closed_, true)) return;
  if (own_.transport) {
    (void)run_there([this] {
      stop(their_);
      return true;
    });
    stop(own_);
  }
  work_.reset();
  own_.io.restart();
  own_.io.run();  // drains by itself: nothing is left behind
  thread_.join();
}

Result<void> Loopback::run_until(const std::function<bool()>& done) {
  const SteadyClock clock;
  const TimePoint end = clock.now() + kLoopbackPatience;
  while (!done()) {
    if (!own_.transport->has_session(their_.id()))
      return fail(Errc::closed, Doing::reading_record, "the session over 127.0.0.1 ended");
    if (clock.now() > end)
      return fail(Errc::timed_out, Doing::reading_record, "not done within a minute");
    run_some();
  }
  return {};
}

void Loopback::run_some() {
  own_.io.run_one_for(kTurn);
  if (own_.io.stopped()) own_.io.restart();
}

Loopback::CpuSeconds Loopback::cpu_seconds() {
  const auto of_thread = [] { return thread_cpu_seconds(); };
  const double their = run_there(of_thread);
  return {thread_cpu_seconds(), their};
}

}  // namespace starling::node::bench
