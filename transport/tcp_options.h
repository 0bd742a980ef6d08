// What a connection between nodes asks of the kernel's TCP. A system call each, from the thread
// that has the socket.
#pragma once

#include <asio/ip/tcp.hpp>

#include <cstddef>

namespace starling::transport {

// Small records go out at once, and a peer that acknowledges nothing for limits::kUnacknowledged
// is gone. A kernel that refuses makes a connection slower, not wrong.
void set_common_options(asio::ip::tcp::socket& socket);

// So much may wait in the kernel beyond what it has sent: what waits there no control record can
// overtake.
void limit_not_sent(asio::ip::tcp::socket& socket, std::size_t bytes);

// What this end sends is paced by BBR from now on: a lost packet is then no reason to halve the
// rate, as it is for CUBIC. False if the kernel has no BBR, or none for this process.
//
// Source:  Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14 (5), 2016.
[[nodiscard]] bool use_bbr(asio::ip::tcp::socket& socket);

}  // namespace starling::transport
