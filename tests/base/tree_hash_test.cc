#include "node/base/tree_hash.h"

#include "node/base/hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>

using namespace starling;

namespace {

constexpr std::size_t kLeaf = TreeHash::kLeaf;

Bytes some_bytes(std::uint64_t size) {
  Bytes bytes;
  bytes.reserve(size);
  for (std::uint64_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(i * i / 7 + i));
  return bytes;
}

// The rule in the header, one leaf after the other by libsodium.
Hash one_by_one(ByteView bytes) {
  Hasher hasher;
  hasher.add("starling/tree/1").add(std::uint64_t{bytes.size()});
  for (std::size_t at = 0; at < bytes.size(); at += kLeaf)
    hasher.add(hash_of(bytes.subspan(at, std::min(kLeaf, bytes.size() - at))).view());
  return hasher.finish();
}

}  // namespace

TEST_SUITE("base/tree_hash") {
  // From tree_hash_vectors.py.
  TEST_CASE("the tree hash is what Python's BLAKE2b makes of the rule") {
    const Bytes bytes = some_bytes(300'000);
    const auto hex = [&](std::size_t size) {
      return to_hex(tree_hash_of(ByteView(bytes).first(size)).view());
    };

    CHECK(hex(0) == "83e53dbafe9ffb88c5b58ad7f87ecb8ec858de431009bd4bfd5fc66cfc3b9c7f");
    CHECK(hex(1) == "44f794d137f06f8ba3115002fb3c5fd5a92316d98e0ac4d3086d6ff2ea0b20fa");
    CHECK(hex(16'384) == "df16b5081d3a116bfbd20bd2b7f82f479a624b3fe1b599fe92d886005322f6ae");
    CHECK(hex(16'385) == "ce443909438a66f0bf2708c60abc447ebb6e480803bc0f7f0e7b82e6c77c7060");
    CHECK(hex(300'000) == "0b9856944e331fb0c819bcacf5cc0ec7f7bc319e917794588bf954ebc7026dcc");
  }

  TEST_CASE("leaves side by side have the hashes of libsodium, however many lanes are in use") {
    const Bytes bytes = some_bytes(18 * kLeaf);
    for (std::size_t leaves = 0; leaves <= 17; ++leaves) {
      for (const std::size_t rest : {std::size_t{0}, std::size_t{127}, kLeaf - 1}) {
        CAPTURE(leaves);
        CAPTURE(rest);
        // One byte further on: nothing is aligned.
        const ByteView view = ByteView(bytes).subspan(1, leaves * kLeaf + rest);
        CHECK(tree_hash_of(view) == one_by_one(view));
      }
    }
  }

  TEST_CASE("every leaf and the length count") {
    Bytes bytes = some_bytes(9 * kLeaf + 100);
    std::set<Hash> hashes{tree_hash_of(bytes), tree_hash_of(ByteView(bytes).first(9 * kLeaf + 99))};
    for (std::size_t leaf = 0; leaf < 10; ++leaf) {
      bytes[leaf * kLeaf + 99] ^= std::byte{1};
      hashes.insert(tree_hash_of(bytes));
      bytes[leaf * kLeaf + 99] ^= std::byte{1};
    }
    CHECK(hashes.size() == 12);
  }

  TEST_CASE("parts may be hashed in any order") {
    const Bytes bytes = some_bytes(30 * kLeaf + 1);
    TreeHash tree(bytes);
    REQUIRE(tree.parts() == 4);
    for (std::size_t part = tree.parts(); part > 0; --part) tree.hash_part(part - 1);

    CHECK(tree.root() == tree_hash_of(bytes));
  }
}
