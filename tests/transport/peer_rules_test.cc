#include "transport/peer_rules.h"

#include <doctest/doctest.h>

#include <string>

namespace starling::transport {
namespace {

NodeId node(unsigned char number) {
  NodeId id;
  id.bytes.fill(std::byte{number});
  return id;
}

std::string line_of(const NodeId& id) { return to_hex(id.view()); }

TEST_SUITE("transport/peer_rules") {
  TEST_CASE("without lists everybody may have a session") {
    CHECK_FALSE(PeerRules{}.refusal(node(1)));
  }

  TEST_CASE("a list of allowed nodes shuts out all others, an empty one everybody") {
    PeerRules rules;
    rules.allowed.emplace().insert(node(1));
    CHECK_FALSE(rules.refusal(node(1)));
    REQUIRE(rules.refusal(node(2)));
    CHECK(rules.refusal(node(2))->code == Errc::refused);
    CHECK(rules.refusal(node(2))->detail.find("02020202") != std::string::npos);
    rules.allowed->clear();
    CHECK(rules.refusal(node(1)));
  }

  TEST_CASE("a denied node stays out although it is allowed") {
    PeerRules rules;
    rules.allowed.emplace().insert(node(1));
    rules.denied.insert(node(1));
    CHECK(rules.refusal(node(1)));
  }

  TEST_CASE("a list has one id a line, with comments, blank lines and line ends of any kind") {
    const auto text = "# who may join\n\n" + line_of(node(1)) + " mossy-otter, rack 3\r\n\t" +
                      line_of(node(2)) + "\n   \n" + line_of(node(1)) + "\n" + line_of(node(3));
    CHECK(parse_peer_list(text).value() == std::set{node(1), node(2), node(3)});
    CHECK(parse_peer_list("").value().empty());
  }

  TEST_CASE("a line that is no id is named with its number, its value and what would be right") {
    const auto good = line_of(node(1));
    for (const auto& wrong : {std::string("mossy-otter"), good.substr(1), good + "0",
                              "g" + good.substr(1), good + "#comment"}) {
      CAPTURE(wrong);
      const auto parsed = parse_peer_list(good + "\n" + wrong + "\n");
      REQUIRE_FALSE(parsed);
      CHECK(parsed.error().code == Errc::bad_config);
      CHECK(parsed.error().detail.find("line 2") != std::string::npos);
      CHECK(parsed.error().detail.find(wrong.substr(0, 64)) != std::string::npos);
      CHECK(parsed.error().detail.find("64 hexadecimal") != std::string::npos);
    }
    const auto escape = parse_peer_list("\x1b[2J\n");
    REQUIRE_FALSE(escape);
    CHECK(escape.error().detail.find('\x1b') == std::string::npos);
  }

  TEST_CASE("a list is bounded in bytes and ids") {
    CHECK(parse_peer_list(std::string(kMaxPeerListBytes + 1, '\n')).error().code ==
          Errc::too_large);
    std::string many;
    for (std::size_t i = 0; i <= kMaxListedPeers; ++i) {
      NodeId id;
      id.bytes[0] = static_cast<std::byte>(i & 0xffU);
      id.bytes[1] = static_cast<std::byte>(i >> 8);
      many += line_of(id) + '\n';
    }
    CHECK(parse_peer_list(many).error().code == Errc::too_many);
  }
}

}  // namespace
}  // namespace starling::transport
