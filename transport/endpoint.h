// Endpoint: where a node listens, as people write it; DialTarget: an endpoint and, where the person
// knows it, whose it is.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"

#include <compare>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace starling::transport {

// A host (name, IPv4 address, or IPv6 address without brackets) and a TCP port.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

// "host:port", with brackets around an IPv6 address.
[[nodiscard]] std::string to_string(const Endpoint& endpoint);
std::ostream& operator<<(std::ostream& out, const Endpoint& endpoint);

// The endpoint that a text names.
//
// Rule:    "host:port", "[v6]:port"; without ":port" the default port is taken, where there is one.
//          Hosts have 1 to 253 printable characters and no space. IP addresses get their usual
//          form.
// Errors:  bad_argument.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text,
                                              std::optional<std::uint16_t> default_port = {});

// Whom to dial. With a pin, a peer that proves another identity is refused.
struct DialTarget {
  Endpoint endpoint;
  std::optional<NodeId> pin;

  friend bool operator==(const DialTarget&, const DialTarget&) = default;
};

// "id@host:port" (the id as 64 hexadecimal digits) or "host:port".
//
// Errors:  bad_argument.
[[nodiscard]] Result<DialTarget> parse_dial_target(std::string_view text,
                                                   std::optional<std::uint16_t> default_port = {});

}  // namespace starling::transport
