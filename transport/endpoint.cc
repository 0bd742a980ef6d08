#include "transport/endpoint.h"

#include "transport/admission.h"

#include <asio/ip/address.hpp>

#include <algorithm>
#include <charconv>

namespace starling::transport {
namespace {

constexpr std::size_t kMaxHost = 253;

std::unexpected<Error> bad_endpoint(std::string_view text, std::string_view why) {
  return fail(Errc::bad_argument, Doing::reading_config,
              "'" + std::string(text.substr(0, 80)) + "' is no address: " + std::string(why));
}

bool printable(char c) { return c > ' ' && c < '\x7f'; }

bool valid_host(std::string_view host) {
  return !host.empty() && host.size() <= kMaxHost && std::ranges::all_of(host, printable) &&
         host.find_first_of("[]@/,") == std::string_view::npos;
}

// An IPv6 address has many spellings, and who answers at it is told by the one of endpoint_of().
std::string usual_form(std::string_view host) {
  std::error_code no_address;
  const auto address = asio::ip::make_address(host, no_address);
  return no_address ? std::string(host) : unmapped(address).to_string();
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size())
    return std::nullopt;
  return port;
}

}  // namespace

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

std::ostream& operator<<(std::ostream& out, const Endpoint& endpoint) {
  return out << to_string(endpoint);
}

Result<Endpoint> parse_endpoint(std::string_view text, std::optional<std::uint16_t> default_port) {
  std::string_view host = text;
  std::optional<std::string_view> port_text;
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) return bad_endpoint(text, "']' is missing");
    host = text.substr(1, end - 1);
    const auto rest = text.substr(end + 1);
    if (host.find(':') == std::string_view::npos)
      return bad_endpoint(text, "brackets are for IPv6");
    if (!rest.empty() && rest.front() != ':') return bad_endpoint(text, "':port' must follow ']'");
    if (!rest.empty()) port_text = rest.substr(1);
  } else if (const auto colon = text.find(':'); colon != std::string_view::npos) {
    if (text.find(':', colon + 1) != std::string_view::npos)
      return bad_endpoint(text, "an IPv6 address needs brackets, [2001:db8::1]:port");
    host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
  }
  if (!valid_host(host))
    return bad_endpoint(text, "the host is empty, too long or has odd characters");
  const auto port = port_text ? parse_port(*port_text) : default_port;
  if (!port) return bad_endpoint(text, "the port must be a number from 0 to 65535");
  return Endpoint{usual_form(host), *port};
}

Result<DialTarget> parse_dial_target(std::string_view text,
                                     std::optional<std::uint16_t> default_port) {
  DialTarget target;
  auto address = text;
  if (const auto at = text.find('@'); at != std::string_view::npos) {
    target.pin = NodeId::from_hex(text.substr(0, at));
    if (!target.pin)
      return bad_endpoint(text, "before '@' stands a node id of 64 hexadecimal digits");
    address = text.substr(at + 1);
  }
  TRY(target.endpoint, parse_endpoint(address, default_port));
  if (target.endpoint.port == 0) return bad_endpoint(text, "port 0 cannot be dialled");
  return target;
}

}  // namespace starling::transport
