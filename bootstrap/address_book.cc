#include "bootstrap/address_book.h"

#include "gossip/membership/network.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace starling::bootstrap {
namespace {

// Reads exactly the JSON that to_text() writes, white space aside: objects of known keys, strings
// without escapes. Whatever else stands in the file was not written by us.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<std::string> string() {
    if (!take('"')) return std::nullopt;
    const auto begin = at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_];
      if (c < ' ' || c > '~' || c == '\\') return std::nullopt;
      ++at_;
    }
    if (at_ >= text_.size()) return std::nullopt;
    return std::string(text_.substr(begin, at_++ - begin));
  }

  bool key(std::string_view name) { return string() == name && take(':'); }

  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  [[nodiscard]] std::size_t at() const { return at_; }

 private:
  void skip_space() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::optional<KnownPeer> read_peer(Reader& reader) {
  if (!reader.take('{') || !reader.key("address")) return std::nullopt;
  const auto address = reader.string();
  if (!address || !reader.take(',') || !reader.key("id")) return std::nullopt;
  const auto id_text = reader.string();
  if (!id_text || !reader.take('}')) return std::nullopt;
  const auto endpoint = transport::parse_endpoint(*address);
  const auto id = NodeId::from_hex(*id_text);
  if (!endpoint || endpoint->port == 0 || !id) return std::nullopt;
  // Hosts with quotes would not survive another round.
  if (endpoint->host.find_first_of("\"\\") != std::string::npos) return std::nullopt;
  return KnownPeer{*id, *endpoint};
}

}  // namespace

void AddressBook::on_worked(const NodeId& id, const transport::Endpoint& endpoint) {
  if (endpoint.host.find_first_of("\"\\") != std::string::npos) return;
  forget(endpoint);
  peers_.insert(peers_.begin(), KnownPeer{id, endpoint});
  const auto network = gossip::network_of(endpoint.host);
  std::size_t of_this_peer = 0;
  std::size_t of_this_network = 0;
  std::erase_if(peers_, [&](const KnownPeer& peer) {
    const bool near = network && gossip::network_of(peer.endpoint.host) == network;
    return (peer.id == id && ++of_this_peer > kMaxPerPeer) ||
           (near && ++of_this_network > kMaxPerNetwork);
  });
  if (peers_.size() > kMaxPeers) peers_.resize(kMaxPeers);
}

bool AddressBook::on_told(const NodeId& id, const transport::Endpoint& endpoint) {
  if (endpoint.host.find_first_of("\"\\") != std::string::npos || peers_.size() >= kMaxPeers)
    return false;
  const auto network = gossip::network_of(endpoint.host);
  std::size_t of_this_peer = 0;
  std::size_t of_this_network = 0;
  for (const KnownPeer& peer : peers_) {
    if (peer.endpoint == endpoint) return false;
    if (peer.id == id) ++of_this_peer;
    if (network && gossip::network_of(peer.endpoint.host) == network) ++of_this_network;
  }
  if (of_this_peer >= kMaxPerPeer || of_this_network >= kMaxPerNetwork) return false;
  peers_.push_back({id, endpoint});
  return true;
}

bool AddressBook::on_told(const gossip::MemberRecord& record) {
  bool changed = false;
  for (const auto& address : record.addresses)
    if (const auto endpoint = transport::parse_endpoint(address); endpoint && endpoint->port != 0)
      changed = on_told(record.id, *endpoint) || changed;
  return changed;
}

void AddressBook::forget(const transport::Endpoint& endpoint) {
  std::erase_if(peers_, [&](const KnownPeer& peer) { return peer.endpoint == endpoint; });
}

std::string AddressBook::to_text() const {
  std::string text = "{\"version\": \"1\", \"peers\": [";
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += "  {\"address\": \"" + to_string(peers_[i].endpoint) + "\", \"id\": \"" +
            to_hex(peers_[i].id.view()) + "\"}";
  }
  return text + "\n]}\n";
}

Result<AddressBook> AddressBook::parse(std::string_view text) {
  if (text.size() > kMaxText)
    return fail(Errc::too_large, Doing::reading_file,
                "an address book of " + std::to_string(text.size()) + " bytes");
  Reader reader(text);
  const auto corrupt = [&] {
    return fail(Errc::corrupt, Doing::reading_file,
                "the address book makes no sense at byte " + std::to_string(reader.at()));
  };
  AddressBook book;
  if (!reader.take('{') || !reader.key("version") || reader.string() != "1" || !reader.take(',') ||
      !reader.key("peers") || !reader.take('['))
    return corrupt();
  bool more = !reader.take(']');
  while (more) {
    const auto peer = read_peer(reader);
    if (!peer || book.peers_.size() >= kMaxPeers) return corrupt();
    book.peers_.push_back(*peer);
    more = reader.take(',');
    if (!more && !reader.take(']')) return corrupt();
  }
  if (!reader.take('}') || !reader.at_end()) return corrupt();
  return book;
}

}  // namespace starling::bootstrap
