#include "node/base/ids.h"

#include <doctest/doctest.h>

using namespace starling;

TEST_SUITE("base/ids") {
  TEST_CASE("an edge has the same ends from both sides") {
    NodeId a;
    NodeId b;
    a.bytes[0] = std::byte{200};
    b.bytes[0] = std::byte{100};

    CHECK(EdgeEnds::of(a, b) == EdgeEnds::of(b, a));
    CHECK(EdgeEnds::of(a, b).lower == b);
  }

  TEST_CASE("an id has exactly 32 bytes") {
    CHECK(NodeId::from(Bytes(32)).has_value());
    CHECK_FALSE(NodeId::from(Bytes(31)).has_value());
    CHECK_FALSE(NodeId::from(Bytes(33)).has_value());
  }

  TEST_CASE("an id is written as 64 hexadecimal digits") {
    NodeId id;
    id.bytes[0] = std::byte{0xab};
    const std::string text = to_hex(id.view());

    CHECK(NodeId::from_hex(text) == id);
    CHECK(NodeId::from_hex("AB" + text.substr(2)) == id);
    CHECK_FALSE(NodeId::from_hex(text.substr(2)).has_value());
    CHECK_FALSE(NodeId::from_hex(text + "00").has_value());
    CHECK_FALSE(NodeId::from_hex("x" + text.substr(1)).has_value());
  }

  TEST_CASE("a name has two words and follows from the key") {
    NodeId id;
    id.bytes[30] = std::byte{37};
    id.bytes[31] = std::byte{47};

    CHECK(default_name(id) == "mossy-otter");
    CHECK(short_form(id) == "00000000");
  }
}
