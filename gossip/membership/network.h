// Networks: what one owner of a thousand identities has few of.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace starling::gossip {

enum class Network : std::uint64_t {};

// The /16 of an IPv4 or the /32 of an IPv6 address.
//
// Returns: nothing for names, and for addresses that the internet does not route (private, shared,
//          link-local, loopback): whoever is there is not one of many strangers.
// Source:  Heilman et al. 2015, "Eclipse Attacks on Bitcoin's Peer-to-Peer Network", section 7.
[[nodiscard]] std::optional<Network> network_of(std::string_view host);

// The host of "host:port" or "[v6]:port".
[[nodiscard]] std::string_view host_of(std::string_view address);

}  // namespace starling::gossip
