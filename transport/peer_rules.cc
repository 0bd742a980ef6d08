#include "transport/peer_rules.h"

#include <algorithm>
#include <string>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// What a person typed, cut and without anything that a terminal would obey.
std::string shown(std::string_view text) {
  std::string safe(text.substr(0, 80));
  std::ranges::replace_if(safe, [](char c) { return c < 32 || c > 126; }, '?');
  return safe;
}

Error refused(const NodeId& peer, std::string_view why) {
  return {Errc::refused, Doing::handshaking, "node " + short_form(peer) + std::string(why)};
}

}  // namespace

std::optional<Error> PeerRules::refusal(const NodeId& peer, const Credentials& with) const {
  if (denied.contains(peer)) return refused(peer, " is on the list of denied nodes");
  if (admin)
    if (const auto fault = admin->revoked.fault_in(peer, with.certificate))
      return refused(peer, " " + *fault);
  if (!allowed && !admin) return std::nullopt;
  if (allowed && allowed->contains(peer)) return std::nullopt;
  if (!admin) return refused(peer, " is not on the list of allowed nodes");
  if (with.invited) return std::nullopt;
  if (with.certificate == nullptr) return refused(peer, " shows no certificate");
  if (const auto fault = fault_in(*with.certificate, admin->admin, admin->swarm, with.now_s))
    return refused(peer, ": its certificate " + *fault);
  return std::nullopt;
}

Result<std::set<NodeId>> parse_peer_list(std::string_view text) {
  if (text.size() > kMaxPeerListBytes)
    return fail(Errc::too_large, Doing::reading_config,
                "a list of nodes has more than " + std::to_string(kMaxPeerListBytes) + " bytes");
  std::set<NodeId> ids;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    auto line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty() || line.front() == '#') continue;
    const auto word = line.substr(0, line.find_first_of(kBlanks));
    const auto id = NodeId::from_hex(word);
    if (!id)
      return fail(Errc::bad_config, Doing::reading_config,
                  "line " + std::to_string(number) + ": \"" + shown(word) +
                      "\" is no node id: write the 64 hexadecimal digits that `starling id` prints "
                      "there, or begin a comment with #");
    ids.insert(*id);
    if (ids.size() > kMaxListedPeers)
      return fail(Errc::too_many, Doing::reading_config,
                  "line " + std::to_string(number) + ": more than " +
                      std::to_string(kMaxListedPeers) + " nodes");
  }
  return ids;
}

}  // namespace starling::transport
