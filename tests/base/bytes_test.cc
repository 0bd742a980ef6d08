#include "node/base/bytes.h"

#include <doctest/doctest.h>

using namespace starling;

TEST_SUITE("base/bytes") {
  TEST_CASE("hexadecimal text and bytes are each other's inverse") {
    Bytes bytes;
    for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<std::byte>(i));

    CHECK(from_hex(to_hex(bytes)) == bytes);
  }

  TEST_CASE("text that is not hexadecimal has no bytes") {
    CHECK_FALSE(from_hex("abc").has_value());
    CHECK_FALSE(from_hex("zz").has_value());
    CHECK(from_hex("")->empty());
  }

  TEST_CASE("numbers are read back as they were written") {
    Bytes bytes;
    ByteWriter writer(bytes);
    writer.write<std::uint16_t>(513);
    writer.write(1.5F);

    ByteReader reader(bytes);

    CHECK(reader.read<std::uint16_t>() == 513);
    CHECK(reader.read<float>() == 1.5F);
    CHECK(reader.left() == 0);
  }

  TEST_CASE("a read past the end fails, and so does every read after it") {
    const Bytes bytes(3);
    ByteReader reader(bytes);

    CHECK_FALSE(reader.read<std::uint32_t>().has_value());
    CHECK_FALSE(reader.read<std::uint8_t>().has_value());
    CHECK(reader.failed());
  }
}
