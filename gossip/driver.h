// Driver: the thin shell around Gossip. It keeps one timer and carries effects out; it decides
// nothing.
#pragma once

#include "gossip/gossip.h"
#include "node/base/clock.h"
#include "node/base/thread.h"
#include "transport/endpoint.h"
#include "transport/transport.h"

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>

#include <map>
#include <string>
#include <vector>

namespace starling::gossip {

// What the node does for gossip: everything that is neither a message nor a dial. Outlives the
// driver.
//
// Thread:  io. A callback may call carry_out() again.
class GossipHost {
 public:
  virtual ~GossipHost() = default;
  virtual void on_effect(GossipEffect effect) ON_IO_THREAD = 0;
};

// Carries the effects of one Gossip out over one Transport.
//
// Owned by the node; start() arms the timer, stop() ends it. Lives on the io thread. Knows which
// addresses are being dialled for which member, so that an outcome finds its way back.
class Driver {
 public:
  Driver(asio::io_context& io, const Clock& clock, transport::Transport& transport, Gossip& gossip,
         GossipHost& host);

  void start() ON_IO_THREAD;
  void stop() ON_IO_THREAD;

  // Carries out effects, in order, and arms the timer for the next deadline.
  void carry_out(GossipEffects effects) ON_IO_THREAD;

  // From transport's events; of messages of the bootstrap room only that they came.
  void on_session_up(const transport::SessionInfo& info) ON_IO_THREAD;
  void on_session_down(const NodeId& peer, const Error& why) ON_IO_THREAD;
  void on_message(const NodeId& peer, const transport::Message& message) ON_IO_THREAD;
  void on_heard(const NodeId& peer, Traffic traffic) ON_IO_THREAD;
  void on_refused(const NodeId& peer, std::uint16_t type, ByteView body) ON_IO_THREAD;
  void on_dial_failed(const transport::Endpoint& target, const Error& why) ON_IO_THREAD;

 private:
  // A member whose addresses are tried one after the other.
  struct Dialling {
    NodeId id;
    std::vector<std::string> left;  // addresses not tried yet, the next one last
    bool all_refused = true;
  };

  void carry_out_one(GossipEffect effect) ON_IO_THREAD;
  void send(Outgoing outgoing) ON_IO_THREAD;
  void dial_next(Dialling dialling) ON_IO_THREAD;
  void arm() ON_IO_THREAD;
  void notice_sleep() ON_IO_THREAD;

  const Clock& clock_;
  transport::Transport& transport_;
  Gossip& gossip_;
  GossipHost& host_;
  asio::steady_timer timer_;
  Duration slept_;                                 // the machine, as gossip knows
  std::multimap<std::string, Dialling> dialling_;  // by the address that is being tried
  bool stopped_ = true;
};

}  // namespace starling::gossip
