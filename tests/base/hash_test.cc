#include "node/base/hash.h"

#include <doctest/doctest.h>

using namespace starling;

TEST_SUITE("base/hash") {
  // b2sum -l 256 of "abc"; the same value is in the appendix of several BLAKE2 implementations.
  TEST_CASE("the hash is BLAKE2b with 32 bytes of output") {
    CHECK(to_hex(hash_of(as_bytes("abc")).view()) ==
          "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  }

  TEST_CASE("pieces hash like the whole") {
    CHECK(Hasher{}.add("ab").add("c").finish() == hash_of(as_bytes("abc")));
  }

  // RFC 8439, section 2.5.2.
  TEST_CASE("the checksum is Poly1305") {
    const auto key =
        Hash::from(*from_hex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b"));
    REQUIRE(key);
    const Checksum sum = checksum_of(*key, as_bytes("Cryptographic Forum Research Group"));

    CHECK(to_hex(sum) == "a8061dc1305136c6c22b8baf0c0127a9");
  }

  TEST_CASE("a checksum is of the bytes, their number and the key") {
    const Hash key = hash_of(as_bytes("key"));
    const Bytes zeros(100);
    const ByteView view(zeros);

    CHECK(checksum_of(key, view) != checksum_of(key, view.first(99)));
    CHECK(checksum_of(key, view.first(16)) != checksum_of(key, view.first(32)));
    CHECK(checksum_of(key, view) != checksum_of(hash_of(as_bytes("other")), view));
  }

  TEST_CASE("a copied hasher goes its own way") {
    Hasher first;
    first.add("a");
    Hasher second = first;

    second.add("bc");
    first.add("x");

    CHECK(second.finish() == hash_of(as_bytes("abc")));
    CHECK(first.finish() == hash_of(as_bytes("ax")));
  }
}
