#include "gossip/consensus/packing.h"

#include "node/base/random.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

namespace starling::gossip::consensus {
namespace {

constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();

std::vector<std::int64_t> random_integers(std::size_t count, unsigned bits) {
  Rng rng(bits * 1000 + count);
  std::vector<std::int64_t> values(count);
  for (auto& value : values) value = static_cast<std::int64_t>(rng()) >> (64 - bits);
  return values;
}

// Both ways where the processor has both.
std::vector<bool> ways() {
  return has_wide_packing() ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

// What the header says, bit by bit.
Bytes packed_by_bits(const std::vector<std::int64_t>& values, unsigned bits) {
  Bytes bytes(packed_bytes(values.size(), bits));
  for (std::size_t place = 0; place < values.size() * bits; ++place) {
    const auto raw = static_cast<std::uint64_t>(values[place / bits]);
    if ((raw >> place % bits & 1) != 0) bytes[place / 8] |= std::byte{1} << place % 8;
  }
  return bytes;
}

}  // namespace

TEST_SUITE("gossip/consensus/packing") {
  TEST_CASE("packing and adding comes back for every width and length") {
    for (unsigned bits = 1; bits <= 64; ++bits)
      for (std::size_t count : {0U, 1U, 2U, 7U, 8U, 9U, 33U, 200U, 2051U}) {
        CAPTURE(bits);
        CAPTURE(count);
        const auto values = random_integers(count, bits);
        const Bytes expected = packed_by_bits(values, bits);
        CHECK(pack(values, bits) == expected);
        for (const bool wide : ways()) {
          CAPTURE(wide);
          Bytes packed;
          append_packed(values, bits, packed, wide);
          CHECK(packed == expected);
          std::vector<std::int64_t> sum(count, 5);
          // The lowest 64-bit value has no magnitude and is refused; everything else passes.
          CHECK(add_packed(packed, bits, up_to_magnitude(kLargest), sum, wide).has_value());
          for (auto& value : sum) value -= 5;
          CHECK(sum == values);
        }
      }
  }

  TEST_CASE("packed sums of a wrong size or with filling are refused") {
    auto packed = pack(std::vector<std::int64_t>{1, -2, 3}, 31);
    std::vector<std::int64_t> sum(3);
    CHECK_FALSE(add_packed(ByteView(packed).first(packed.size() - 1), 31, up_to_magnitude(100), sum)
                    .has_value());
    CHECK_FALSE(add_packed(packed, 33, up_to_magnitude(100), sum).has_value());
    packed.back() |= std::byte{0x80};
    CHECK_FALSE(add_packed(packed, 31, up_to_magnitude(100), sum).has_value());
  }

  TEST_CASE("below zero is refused where nothing below belongs") {
    std::vector<std::int64_t> sum(21);
    for (std::size_t place = 0; place < sum.size(); ++place)
      for (const bool wide : ways()) {
        CAPTURE(place);
        CAPTURE(wide);
        const PackedRange range{.least = 0, .most = 100};
        std::vector<std::int64_t> values(sum.size(), 100);
        CHECK(add_packed(pack(values, 28), 28, range, sum, wide).has_value());
        values[place] = -1;
        CHECK_FALSE(add_packed(pack(values, 28), 28, range, sum, wide).has_value());
      }
  }

  TEST_CASE("an integer above its bound is refused wherever it stands, and named") {
    std::vector<std::int64_t> sum(21);
    for (const std::int64_t wrong : {101, -101})
      for (std::size_t place = 0; place < sum.size(); ++place)
        for (const bool wide : ways()) {
          CAPTURE(place);
          CAPTURE(wide);
          std::vector<std::int64_t> values(sum.size(), -100);
          CHECK(add_packed(pack(values, 28), 28, up_to_magnitude(100), sum, wide).has_value());
          values[place] = wrong;
          const auto added = add_packed(pack(values, 28), 28, up_to_magnitude(100), sum, wide);
          REQUIRE_FALSE(added.has_value());
          CHECK(added.error().detail.contains(std::to_string(wrong) + " where -100 to 100"));
        }
    const std::vector<std::int64_t> lowest{std::numeric_limits<std::int64_t>::min()};
    std::vector<std::int64_t> one(1);
    CHECK_FALSE(add_packed(pack(lowest, 64), 64, up_to_magnitude(kLargest), one).has_value());
  }
}

}  // namespace starling::gossip::consensus
