// Listener: accepts connections and hands them on.
#pragma once

#include "node/base/log.h"
#include "node/base/posix_file.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "transport/endpoint.h"
#include "transport/task_group.h"

#include <asio/any_io_executor.hpp>
#include <asio/ip/tcp.hpp>

#include <functional>
#include <list>
#include <optional>

namespace starling::transport {

// The accept loops of one process.
//
// When the process has no file descriptor left, the connection that waited longest is accepted on a
// descriptor kept for that and closed, so that its peer learns at once that nobody serves it, and
// accepting pauses for limits::kAcceptPause instead of spinning. A member of Transport, whose
// `on_socket` decides what becomes of a connection; stop() before it goes. Thread: io.
class Listener {
 public:
  using OnSocket = std::function<void(asio::ip::tcp::socket)>;

  Listener(asio::any_io_executor executor, Log& log, OnSocket on_socket);

  // The endpoint that is listened on from now on; port 0 lets the kernel choose. "::" is every
  // address of this machine, IPv4's too; without IPv6 it is IPv4's alone.
  //
  // Errors:  listen_failed, with the system's reason.
  [[nodiscard]] Result<Endpoint> listen(const Endpoint& endpoint);

  // Stops accepting; established connections stay.
  Task<> stop();

 private:
  Task<> accept_loop(asio::ip::tcp::acceptor& acceptor);
  void turn_away(asio::ip::tcp::acceptor& acceptor);

  asio::any_io_executor executor_;
  Log& log_;
  OnSocket on_socket_;
  std::list<asio::ip::tcp::acceptor> acceptors_;  // at stable addresses, and there until stop()
  std::optional<Descriptor> reserve_;             // to turn away with when there is no other
  TaskGroup tasks_;
};

}  // namespace starling::transport
