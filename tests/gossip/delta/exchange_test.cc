#include "gossip/delta/exchange.h"

#include "gossip/delta/kernels.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace starling::gossip {

using testing::energy;
using testing::gaussian;
using testing::kLevels;
using testing::make_layout;
using testing::same_bits;
using testing::Shape;
using testing::uneven_layout;
using testing::values;

namespace {

// One end of an edge in a test.
struct End {
  std::vector<float> x;
  std::vector<float> r;
  Carry carry;
  Bytes bytes;
};

void encode_at(const Layout& layout, End& end, Level level) {
  auto encoded = encode(layout, {end.x, end.r}, {.level = level}, end.carry);
  REQUIRE(encoded.has_value());
  end.bytes = std::move(encoded->bytes);
}

DeltaView view_of(const Layout& layout, Level level, const Bytes& bytes) {
  auto view = parse_delta(layout, level, bytes);
  REQUIRE(view.has_value());
  return *std::move(view);
}

struct Levels {
  Level lower;
  Level higher;
};

// A whole exchange between the lower and the higher end.
void exchange(const Layout& layout, End& lower, End& higher, Levels levels, float weight) {
  encode_at(layout, lower, levels.lower);
  encode_at(layout, higher, levels.higher);
  const DeltaView a = view_of(layout, levels.lower, lower.bytes);
  const DeltaView b = view_of(layout, levels.higher, higher.bytes);
  apply_exchange({a, b, Side::lower}, weight, {lower.x, lower.r}, detected_isa());
  apply_exchange({b, a, Side::higher}, weight, {higher.x, higher.r}, detected_isa());
}

std::vector<float> decoded(const Layout& layout, Level level, const Bytes& bytes) {
  const DeltaView view = view_of(layout, level, bytes);
  std::vector<float> q(layout.size());
  for (std::size_t block = 0; block < layout.blocks(); ++block)
    decode_block(view, block, std::span(q).subspan(block * kBlock, kBlock), Isa::scalar);
  return q;
}

}  // namespace

