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
