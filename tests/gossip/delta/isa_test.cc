#include "gossip/delta/isa.h"

#include "gossip/delta/bits.h"
#include "gossip/delta/codec.h"
#include "gossip/delta/exchange.h"
#include "gossip/delta/kernels.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

namespace starling::gossip {

using testing::kLevels;
using testing::kShapes;
using testing::same_bits;
using testing::Shape;
using testing::uneven_layout;
using testing::values;

namespace {

// The paths that this machine can compare with the scalar one.
std::vector<Isa> other_paths() {
  std::vector<Isa> paths;
  for (const Isa isa : {Isa::avx2, Isa::avx512})
    if (is_available(isa)) paths.push_back(isa);
  if (paths.empty()) MESSAGE("only the scalar path runs here, nothing is compared");
  return paths;
}

}  // namespace

TEST_SUITE("gossip/delta/isa") {
  TEST_CASE("what Linux calls an Intel is one that reads pages ahead") {
    std::ifstream file("/proc/cpuinfo");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    CHECK(reads_pages_ahead() == (text.find("GenuineIntel") != std::string::npos));
  }

  TEST_CASE("names of paths are read back, other names are not") {
    for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
      CHECK(parse_isa(name_of(isa)) == isa);
    CHECK_FALSE(parse_isa("neon"));
    CHECK_FALSE(parse_isa(""));
    CHECK(is_available(detected_isa()));
    CHECK(is_available(Isa::scalar));
  }

  TEST_CASE("all paths make the same bytes, figures and thresholds from the same input") {
    const Layout layout = uneven_layout();
    for (const Isa isa : other_paths()) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        for (const Shape shape : kShapes) {
          for (const Level level : kLevels) {
            CAPTURE(name_of(isa));
            CAPTURE(seed);
            CAPTURE(static_cast<int>(shape));
            CAPTURE(name_of(level));
            Rng rng(seed * 1'000 + static_cast<std::uint64_t>(shape));
            const auto r = values(layout, seed % 2 == 0 ? Shape::zeros : Shape::gaussian, rng);
            Carry carry;
            Carry other_carry;
            for (int message = 0; message < 3; ++message) {
              const auto x = values(layout, shape, rng);

              const auto expected =
                  encode(layout, {x, r}, {.level = level, .isa = Isa::scalar}, carry);
              const auto encoded =
                  encode(layout, {x, r}, {.level = level, .isa = isa}, other_carry);

              REQUIRE(expected.has_value());
              REQUIRE(encoded.has_value());
              CHECK(encoded->bytes == expected->bytes);
              CHECK(encoded->figures.sent_energy == expected->figures.sent_energy);
              CHECK(encoded->figures.difference_energy == expected->figures.difference_energy);
              CHECK(encoded->figures.unsent_share == expected->figures.unsent_share);
              CHECK(same_bits(other_carry.thresholds, carry.thresholds));
            }
          }
        }
      }
    }
  }

  TEST_CASE("all paths decode and apply the same bytes to the same bits") {
    const Layout layout = uneven_layout();
    for (const Isa isa : other_paths()) {
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        CAPTURE(name_of(isa));
        CAPTURE(seed);
        Rng rng(seed);
        const Level own_level = kLevels[rng.below(7)];
        const Level their_level = kLevels[rng.below(7)];
        const auto x = values(layout, Shape::mixed, rng);
        const auto y = values(layout, kShapes[rng.below(8)], rng);
        Carry carry;
        Carry their_carry;
        const auto own = encode(layout, {x, {}}, {.level = own_level}, carry);
        const auto theirs = encode(layout, {y, {}}, {.level = their_level}, their_carry);
        REQUIRE(own.has_value());
        REQUIRE(theirs.has_value());
        const auto own_view = parse_delta(layout, own_level, own->bytes);
        const auto their_view = parse_delta(layout, their_level, theirs->bytes);
        REQUIRE(own_view.has_value());
        REQUIRE(their_view.has_value());
        const DeltaPair pair{*own_view, *their_view, rng.chance(0.5) ? Side::lower : Side::higher};
        const auto reference = values(layout, Shape::gaussian, rng);

        auto x_a = x;
        auto r_a = reference;
        auto x_b = x;
        auto r_b = reference;
        const double norm = apply_exchange(pair, 0.375F, {x_a, r_a}, Isa::scalar);

        CHECK(apply_exchange(pair, 0.375F, {x_b, r_b}, isa) == norm);
        CHECK(difference_norm(pair, isa) == norm);
        CHECK(difference_norm(pair, Isa::scalar) == norm);
        CHECK(same_bits(x_a, x_b));
        CHECK(same_bits(r_a, r_b));
      }
    }
  }

  TEST_CASE("the k-th largest magnitude is that of a sort, in all paths") {
    Rng rng(31);
    for (const Shape shape : kShapes) {
      const auto x = values(uneven_layout(), shape, rng);
      for (const std::size_t n : {std::size_t{16}, std::size_t{272}, kBlock}) {
        std::vector<std::uint32_t> sorted(n);
        std::transform(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n), sorted.begin(),
                       abs_bits);
        std::ranges::sort(sorted, std::greater<>());
        for (const std::size_t k : {std::size_t{1}, std::size_t{2}, n / 2, n - 1, n}) {
          CAPTURE(static_cast<int>(shape));
          CAPTURE(n);
          CAPTURE(k);
          const auto rank = static_cast<std::uint32_t>(k);
          CHECK(scalar_kernels().kth_largest(x.data(), n, rank) == sorted[k - 1]);
          for (const Isa isa : other_paths())
            CHECK(kernels_of(isa).kth_largest(x.data(), n, rank) == sorted[k - 1]);
        }
      }
    }
  }

  TEST_CASE("all paths see the same forbidden codes") {
    for (const Isa isa : other_paths()) {
      const Kernels& kernels = kernels_of(isa);
      for (std::size_t at = 0; at < 64; ++at) {
        std::array<std::uint8_t, 64> codes{};
        codes[at] = 0x80;

        CHECK(kernels.has_forbidden8(codes.data(), 64));
        CHECK(kernels.has_forbidden4(codes.data(), 128));
        codes[at] = 0x08;
        CHECK_FALSE(kernels.has_forbidden8(codes.data(), 64));
        CHECK(kernels.has_forbidden4(codes.data(), 128));
        codes[at] = 0x7f;
        CHECK_FALSE(kernels.has_forbidden8(codes.data(), 64));
        CHECK_FALSE(kernels.has_forbidden4(codes.data(), 128));
      }
    }
  }
}

}  // namespace starling::gossip
