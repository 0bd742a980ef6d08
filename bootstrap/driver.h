// Driver: the thin shell around Join. It keeps one timer, resolves names, opens probe connections
// and carries effects out; it decides nothing.
#pragma once

#include "bootstrap/join.h"
#include "node/base/clock.h"
#include "node/base/thread.h"
#include "transport/task.h"
#include "transport/task_group.h"
#include "transport/transport.h"

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>

#include <functional>
#include <string>
#include <vector>

namespace starling::bootstrap {

// What the node does for bootstrap: everything that is neither a message, a dial nor a look-up.
// Outlives the driver.
//
// Thread:  io. A callback may call carry_out() again.
class BootstrapHost {
 public:
  virtual ~BootstrapHost() = default;
  virtual void on_effect(JoinEffect effect) ON_IO_THREAD = 0;
};

// Carries the effects of one Join out over one Transport.
//
// Owned by the node; stop() must have finished before it is destroyed. Lives on the io thread.
class Driver {
 public:
  Driver(asio::io_context& io, const Clock& clock, transport::Transport& transport, Join& join,
         BootstrapHost& host, Log& log);

  void start() ON_IO_THREAD;
  transport::Task<> stop();

  // Carries out effects, in order, and arms the timer for the next deadline.
  void carry_out(JoinEffects effects) ON_IO_THREAD;

  // From transport's events; only messages of the bootstrap room.
  void on_session_up(const transport::SessionInfo& info) ON_IO_THREAD;
  void on_session_down(const NodeId& peer) ON_IO_THREAD;
  void on_message(const NodeId& peer, const transport::Message& message) ON_IO_THREAD;
  void on_dial_failed(const transport::Endpoint& target, const Error& why) ON_IO_THREAD;

 private:
  void carry_out_one(JoinEffect effect) ON_IO_THREAD;
  transport::Task<> resolve(transport::Endpoint name);
  transport::Task<> probe(ProbePort wanted, std::string host);
  void arm() ON_IO_THREAD;

  const Clock& clock_;
  transport::Transport& transport_;
  Join& join_;
  BootstrapHost& host_;
  asio::steady_timer timer_;
  transport::TaskGroup tasks_;
  bool stopped_ = true;
};

}  // namespace starling::bootstrap
