#include "training/optimizer.h"

#include "node/base/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

constexpr std::size_t kCount = 1'003;  // not a multiple of any vector's width

float normalish(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return static_cast<float>(sum);
}

std::vector<float> draw(Rng& rng) {
  std::vector<float> values(kCount);
  for (float& x : values) x = normalish(rng);
  return values;
}

}  // namespace

TEST_SUITE("training/optimizer") {
  TEST_CASE("a hundred steps stay within fp32 rounding of the same in double precision") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      std::vector<float> x = draw(rng);
      std::vector<float> v(kCount, 0.0F);
      std::vector<float> w(kCount, 0.0F);
      std::vector<double> exact_x(x.begin(), x.end());
      std::vector<double> exact_v(kCount, 0.0);
      const SgdStep step{0.1F, 0.9F, 5e-4F};

      double worst = 0;
      for (int s = 0; s < 100; ++s) {
        const std::vector<float> g = draw(rng);
        sgd_pass(SgdRange<float>{x, g, v, w}, step);
        for (std::size_t i = 0; i < kCount; ++i) {
          const double d =
              static_cast<double>(g[i]) + static_cast<double>(step.weight_decay) * exact_x[i];
          exact_v[i] = static_cast<double>(step.momentum) * exact_v[i] + d;
          exact_x[i] -= static_cast<double>(step.learning_rate) *
                        (d + static_cast<double>(step.momentum) * exact_v[i]);
        }
      }
      for (std::size_t i = 0; i < kCount; ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(x[i]) - exact_x[i]));
      }
      // |x| stays below 32 and |v| below 16: a step rounds x by 2^-20 and v's share by about as
      // much again; 100 steps of 2^-19 are the bound if all had the same sign.
      CHECK(worst < 100 * 0x1p-19);
    }
  }

  TEST_CASE("the working copy is the new master, rounded to bf16") {
    Rng rng(3);
    std::vector<float> x = draw(rng);
    std::vector<float> v(kCount, 0.0F);
    std::vector<Bf16> g(kCount);
    for (Bf16& value : g) value = to_bf16(normalish(rng));
    std::vector<Bf16> w(kCount);

    sgd_pass(SgdRange<Bf16>{x, g, v, w}, {0.1F, 0.9F, 1e-4F});

    for (std::size_t i = 0; i < kCount; ++i) {
      CAPTURE(i);
      REQUIRE(w[i].bits == to_bf16(x[i]).bits);
      // bf16 has 8 bits of precision: half a unit in the last place is 2^-9 of the value.
      REQUIRE(std::abs(to_float(w[i]) - x[i]) <= std::abs(x[i]) * 0x1p-8F);
    }
  }

  // A large working copy goes past the caches, but for its end and where it begins between two
  // lines.
  TEST_CASE_TEMPLATE("a large arena is moved as its parts are", T, float, Bf16) {
    constexpr std::size_t kLarge = (std::size_t{8} << 20) / sizeof(T) + kCount;
    for (const std::size_t first : {0UL, 1UL}) {
      CAPTURE(first);
      Rng rng(17);
      std::vector<float> x(kLarge + first);
      for (float& value : x) value = static_cast<float>(rng.unit()) - 0.5F;
      std::vector<T> g(kLarge + first);
      for (std::size_t i = 0; i < g.size(); ++i) {
        if constexpr (std::is_same_v<T, float>)
          g[i] = 0.25F - x[i];
        else
          g[i] = to_bf16(0.25F - x[i]);
      }
      std::vector<float> v(kLarge + first, 0.5F);
      std::vector<T> w(kLarge + first);
      std::vector<float> x_parts = x;
      std::vector<float> v_parts = v;
      std::vector<T> w_parts = w;
      const std::span<const T> gradients = std::span(g).subspan(first);
      const SgdStep step{0.1F, 0.9F, 1e-4F};

      const auto run = [&](std::vector<float>& to_x, std::vector<float>& to_v, std::vector<T>& to_w,
                           std::size_t at, std::size_t n) {
        const auto part = gradients.subspan(at, n);
        const std::span<float> xs = std::span(to_x).subspan(first + at, n);
        const std::span<float> vs = std::span(to_v).subspan(first + at, n);
        const std::span<T> ws = std::span(to_w).subspan(first + at, n);
        sgd_pass(SgdRange<T>{xs, part, vs, ws}, step);
        sgd_pass(SgdRange<T>{xs, part, vs, ws, std::span(&part, 1)}, step);
      };
      run(x, v, w, 0, kLarge);
      for (std::size_t at = 0; at < kLarge; at += 100'000) {
        run(x_parts, v_parts, w_parts, at, std::min<std::size_t>(100'000, kLarge - at));
      }

      CHECK(x == x_parts);
      CHECK(v == v_parts);
      CHECK(std::memcmp(w.data(), w_parts.data(), w.size() * sizeof(T)) == 0);
    }
  }

  TEST_CASE("bf16 gradients are used at their exact value") {
    Rng rng(9);
    std::vector<float> x1 = draw(rng);
    std::vector<float> x2 = x1;
    std::vector<float> v1(kCount, 0.5F);
    std::vector<float> v2 = v1;
    std::vector<float> g(kCount);
    std::vector<Bf16> half(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      half[i] = to_bf16(normalish(rng));
      g[i] = to_float(half[i]);
    }
    std::vector<float> w(kCount);
    std::vector<Bf16> half_w(kCount);

    sgd_pass(SgdRange<float>{x1, g, v1, w}, {0.1F, 0.9F, 1e-4F});
    sgd_pass(SgdRange<Bf16>{x2, half, v2, half_w}, {0.1F, 0.9F, 1e-4F});

    CHECK(x1 == x2);
    CHECK(v1 == v2);
  }

  TEST_CASE("rounding to bf16 takes the nearest value, ties to even") {
    CHECK(to_bf16(1.0F).bits == 0x3f80);
    CHECK(to_bf16(1.0F + 0x1p-8F).bits == 0x3f80);            // tie, even below
    CHECK(to_bf16(1.0F + 0x1p-7F + 0x1p-8F).bits == 0x3f82);  // tie, even above
    CHECK(to_bf16(1.0F + 0x1p-8F + 0x1p-20F).bits == 0x3f81);
    CHECK(to_bf16(-0.0F).bits == 0x8000);
  }

  TEST_CASE("zeros stay zero, so padding does") {
    std::vector<float> x(kCount, 0.0F);
    std::vector<float> v(kCount, 0.0F);
    std::vector<float> w(kCount, 1.0F);
    const std::vector<float> g(kCount, 0.0F);

    sgd_pass(SgdRange<float>{x, g, v, w}, {0.1F, 0.9F, 5e-4F});

    for (std::size_t i = 0; i < kCount; ++i) {
      REQUIRE(x[i] == 0.0F);
      REQUIRE(w[i] == 0.0F);
    }
  }

  TEST_CASE("one value that is not finite is found wherever it stands") {
    for (const std::size_t at : {0UL, 1UL, 4'095UL, 4'096UL, 9'999UL}) {
      CAPTURE(at);
      std::vector<float> floats(10'000, 3e38F);
      std::vector<Bf16> halves(10'000, Bf16{0x7f7f});
      CHECK(all_finite(std::span<const float>(floats)));
      CHECK(all_finite(std::span<const Bf16>(halves)));

      floats[at] = std::numeric_limits<float>::quiet_NaN();
      halves[at] = Bf16{0xff80};
      CHECK_FALSE(all_finite(std::span<const float>(floats)));
      CHECK_FALSE(all_finite(std::span<const Bf16>(halves)));
    }
  }
}
