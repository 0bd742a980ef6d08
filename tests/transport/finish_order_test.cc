#include "transport/finish_order.h"

#include "node/base/hash.h"
#include "tests/transport/certificates.h"

#include <doctest/doctest.h>

#include <string>

namespace starling::transport {
namespace {

const Hash kSettings = starling::hash_of(as_bytes("settings"));

std::string why_not(std::string_view text) {
  const auto order = parse_finish_order(text);
  return order ? std::string() : order.error().detail;
}

}  // namespace

TEST_SUITE("transport/finish_order") {
  TEST_CASE("an order is one line of text, and says of which run it is and whose") {
    const Admin admin;
    const auto order = order_finish(admin.swarm, kSettings, admin.key);
    const auto text = print_finish_order(order);

    CHECK(text.ends_with('\n'));
    CHECK(text.find('\n') == text.size() - 1);
    CHECK(text.size() < kMaxFinishOrderText);
    CHECK(parse_finish_order(text).value() == order);
    CHECK(parse_finish_order(text.substr(0, text.size() - 1)).value() == order);
    CHECK(signed_by(admin.key.id(), order));
    CHECK_FALSE(signed_by(identity_of(1).id(), order));
    // Nobody's key: what a node checks with that does not know its admin.
    CHECK_FALSE(signed_by(NodeId{}, order));
    CHECK_FALSE(signed_by(admin.key.id(), {SwarmId{}, order.settings, order.signature}));
    CHECK_FALSE(signed_by(admin.key.id(), {order.swarm, Hash{}, order.signature}));
  }

  TEST_CASE("every character of an order counts") {
    const Admin admin;
    const auto text = print_finish_order(order_finish(admin.swarm, kSettings, admin.key));
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      CAPTURE(i);
      auto changed = text;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      const auto other = parse_finish_order(changed);
      CHECK((!other || !signed_by(admin.key.id(), *other)));
      CHECK_FALSE(parse_finish_order(text.substr(0, i)).has_value());
    }
  }

  TEST_CASE("what is no order is refused with what it is, and its length bounds what is read") {
    const Admin admin;
    const auto text = print_finish_order(order_finish(admin.swarm, kSettings, admin.key));
    CHECK(why_not("").starts_with("this is no order to finish"));
    CHECK(why_not("starling-revoked AAAA").starts_with("this is no order to finish"));
    CHECK(why_not("starling-finish ***").starts_with("the order to finish is no base64"));
    CHECK(why_not("starling-finish AAAA").starts_with("the order to finish has 3 bytes"));
    CHECK(why_not(text + text).find("at most 256") != std::string::npos);
    auto version = text;
    version[16] = 'B';
    CHECK(why_not(version).starts_with("the order to finish has a version other than 1"));
  }

  // Reproduced without our code by certificate_vectors.py.
  TEST_CASE("what is signed for an order never changes") {
    const Admin admin;
    const auto text = print_finish_order(order_finish(admin.swarm, kSettings, admin.key));
    CHECK(to_hex(starling::hash_of(as_bytes(text)).view()) ==
          "53b0d2be9f40a39c1d72e2094302b569c964f51121040945f3a9f6f535accbb8");
  }
}

}  // namespace starling::transport
