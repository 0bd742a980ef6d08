// PlainWire: two sockets over 127.0.0.1 under plain Asio, a thread each. What the same bytes cost
// without a session: no frames, no cipher, no limits. Only for comparing with; no node talks so.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"
#include "node/bench/measure.h"
#include "transport/task.h"

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>
#include <system_error>

namespace starling::node::bench {

// Body of a small message, here and in a session.
inline constexpr std::size_t kSmallBody = 256;

class PlainWire {
 public:
  // Errors:  connect_failed.
  Result<void> connect();

  // The time in which kSmallBody bytes go there and back, in microseconds, that many times.
  //
  // Errors:  closed.
  Result<Repeats> round_trips_us(std::uint64_t count);

  // What it costs both ends to send `bytes` to each other at once, in writes of a session's largest
  // record (decision 0036), and to have them whole in memory of their own: nothing less is
  // delivered by a session.
  //
  // Errors:  closed.
  Result<Cost> exchange(ByteView bytes);

 private:
  // One end: used by the thread that runs its context. A coroutine ends at the first error.
  struct End {
    transport::Task<> ping(std::uint64_t count);
    transport::Task<> echo(std::uint64_t count);
    transport::Task<> send(ByteView bytes);
    transport::Task<> receive(std::size_t bytes);

    asio::io_context io{1};
    asio::ip::tcp::socket socket{io};
    std::error_code error;
    Repeats round_trips_us;
  };

  // Runs what was spawned at both ends.
  Result<void> run_both();

  End own_;
  End their_;
};

// CPU seconds of one thread for sealing and opening that many bytes in records of the greatest
// size, by themselves.
[[nodiscard]] double cipher_cpu_s(std::uint64_t bytes);

}  // namespace starling::node::bench