TEST_SUITE("gossip/delta/exchange") {
  TEST_CASE("with weight 1/2 the new residual is the old one less what was sent") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      Rng rng(7);
      const auto r = values(layout, Shape::gaussian, rng);
      End lower{values(layout, Shape::gaussian, rng), r, {}, {}};
      End higher{values(layout, Shape::laplace, rng), r, {}, {}};
      const End before = lower;

      exchange(layout, lower, higher, {level, level}, 0.5F);

      const auto q = decoded(layout, level, lower.bytes);
      for (std::size_t i = 0; i < r.size(); ++i) {
        const float expected = (before.x[i] - before.r[i]) - q[i];
        // nine roundings of values below 0.02 (fp32 unit 2^-24)
        CHECK(std::abs((lower.x[i] - lower.r[i]) - expected) <= 9 * 0.02F * 0x1.0p-24F);
      }
    }
  }

  TEST_CASE("an exchange keeps the mean of the pair, whatever the weight and the levels") {
    const Layout layout = uneven_layout();
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      const auto r = values(layout, Shape::gaussian, rng);
      End lower{values(layout, Shape::gaussian, rng), r, {}, {}};
      End higher{values(layout, Shape::laplace, rng), r, {}, {}};
      const auto lower_x = lower.x;
      const auto higher_x = higher.x;
      const Weight weight{static_cast<std::uint8_t>(1 + rng.below(64))};

      exchange(layout, lower, higher, {kLevels[rng.below(7)], kLevels[rng.below(7)]},
               weight.value());

      double moved = 0;
      for (std::size_t i = 0; i < r.size(); ++i) {
        const double before = static_cast<double>(lower_x[i]) + static_cast<double>(higher_x[i]);
        const double after = static_cast<double>(lower.x[i]) + static_cast<double>(higher.x[i]);
        moved = std::max(moved, std::abs(after - before));
      }
      CHECK(moved <= 4 * 0.02 * 0x1.0p-24);  // four roundings of values below 0.02
    }
  }

  TEST_CASE("both ends hold the same reference, bit for bit, after thousands of exchanges") {
    const Layout layout = make_layout({{{"w", {37, 5, 3, 3}}, {"v", {70, 50}}, {"b", {100}}}, 0});
    Rng rng(12);
    const auto r = values(layout, Shape::gaussian, rng);
    End lower{values(layout, Shape::gaussian, rng), r, {}, {}};
    End higher{values(layout, Shape::gaussian, rng), r, {}, {}};
    for (int i = 0; i < 3'000; ++i) {
      for (End* end : {&lower, &higher})
        for (int step = 0; step < 20; ++step) {
          const std::size_t at = rng.below(layout.size());
          if (layout.is_real(at / kBlock, at % kBlock))
            end->x[at] += testing::gaussian(rng) * 1e-3F;
        }
      const Weight weight{static_cast<std::uint8_t>(1 + rng.below(64))};

      exchange(layout, lower, higher, {kLevels[rng.below(7)], kLevels[rng.below(7)]},
               weight.value());

      if (!same_bits(lower.r, higher.r)) FAIL("references differ after exchange ", i);
    }
    CHECK(same_bits(lower.r, higher.r));
    for (std::size_t i = 0; i < lower.r.size(); ++i) {
      CHECK(std::bit_cast<std::uint32_t>(lower.r[i]) != 0x80000000U);  // never -0
      if (!layout.is_real(i / kBlock, i % kBlock)) CHECK(lower.r[i] == 0.0F);
    }
  }

  TEST_CASE("two replicas that stand still meet") {
    const Layout layout = uneven_layout();
    for (const Level level : {Level::l2, Level::l3, Level::l4, Level::l5, Level::l6}) {
      CAPTURE(name_of(level));
      Rng rng(2);
      const std::vector<float> r(layout.size());
      End lower{values(layout, Shape::gaussian, rng), r, {}, {}};
      End higher{values(layout, Shape::gaussian, rng), r, {}, {}};
      const auto gap = [&] {
        double sum = 0;
        for (std::size_t i = 0; i < r.size(); ++i)
          sum += std::pow(static_cast<double>(lower.x[i]) - static_cast<double>(higher.x[i]), 2);
        return sum;
      };
      const double start = gap();

      for (int i = 0; i < 60; ++i) exchange(layout, lower, higher, {level, level}, 0.5F);

      CHECK(gap() < start * 0.01);
    }
  }

  TEST_CASE("the norm is that of the decoded difference, for lists and for whole blocks") {
    const Layout layout = uneven_layout();
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      const Level own_level = kLevels[rng.below(7)];
      const Level their_level = kLevels[rng.below(7)];
      const std::vector<float> r(layout.size());
      End own{values(layout, Shape::mixed, rng), r, {}, {}};
      End their{values(layout, Shape::laplace, rng), r, {}, {}};
      encode_at(layout, own, own_level);
      encode_at(layout, their, their_level);
      auto difference = decoded(layout, their_level, their.bytes);
      const auto q_own = decoded(layout, own_level, own.bytes);
      for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= q_own[i];

      const DeltaView own_view = view_of(layout, own_level, own.bytes);
      const DeltaView their_view = view_of(layout, their_level, their.bytes);
      const DeltaPair pair{own_view, their_view, Side::higher};
      const double norm = difference_norm(pair, detected_isa());

      CHECK(norm == doctest::Approx(std::sqrt(energy(difference))).epsilon(1e-12));
      CHECK(difference_norm_bound(pair) >= norm);
      CHECK(apply_exchange(pair, 0.5F, {own.x, own.r}, detected_isa()) == norm);
    }
  }

  TEST_CASE("adding two deltas and clearing them adds the same and leaves zeros") {
    Rng rng(5);
    for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
      if (!is_available(isa)) continue;
      CAPTURE(name_of(isa));
      const Kernels& kernels = kernels_of(isa);
      std::vector<float> low(208);
      std::vector<float> high(208);
      for (float& value : low) value = rng.below(3) == 0 ? gaussian(rng) : 0.0F;
      for (float& value : high) value = rng.below(3) == 0 ? gaussian(rng) : 0.0F;
      std::vector<float> x(low.rbegin(), low.rend());
      std::vector<float> r(high.rbegin(), high.rend());
      std::vector<float> other_x = x;
      std::vector<float> other_r = r;

      const double norm = kernels.apply(low.data(), high.data(), 208, -0.5F, {x.data(), r.data()});
      const double other = kernels.apply_and_clear(low.data(), high.data(), 208, -0.5F,
                                                   {other_x.data(), other_r.data()});

      CHECK(norm == other);
      CHECK(same_bits(x, other_x));
      CHECK(same_bits(r, other_r));
      CHECK(low == std::vector<float>(208));
      CHECK(high == std::vector<float>(208));
    }
  }

  TEST_CASE("dense deltas are added from their bytes as if both had been written out") {
    const Layout layout = uneven_layout();
    for (const Level level : {Level::l3, Level::l4, Level::l5, Level::l6}) {
      CAPTURE(name_of(level));
      Rng rng(11);
      const std::vector<float> r = values(layout, Shape::gaussian, rng);
      End own{values(layout, Shape::laplace, rng), r, {}, {}};
      End their{values(layout, Shape::laplace, rng), r, {}, {}};
      // Where nothing changed: groups at the begin and at the end, and two halves of blocks.
      std::copy_n(r.begin(), kGroup, own.x.begin());
      std::copy(r.end() - 2 * kGroup, r.end(), own.x.end() - 2 * kGroup);
      std::copy_n(r.begin() + kBlock / 2, kBlock, their.x.begin() + kBlock / 2);
      encode_at(layout, own, level);
      encode_at(layout, their, level);
      const DeltaView own_view = view_of(layout, level, own.bytes);
      const DeltaView their_view = view_of(layout, level, their.bytes);
      End expected = own;
      double norm = 0;
      for (std::size_t block = 0; block < layout.blocks(); ++block) {
        std::vector<float> lower(kBlock);
        std::vector<float> higher(kBlock);
        decode_block(own_view, block, lower, Isa::scalar);
        decode_block(their_view, block, higher, Isa::scalar);
        norm += scalar_kernels().apply(
            lower.data(), higher.data(), layout.width(block), 0.25F,
            {expected.x.data() + block * kBlock, expected.r.data() + block * kBlock});
      }

      for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
        if (!is_available(isa)) continue;
        CAPTURE(name_of(isa));
        End end = own;
        CHECK(apply_exchange({own_view, their_view, Side::lower}, 0.25F, {end.x, end.r}, isa) ==
              doctest::Approx(std::sqrt(norm)).epsilon(1e-12));
        CHECK(same_bits(end.x, expected.x));
        CHECK(same_bits(end.r, expected.r));
      }
    }
  }

  TEST_CASE(
      "the bound of a norm is near enough that a usual exchange is not taken for a large one") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      if (level > Level::l3) break;  // a group's one scale says less
      CAPTURE(name_of(level));
      Rng rng(7);
      const std::vector<float> r(layout.size());
      End own{values(layout, Shape::laplace, rng), r, {}, {}};
      End their{values(layout, Shape::laplace, rng), r, {}, {}};
      encode_at(layout, own, level);
      encode_at(layout, their, level);
      const DeltaView own_view = view_of(layout, level, own.bytes);
      const DeltaView their_view = view_of(layout, level, their.bytes);
      const DeltaPair pair{own_view, their_view, Side::lower};

      // the guard clips above three times the usual norm
      CHECK(difference_norm_bound(pair) < 2.5 * difference_norm(pair, detected_isa()));
    }
  }

  TEST_CASE("pooled statistics are those of the two sets of samples together") {
    // two nodes with three and one quarter of 8 samples: m and v of all, worked out by hand
    std::vector<float> mean{1.0F};
    std::vector<float> variance{4.0F};
    Bytes theirs;
    std::vector<float> their_mean{5.0F};
    std::vector<float> their_variance{2.0F};
    REQUIRE(append_statistics({their_mean, their_variance}, theirs).has_value());

    pool_statistics(theirs, Weight{32}, {mean, variance});

    CHECK(mean[0] == 2.0F);                                      // 3/4 1 + 1/4 5
    CHECK(variance[0] == 0.75F * 4 + 0.25F * 2 + 0.1875F * 16);  // + 3/16 (1 - 5)^2
  }

  TEST_CASE("both ends pool to the same statistics with weight 1/2") {
    Rng rng(8);
    for (int i = 0; i < 1'000; ++i) {
      const float m1 = testing::gaussian(rng);
      const float m2 = testing::gaussian(rng);
      const auto v1 = static_cast<float>(rng.unit());
      const auto v2 = static_cast<float>(rng.unit());
      std::vector<float> mean_a{m1};
      std::vector<float> variance_a{v1};
      std::vector<float> mean_b{m2};
      std::vector<float> variance_b{v2};
      Bytes a;
      Bytes b;
      REQUIRE(append_statistics({mean_a, variance_a}, a).has_value());
      REQUIRE(append_statistics({mean_b, variance_b}, b).has_value());

      pool_statistics(b, Weight{}, {mean_a, variance_a});
      pool_statistics(a, Weight{}, {mean_b, variance_b});

      CHECK(mean_a == mean_b);
      CHECK(variance_a == variance_b);
      CHECK(variance_a[0] >= 0);
    }
  }

  TEST_CASE("statistics that are out of reason move the own ones by a few times their size") {
    struct Channel {
      float mean;
      float variance;
    };
    // as at genesis, trained, hardly alive, dead
    for (const Channel& own : {Channel{0, 1}, Channel{5, 0.01F}, Channel{1e-4F, 1e-9F}, Channel{}})
      for (const float lie : {1e3F, -1e15F, 1e30F, std::numeric_limits<float>::max()}) {
        CAPTURE(own.mean);
        CAPTURE(lie);
        std::vector<float> mean{own.mean};
        std::vector<float> variance{own.variance};
        std::vector<float> their_mean{lie};
        std::vector<float> their_variance{std::abs(lie)};
        Bytes theirs;
        REQUIRE(append_statistics({their_mean, their_variance}, theirs).has_value());

        CHECK(pool_statistics(theirs, {}, {mean, variance}) == 1);

        const double size = std::sqrt(static_cast<double>(own.mean * own.mean + own.variance + 1));
        // Half of what counts, 4 sizes, and of the variance with what the two means are apart:
        // v/2 + 16 size^2 / 2 + (4 size)^2 / 4. A rounding or two on top.
        CHECK(std::abs(static_cast<double>(mean[0] - own.mean)) < 2.0001 * size);
        CHECK(static_cast<double>(variance[0]) <
              (0.5 * static_cast<double>(own.variance) + 12.001 * size * size));
        CHECK(variance[0] > 0);
      }
  }

  TEST_CASE("a fresh and a trained node's statistics are pooled whole, to the bit") {
    struct Channel {
      float mean;
      float variance;
    };
    for (const auto& [a, b] :
         {std::pair{Channel{0, 1}, Channel{5, 0.01F}}, std::pair{Channel{-2, 9}, Channel{3, 1}},
          std::pair{Channel{}, Channel{1, 4}}}) {
      std::vector<float> mean{a.mean};
      std::vector<float> variance{a.variance};
      std::vector<float> their_mean{b.mean};
      std::vector<float> their_variance{b.variance};
      Bytes theirs;
      REQUIRE(append_statistics({their_mean, their_variance}, theirs).has_value());

      CHECK(pool_statistics(theirs, {}, {mean, variance}) == 0);

      const float apart = a.mean - b.mean;
      CHECK(mean[0] == 0.5F * a.mean + 0.5F * b.mean);
      CHECK(variance[0] == 0.5F * a.variance + 0.5F * b.variance + 0.25F * (apart * apart));
    }
  }

  TEST_CASE("statistics that are not finite are never sent") {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -1.0F}) {
      std::vector<float> mean{0.0F};
      std::vector<float> variance{bad};
      Bytes out{std::byte{7}};

      const auto result = append_statistics({mean, variance}, out);

      REQUIRE_FALSE(result.has_value());
      CHECK(result.error().code == Errc::diverged);
      CHECK(out.size() == 1);
    }
  }

  TEST_CASE("an answer in one walk is the same bits as the encode and then the apply") {
    const Layout layout = uneven_layout();
    Rng rng(5);
    for (const Level own_level : kLevels)
      for (const Level their_level : {Level::l1, Level::l3, Level::l6}) {
        CAPTURE(name_of(own_level));
        CAPTURE(name_of(their_level));
        const auto r = values(layout, Shape::gaussian, rng);
        End own{values(layout, Shape::mixed, rng), r, {}, {}};
        End their{values(layout, Shape::gaussian, rng), r, {}, {}};
        encode_at(layout, their, their_level);
        const DeltaView theirs = view_of(layout, their_level, their.bytes);
        const Side side = rng.chance(0.5) ? Side::lower : Side::higher;
        auto x = own.x;
        auto once = own.r;
        Carry carry;

        const auto answered =
            encode_and_apply({theirs, side, 0.375F}, {x, once}, {.level = own_level}, carry);

        REQUIRE(answered.has_value());
        encode_at(layout, own, own_level);
        CHECK(answered->own.bytes == own.bytes);
        const DeltaView view = view_of(layout, own_level, own.bytes);
        CHECK(answered->norm ==
              apply_exchange({view, theirs, side}, 0.375F, {own.x, own.r}, Isa::scalar));
        CHECK(same_bits(x, own.x));
        CHECK(same_bits(once, own.r));
        CHECK(same_bits(carry.thresholds, own.carry.thresholds));
      }
  }

  TEST_CASE("a neighbour's huge values never make parameters or statistics infinite") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      Rng rng(3);
      const std::vector<float> r(layout.size());
      End own{values(layout, Shape::huge, rng), r, {}, {}};
      End their{values(layout, Shape::huge, rng), r, {}, {}};
      for (int i = 0; i < 4; ++i) {
        encode_at(layout, own, level);
        encode_at(layout, their, level);
        own.r = r;
        const DeltaView own_view = view_of(layout, level, own.bytes);
        const DeltaView their_view = view_of(layout, level, their.bytes);

        apply_exchange({own_view, their_view, Side::lower}, 0.5F, {own.x, own.r}, detected_isa());

        CHECK(std::ranges::all_of(own.x, [](float value) { return std::isfinite(value); }));
        own.r = r;
      }
    }
    std::vector<float> mean{-3e38F, 1.0F};
    std::vector<float> variance{1.0F, 1.0F};
    Bytes theirs;
    std::vector<float> their_mean{3e38F, 3.0F};
    std::vector<float> their_variance{3e38F, 1.0F};
    REQUIRE(append_statistics({their_mean, their_variance}, theirs).has_value());

    pool_statistics(theirs, {}, {mean, variance});

    CHECK(mean == std::vector<float>{-3e38F, 2.0F});
    CHECK(variance == std::vector<float>{1.0F, 2.0F});
  }

  TEST_CASE("a payload is never longer than what its receiver reserves") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      CHECK(max_payload_bytes(layout, level, Statistics::without) == max_bytes(layout, level));
      CHECK(max_payload_bytes(layout, level, Statistics::with) ==
            max_bytes(layout, level) + 8 * layout.bn_channels());
    }
  }
}

}  // namespace starling::gossip
