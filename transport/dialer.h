// Dialling: from a host name to a connected socket, with deadlines. Backing off and trying again is
// the caller's policy.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "transport/endpoint.h"
#include "transport/limits.h"
#include "transport/task.h"

#include <asio/ip/tcp.hpp>

#include <vector>

namespace starling::transport {

// A connected socket. All addresses of the name are tried in the resolver's order.
//
// Errors:  resolve_failed; connect_refused where every address answered that nobody listens there;
//          otherwise connect_failed or timed_out, with the last address and the system's reason;
//          cancelled.
[[nodiscard]] Task<Result<asio::ip::tcp::socket>> connect_to(Endpoint target);

// The same for addresses that are known. Together they have the time of `in_all`: each that is
// tried has an equal share of what is left, so that one that says nothing keeps no other out.
[[nodiscard]] Task<Result<asio::ip::tcp::socket>> connect_to_any(
    std::vector<asio::ip::tcp::endpoint> endpoints, Duration in_all = limits::kDialDeadline);

// The address and port of a connection's other side, IPv4 written as IPv4.
[[nodiscard]] Endpoint endpoint_of(const asio::ip::tcp::endpoint& endpoint);

}  // namespace starling::transport
