#include "transport/invite.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

namespace starling::transport {
namespace {

Invite some_invite() {
  Invite invite;
  invite.swarm.bytes.fill(std::byte{7});
  invite.issuer = {{"192.0.2.1", 7700}, {"2001:db8::1", 7700}, {"host.example", 1}};
  invite.key.fill(std::byte{9});
  invite.expires_s = 1'800'000'000;
  return invite;
}

TEST_SUITE("transport/invite") {
  TEST_CASE("an invite survives its text, in either case and with blanks around it") {
    const auto invite = some_invite();
    const auto text = print_invite(invite);
    CHECK(text.starts_with("starling1:"));
    CHECK(parse_invite(text).value() == invite);
    CHECK(parse_invite("  " + text + "\r\n").value() == invite);
    auto upper = text;
    std::ranges::transform(upper.begin() + 10, upper.end(), upper.begin() + 10,
                           [](char c) { return static_cast<char>(std::toupper(c)); });
    CHECK(parse_invite(upper).value() == invite);
    CHECK(print_invite(parse_invite(text).value()) == text);
  }

  TEST_CASE("the text of a fixed invite never changes") {
    Invite invite;
    invite.issuer = {{"127.0.0.1", 7700}};
    CHECK(print_invite(invite) ==
          "starling1:aeaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaijgezdolrqfyyc4miudzmpc45g");
  }

  TEST_CASE("an invite with anything missing, added or changed is refused, and never repeated") {
    const auto text = print_invite(some_invite());
    for (std::size_t size = 0; size < text.size(); ++size) {
      CAPTURE(size);
      CHECK_FALSE(parse_invite(text.substr(0, size)));
    }
    CHECK_FALSE(parse_invite(text + "a"));
    for (std::size_t at = 10; at < text.size(); ++at) {
      CAPTURE(at);
      auto changed = text;
      changed[at] = changed[at] == 'a' ? 'b' : 'a';
      const auto refused = parse_invite(changed);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().detail.find(changed.substr(20, 20)) == std::string::npos);
    }
    for (const auto* wrong : {"", "starling1:", "starling2:abc", "starling1:0189", "hello"})
      CHECK(parse_invite(wrong).error().code == Errc::bad_argument);
    CHECK_FALSE(parse_invite("starling1:" + std::string(2'000, 'a')));
  }

  TEST_CASE("the greatest invite fits its bound") {
    Invite invite;
    invite.issuer.assign(limits::kMaxAdvertised,
                         {std::string(limits::kMaxAdvertisedHost, 'h'), 65'535});
    const auto text = print_invite(invite);
    CHECK(text.size() <= kMaxInviteText);
    CHECK(parse_invite(text).value() == invite);
  }

  TEST_CASE("keys of invites differ, and so do their ids") {
    std::set<KeyId> ids;
    for (int i = 0; i < 20; ++i) ids.insert(id_of_key(make_invite_key()));
    CHECK(ids.size() == 20);
  }
}

}  // namespace
}  // namespace starling::transport
