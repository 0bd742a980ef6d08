#include "gossip/membership/network.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

namespace starling::gossip {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::optional<Network> of_v4(std::span<const std::uint8_t> ip) {
  const bool local = ip[0] == 0 || ip[0] == 10 || ip[0] == 127 ||
                     (ip[0] == 100 && ip[1] >= 64 && ip[1] < 128) ||
                     (ip[0] == 169 && ip[1] == 254) ||
                     (ip[0] == 172 && ip[1] >= 16 && ip[1] < 32) || (ip[0] == 192 && ip[1] == 168);
  if (local) return std::nullopt;
  return Network{std::uint64_t{ip[0]} << 8 | ip[1]};
}

}  // namespace

std::optional<Network> network_of(std::string_view host) {
  const std::string text(host);
  std::array<std::uint8_t, 16> ip{};
  if (inet_pton(AF_INET, text.c_str(), ip.data()) == 1) return of_v4(ip);
  if (inet_pton(AF_INET6, text.c_str(), ip.data()) != 1) return std::nullopt;
  if (std::ranges::equal(std::span(ip).first(kMapped.size()), kMapped))
    return of_v4(std::span(ip).subspan(kMapped.size()));
  // Global unicast is 2000::/3; nothing else is routed.
  if ((ip[0] & 0xe0) != 0x20) return std::nullopt;
  return Network{std::uint64_t{1} << 32 | std::uint64_t{ip[0]} << 24 | std::uint64_t{ip[1]} << 16 |
                 std::uint64_t{ip[2]} << 8 | ip[3]};
}

std::string_view host_of(std::string_view address) {
  address = address.substr(0, address.rfind(':'));
  if (!address.starts_with('[') || !address.ends_with(']')) return address;
  return address.substr(1, address.size() - 2);
}

}  // namespace starling::gossip
