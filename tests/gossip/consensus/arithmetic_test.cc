#include "gossip/consensus/arithmetic.h"

#include "gossip/consensus/jobs.h"
#include "gossip/consensus/packing.h"
#include "node/base/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

namespace starling::gossip::consensus {
namespace {

std::vector<float> random_values(Rng& rng, std::size_t count) {
  std::vector<float> values(count);
  for (auto& value : values) {
    // Any finite bits, denormals and both zeros among them.
    do {
      value = std::bit_cast<float>(static_cast<std::uint32_t>(rng()));
    } while (!std::isfinite(value));
  }
  return values;
}

}  // namespace

TEST_SUITE("gossip/consensus/arithmetic") {
  TEST_CASE("the exponent of a block is the one that frexp gives its largest value") {
    CHECK(block_exponent(std::vector<float>{0.5F, -0.25F}) - kExponentBias == 0);
    CHECK(block_exponent(std::vector<float>{1.0F}) - kExponentBias == 1);
    CHECK(block_exponent(std::vector<float>{-3.0F, 1e-30F}) - kExponentBias == 2);
    CHECK(block_exponent(std::vector<float>{0.0F, -0.0F}) == 0);
    CHECK(block_exponent(std::vector<float>{std::numeric_limits<float>::max()}) == 254);
    CHECK(block_exponent(std::vector<float>{std::numeric_limits<float>::infinity()}) == 255);
    CHECK(block_exponent(std::vector<float>{std::numeric_limits<float>::quiet_NaN()}) == 255);
  }

  TEST_CASE("fixed point is llrint of ldexp and stays below its power of two") {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      const int fraction = seed % 2 == 0 ? kParameterBits : kStatisticBits;
      const auto values = random_values(rng, 200);
      const auto exponent = block_exponent(values);
      std::vector<std::int64_t> fixed(values.size());

      add_quantized(values, {exponent, fraction}, 1, fixed);

      for (std::size_t k = 0; k < values.size(); ++k) {
        const int e = exponent - kExponentBias;
        CHECK(fixed[k] == std::llrint(std::ldexp(static_cast<double>(values[k]), fraction - e)));
        CHECK(std::abs(fixed[k]) < (std::int64_t{1} << fraction));
      }
    }
  }

  TEST_CASE(
      "one member's value comes back within 2^-24 of the block's largest, the largest as it was") {
    Rng rng(7);
    for (int round = 0; round < 2000; ++round) {
      const float largest = std::ldexp(static_cast<float>(rng.unit() + 0.5), round % 200 - 100);
      const float value = largest * static_cast<float>(rng.unit());
      const std::vector<float> block{largest, value};
      std::vector<std::int64_t> fixed(2);
      const FixedPoint point{.exponent = block_exponent(block)};
      add_quantized(block, point, 1, fixed);
      std::vector<float> back(2);
      dequantize(fixed, point, back);
      CHECK(back[0] == largest);
      const double error = std::abs(static_cast<double>(back[1]) - static_cast<double>(value));
      CHECK(error <= std::ldexp(static_cast<double>(largest), -24));
    }
  }

  TEST_CASE("division rounds half away from zero, on both sides") {
    CHECK(divide_rounded(5, 2) == 3);
    CHECK(divide_rounded(-5, 2) == -3);
    CHECK(divide_rounded(4, 3) == 1);
    CHECK(divide_rounded(-4, 3) == -1);
    CHECK(divide_rounded(0, 7) == 0);
    CHECK(divide_rounded(std::numeric_limits<std::int64_t>::min(), 1) ==
          std::numeric_limits<std::int64_t>::min());
    CHECK(divide_rounded((std::int64_t{1} << 62) - 1, std::uint64_t{1} << 32) ==
          (std::int64_t{1} << 30));
  }

  TEST_CASE("a sum of 4096 members at the largest weight fits its width") {
    const std::uint64_t weight = std::uint64_t{4096} << 20;
    CHECK(sum_bits(ChunkKind::mean, weight) == 63);
    CHECK(sum_bits(ChunkKind::variance, 1) == 31);
    CHECK(sum_bits(ChunkKind::parameters, weight) == 57);
    CHECK(sum_bits(ChunkKind::parameters, 1) == 25);
    CHECK(sum_bits(ChunkKind::parameters, 4) == 27);
    CHECK(sum_bits(ChunkKind::parameters, 5) == 28);
    const auto most = static_cast<std::int64_t>(weight) * ((std::int64_t{1} << 30) - 1);
    const std::vector<std::int64_t> both{most, -most};
    std::vector<std::int64_t> sum(2);
    CHECK(add_packed(pack(both, 63), 63, up_to_magnitude(most), sum).has_value());
    CHECK(sum == both);
  }

  TEST_CASE("sums are the same for every order, tree and number of threads") {
    constexpr std::size_t kMembers = 9;
    constexpr std::size_t kValues = 1000;
    Rng rng(11);
    std::vector<std::vector<float>> members;
    std::uint8_t exponent = 0;
    for (std::size_t m = 0; m < kMembers; ++m) {
      members.push_back(random_values(rng, kValues));
      exponent = std::max(exponent, block_exponent(members.back()));
    }
    std::vector<std::int64_t> straight(kValues);
    for (std::size_t m = 0; m < kMembers; ++m)
      add_quantized(members[m], {.exponent = exponent}, static_cast<std::uint32_t>(m + 1),
                    straight);

    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Rng order(seed);
      // A random tree: each member's partial sum goes packed to a random earlier one.
      std::vector<std::vector<std::int64_t>> partial(kMembers, std::vector<std::int64_t>(kValues));
      std::vector<std::thread> threads;
      for (std::size_t m = 0; m < kMembers; ++m)
        threads.emplace_back([&, m] {
          add_quantized(members[m], {.exponent = exponent}, static_cast<std::uint32_t>(m + 1),
                        partial[m]);
        });
      for (auto& thread : threads) thread.join();
      const auto bits = sum_bits(ChunkKind::parameters, 45);
      for (std::size_t m = kMembers; m-- > 1;) {
        auto& parent = partial[order.below(m)];
        REQUIRE(add_packed(pack(partial[m], bits), bits, up_to_magnitude(std::int64_t{45} << 30),
                           parent)
                    .has_value());
      }
      CHECK(partial[0] == straight);
    }
  }

  TEST_CASE("second moments about the common mean pool as the whole sample would") {
    // Two members with means 1 and 3 and variance 2 each: pooled variance 2 + 1.
    CHECK(moment_about(1.0F, 2.0F, 2.0F) == 3.0F);
    CHECK(moment_about(3.0F, 2.0F, 2.0F) == 3.0F);
  }
}

}  // namespace starling::gossip::consensus
