#include "transport/endpoint.h"

#include <doctest/doctest.h>

#include <string>

namespace starling::transport {
namespace {

TEST_SUITE("transport/endpoint") {
  TEST_CASE("addresses are read as they are written") {
    for (const auto* text : {"example.org:7411", "10.0.0.1:1", "[2001:db8::1]:65535", "[::]:0"}) {
      CAPTURE(text);
      CHECK(to_string(parse_endpoint(text).value()) == text);
    }
    CHECK(parse_endpoint("host", 7411).value() == Endpoint{"host", 7411});
    CHECK(parse_endpoint("[::1]", 7411).value() == Endpoint{"::1", 7411});
  }

  TEST_CASE("an IPv6 address in another spelling is the one that answers") {
    CHECK(parse_endpoint("[2001:DB8:0:0::1]:7411").value() == Endpoint{"2001:db8::1", 7411});
    CHECK(parse_dial_target("[0:0:0:0:0:0:0:1]:7").value().endpoint == Endpoint{"::1", 7});
    CHECK(parse_endpoint("[::ffff:10.0.0.1]:7411").value() == Endpoint{"10.0.0.1", 7411});
  }

  TEST_CASE("texts that are no address are refused") {
    for (const auto* text :
         {"", ":1", "host", "host:", "host:x", "host:65536", "host:-1", "host:1 ", "a b:1", "::1:5",
          "[::1", "[::1]x", "[::1]:", "[host]:1", "a@b:1", "[]:1", "a/b:1"}) {
      CAPTURE(text);
      const auto parsed = parse_endpoint(text);
      REQUIRE_FALSE(parsed);
      CHECK(parsed.error().code == Errc::bad_argument);
    }
    CHECK_FALSE(parse_endpoint(std::string(254, 'h') + ":1"));
  }

  TEST_CASE("an id before the address pins it") {
    const std::string id(64, 'a');
    const auto target = parse_dial_target(id + "@host:7").value();
    REQUIRE(target.pin);
    CHECK(to_hex(target.pin->view()) == id);
    CHECK(target.endpoint == Endpoint{"host", 7});
    CHECK_FALSE(parse_dial_target("host:7").value().pin);
    CHECK_FALSE(parse_dial_target("abc@host:7"));
    CHECK_FALSE(parse_dial_target(std::string(64, 'z') + "@host:7"));
    CHECK_FALSE(parse_dial_target("host:0"));
  }
}

}  // namespace
}  // namespace starling::transport
