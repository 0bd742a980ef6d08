// PlainWire: two sockets over 127.0.0.1 under plain Asio, a thread each. What the same bytes cost
// without a session: no frames, no cipher, no limits. Only for comparing with; no node talks so.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"
#include "node/bench/measure.h"
#include "transport/task.h"

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include <cstdint>
#include <system_error>

namespace starling::node::bench {

class PlainWire {
 public:
  // Errors:  connect_failed.
  Result<void> connect();

  // The time in which 256 bytes go there and back, in microseconds, that many times.
  //
  // Errors:  closed.
  Result<Repeats> round_trips_us(std::uint64_t count);

  // What it costs both ends to send `bytes` to each other at once, in writes of 256 KiB.
  //
  // Errors:  closed.
  Result<Cost> exchange(ByteView bytes);

 private:
  using Socket = asio::ip::tcp::socket;

  // One end: its socket is used by the thread that runs its context.
  struct End {
    asio::io_context io{1};
    Socket socket{io};
    std::error_code error;
  };

  static transport::Task<> ping(End& end, std::uint64_t count, Repeats& times);
  static transport::Task<> echo(End& end, std::uint64_t count);
  static transport::Task<> send(End& end, ByteView bytes);
  static transport::Task<> receive(End& end, std::size_t bytes);
  // Runs what was spawned at both ends.
  Result<void> run_both();

  End own_;
  End their_;
};

// CPU seconds of one thread for sealing and opening that many bytes in records of the greatest
// size, by themselves.
[[nodiscard]] double cipher_cpu_s(std::uint64_t bytes);

}  // namespace starling::node::bench
