#include "gossip/delta/codec.h"

#include "gossip/delta/block_encoder.h"
#include "gossip/delta/centroids.h"
#include "node/base/hash.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace starling::gossip {

using testing::energy;
using testing::gaussian;
using testing::kLevels;
using testing::kShapes;
using testing::make_layout;
using testing::plain_layout;
using testing::resnet50;
using testing::Shape;
using testing::uneven_layout;
using testing::values;

namespace {

Encoded encode_ok(const Layout& layout, Difference difference, EncodeOptions options,
                  Carry& carry) {
  auto encoded = encode(layout, difference, options, carry);
  REQUIRE(encoded.has_value());
  return *std::move(encoded);
}

std::vector<float> decode_ok(const Layout& layout, Level level, ByteView bytes,
                             Isa isa = Isa::scalar) {
  const auto view = parse_delta(layout, level, bytes);
  if (!view) FAIL(to_string(view.error()));
  std::vector<float> q(layout.size());
  for (std::size_t block = 0; block < layout.blocks(); ++block)
    decode_block(*view, block, std::span(q).subspan(block * kBlock, kBlock), isa);
  return q;
}

// Indices of the largest values of a block as many as wanted, of equal ones the first.
std::vector<std::uint16_t> largest_of(std::span<const float> x, std::size_t block,
                                      std::size_t wanted) {
  std::vector<std::uint16_t> order(kBlock);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::ranges::sort(
      order, {}, [&](std::uint16_t i) { return std::pair(-std::abs(x[block * kBlock + i]), i); });
  order.resize(wanted);
  std::ranges::sort(order);
  return order;
}

// Which values of a block a delta names: those that it decodes to something.
std::vector<std::uint16_t> selected_of(const DeltaView& view, std::size_t block) {
  std::array<float, kBlock> q{};
  decode_block(view, block, q, detected_isa());
  std::vector<std::uint16_t> indices;
  for (std::uint16_t i = 0; i < kBlock; ++i)
    if (q[i] != 0) indices.push_back(i);
  return indices;
}

std::vector<float> minus(std::span<const float> a, std::span<const float> b) {
  std::vector<float> result(a.begin(), a.end());
  for (std::size_t i = 0; i < b.size(); ++i) result[i] -= b[i];
  return result;
}

}  // namespace

TEST_SUITE("gossip/delta/codec") {
  TEST_CASE("every level of every shape decodes to the energy that the encoder reports") {
    const Layout layout = uneven_layout();
    for (const Shape shape : kShapes) {
      for (const Level level : kLevels) {
        Rng rng(static_cast<std::uint64_t>(shape) * 100 + static_cast<std::uint64_t>(level));
        CAPTURE(static_cast<int>(shape));
        CAPTURE(name_of(level));
        const auto x = values(layout, shape, rng);
        Carry carry;

        const Encoded encoded = encode_ok(layout, {x, {}}, {.level = level}, carry);
        const auto q = decode_ok(layout, level, encoded.bytes);

        CHECK(encoded.bytes.size() <= max_bytes(layout, level));
        const auto parsed = parse_delta(layout, level, encoded.bytes);
        REQUIRE(parsed.has_value());
        const DeltaView own = own_delta(layout, level, encoded.bytes, encoded.offsets);
        for (std::size_t block = 0; block < layout.blocks(); ++block) {
          CHECK(own.block(block).data() == parsed->block(block).data());
          CHECK(own.block(block).size() == parsed->block(block).size());
        }
        CHECK(energy(q) == doctest::Approx(encoded.figures.sent_energy).epsilon(1e-9));
        CHECK(energy(x) == doctest::Approx(encoded.figures.difference_energy).epsilon(1e-9));
        for (std::size_t i = 0; i < q.size(); ++i) {
          CHECK(std::isfinite(q[i]));
          if (!layout.is_real(i / kBlock, i % kBlock)) CHECK(q[i] == 0.0F);
        }
      }
    }
  }

  TEST_CASE("what is left unsent is never more than what there was") {
    const Layout layout = uneven_layout();
    for (const Shape shape : kShapes) {
      if (shape == Shape::denormal) continue;  // bf16 has too few bits down there
      for (const Level level : kLevels) {
        Rng rng(static_cast<std::uint64_t>(shape) * 10 + static_cast<std::uint64_t>(level));
        CAPTURE(static_cast<int>(shape));
        CAPTURE(name_of(level));
        const auto x = values(layout, shape, rng);
        const auto r = values(layout, Shape::gaussian, rng);
        Carry carry;

        const Encoded encoded = encode_ok(layout, {x, r}, {.level = level}, carry);
        const auto d = minus(x, r);
        const auto rest = minus(d, decode_ok(layout, level, encoded.bytes));

        CHECK(energy(rest) <= energy(d) * (1 + 1e-5));
        if (level == Level::l6) CHECK(energy(rest) <= energy(d) * 1e-3);
      }
    }
  }

  TEST_CASE("L6 is within half a scale of every value") {
    const Layout layout = uneven_layout();
    Rng rng(3);
    const auto x = values(layout, Shape::laplace, rng);
    Carry carry;

    const auto q =
        decode_ok(layout, Level::l6, encode_ok(layout, {x, {}}, {.level = Level::l6}, carry).bytes);

    for (std::size_t group = 0; group < x.size(); group += kGroup) {
      float largest = 0;
      for (std::size_t i = group; i < group + kGroup; ++i)
        largest = std::max(largest, std::abs(x[i]));
      for (std::size_t i = group; i < group + kGroup; ++i)
        // half a step, and what bf16 (2^-9) may take away at the largest code
        CHECK(std::abs(x[i] - q[i]) <= largest * (0.5F / 127 + 0x1.0p-8F));
    }
  }

  TEST_CASE("a replica that equals its reference sends two bytes a block") {
    const Layout layout = plain_layout(3);
    Rng rng(1);
    const auto x = values(layout, Shape::gaussian, rng);
    for (const Level level : {Level::l0, Level::l1, Level::l2, Level::l3, Level::l4}) {
      Carry carry;

      const Encoded encoded = encode_ok(layout, {x, x}, {.level = level}, carry);

      CHECK(encoded.bytes.size() == 6);
      CHECK(encoded.figures.difference_energy == 0);
      CHECK(energy(decode_ok(layout, level, encoded.bytes)) == 0);
    }
  }

  TEST_CASE("sparse levels send exactly the largest values when nothing is carried") {
    const Layout layout = plain_layout(4);
    for (const Level level : {Level::l0, Level::l1, Level::l2}) {
      for (const Shape shape : {Shape::gaussian, Shape::laplace, Shape::ties}) {
        CAPTURE(name_of(level));
        Rng rng(17);
        const auto x = values(layout, shape, rng);
        Carry carry;
        const Encoded encoded = encode_ok(layout, {x, {}}, {.level = level}, carry);
        const auto view = parse_delta(layout, level, encoded.bytes);
        REQUIRE(view.has_value());

        for (std::size_t block = 0; block < layout.blocks(); ++block)
          CHECK(selected_of(*view, block) == largest_of(x, block, nominal_count(level)));
      }
    }
  }

  TEST_CASE("thresholds that select far too many or too few select as if none were carried") {
    const Layout layout = plain_layout(4);  // too few blocks for a common drift
    for (const Level level : {Level::l0, Level::l1, Level::l2}) {
      for (const Shape shape : {Shape::gaussian, Shape::laplace, Shape::ties}) {
        for (const float factor : {1e-30F, 0.4F, 1.6F, 4.0F, 1e30F}) {
          CAPTURE(name_of(level));
          CAPTURE(static_cast<int>(shape));
          CAPTURE(factor);
          Rng rng(29);
          const auto x = values(layout, shape, rng);
          Carry exact;
          const Encoded expected = encode_ok(layout, {x, {}}, {.level = level}, exact);
          Carry missed{.thresholds = exact.thresholds};
          for (float& threshold : missed.thresholds) threshold *= factor;

          const Encoded encoded = encode_ok(layout, {x, {}}, {.level = level}, missed);

          CHECK(encoded.bytes == expected.bytes);
          CHECK(encoded.figures.unsent_share == expected.figures.unsent_share);
          CHECK(missed.thresholds == exact.thresholds);
        }
      }
    }
  }

  TEST_CASE("with carried thresholds the selected energy stays at 0.98 of the exact selection") {
    const Layout layout = plain_layout(16);
    for (const Level level : {Level::l0, Level::l1, Level::l2}) {
      for (const Shape shape : {Shape::gaussian, Shape::laplace}) {
        CAPTURE(name_of(level));
        CAPTURE(static_cast<int>(shape));
        Rng rng(23);
        Carry carry;
        double kept = 0;
        double exact = 0;
        std::size_t selected = 0;
        for (int message = 0; message < 12; ++message) {
          const auto x = values(layout, shape, rng);
          const Encoded encoded = encode_ok(layout, {x, {}}, {.level = level}, carry);
          const auto view = parse_delta(layout, level, encoded.bytes);
          REQUIRE(view.has_value());
          for (std::size_t block = 0; block < layout.blocks(); ++block) {
            const auto indices = selected_of(*view, block);
            selected += indices.size();
            std::vector<float> sizes;
            for (std::size_t i = 0; i < kBlock; ++i)
              sizes.push_back(std::abs(x[block * kBlock + i]));
            for (const std::uint16_t i : indices) kept += std::pow(sizes[i], 2);
            std::ranges::sort(sizes, std::greater<>());
            for (std::uint32_t i = 0; i < nominal_count(level); ++i) exact += std::pow(sizes[i], 2);
          }
        }

        CHECK(kept >= 0.98 * exact);
        const double per_block = static_cast<double>(selected) / (12.0 * 16);
        CHECK(per_block < 1.1 * nominal_count(level));
      }
    }
  }

  TEST_CASE(
      "a common drift lets blocks select as many as they should in the mean, not at the median") {
    Rng rng(31);
    std::vector<float> drifts(2'000);
    for (float& drift : drifts) drift = 1.3F * std::exp(0.03F * gaussian(rng));
    const float median = 1.3F;
    for (const double power : {4.2, 6.6, 9.0}) {  // how fast a level's count falls with a threshold
      CAPTURE(power);
      const auto mean_count = [&](float common) {
        double sum = 0;
        for (const float drift : drifts) sum += std::pow(drift / common, power);
        return sum / static_cast<double>(drifts.size());
      };
      std::uint64_t shares = 0;
      for (const float drift : drifts) shares += count_share(drift, median);

      const float common = common_drift(median, shares, static_cast<std::uint32_t>(drifts.size()));

      CHECK(mean_count(common) == doctest::Approx(1).epsilon(0.01));
      CHECK(mean_count(common) < mean_count(median));
    }
  }

  TEST_CASE("drifts that are out of all bounds count as half or twice as many") {
    const float huge = std::numeric_limits<float>::max();
    const float infinite = std::numeric_limits<float>::infinity();
    CHECK(count_share(1, 1) == 32'768);
    CHECK(count_share(1e-30F, 1) == doctest::Approx(16'384).epsilon(0.01));
    for (const float drift : {huge, infinite})
      CHECK(count_share(drift, 1) == doctest::Approx(65'536).epsilon(0.01));
    CHECK(count_share(infinite, infinite) == count_share(1e-30F, 1));
  }

  TEST_CASE("carried thresholds follow differences that grow or shrink alike in all blocks") {
    const Layout layout = plain_layout(64 * kFewestDrifts);
    for (const float factor : {0.5F, 3.0F}) {
      CAPTURE(factor);
      Rng rng(23);
      Carry carry;
      (void)encode_ok(layout, {values(layout, Shape::gaussian, rng), {}}, {}, carry);
      auto x = values(layout, Shape::gaussian, rng);
      for (float& value : x) value *= factor;
      const Encoded encoded = encode_ok(layout, {x, {}}, {}, carry);
      const auto view = parse_delta(layout, Level::l2, encoded.bytes);
      REQUIRE(view.has_value());
      std::size_t selected = 0;
      std::size_t exactly = 0;  // as if nothing had been carried
      for (std::size_t block = 0; block < layout.blocks(); ++block) {
        const std::size_t count = selected_of(*view, block).size();
        selected += count;
        exactly += count == nominal_count(Level::l2) ? 1 : 0;
      }
      CHECK(exactly < layout.blocks() / 8);
      CHECK(static_cast<double>(selected) / static_cast<double>(layout.blocks()) ==
            doctest::Approx(nominal_count(Level::l2)).epsilon(0.1));
    }
  }

  TEST_CASE("what is not sent comes later: the unsent energy falls with every exchange") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      Rng rng(5);
      const auto x = values(layout, Shape::gaussian, rng);
      std::vector<float> r(layout.size());
      Carry carry;
      double before = energy(x);
      const double start = before;
      for (int i = 0; i < 40; ++i) {
        const Encoded encoded = encode_ok(layout, {x, r}, {.level = level}, carry);
        const auto q = decode_ok(layout, level, encoded.bytes);
        for (std::size_t k = 0; k < r.size(); ++k) r[k] += q[k];
        const double now = energy(minus(x, r));
        CHECK(now <= before * (1 + 1e-6));
        before = now;
      }
      CHECK(before < start * (level <= Level::l1 ? 0.8 : 0.01));
    }
  }

  TEST_CASE("parameters that are not finite are never sent") {
    const Layout layout = uneven_layout();
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const Level level : kLevels) {
        std::vector<float> x(layout.size());
        x[layout.find("c.weight")->offset + 77] = bad;
        Carry carry;

        const auto encoded = encode(layout, {x, {}}, {.level = level}, carry);

        REQUIRE_FALSE(encoded.has_value());
        CHECK(encoded.error().code == Errc::diverged);
        CHECK(carry.thresholds.empty());
      }
    }
  }

  TEST_CASE("a reference that is not finite asks for a new one instead of blaming the replica") {
    const Layout layout = plain_layout(1);
    const std::vector<float> x(layout.size(), 3e38F);
    const std::vector<float> r(layout.size(), -3e38F);
    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      Carry carry;

      const auto encoded = encode(layout, {x, r}, {.level = level}, carry);

      REQUIRE_FALSE(encoded.has_value());
      CHECK(encoded.error().code == Errc::corrupt);
    }
  }

  TEST_CASE("values that strayed into padding do not reach the wire") {
    const Layout layout = uneven_layout();
    std::vector<float> x(layout.size(), 1.0F);
    for (const Level level : kLevels) {
      Carry carry;

      const Encoded encoded = encode_ok(layout, {x, {}}, {.level = level}, carry);

      const auto q = decode_ok(layout, level, encoded.bytes);
      for (std::size_t i = 0; i < q.size(); ++i)
        if (!layout.is_real(i / kBlock, i % kBlock)) CHECK(q[i] == 0.0F);
    }
  }

  TEST_CASE("unsent shares fall up the ladder and agree with a real encode") {
    const Layout layout = plain_layout(64);
    Rng rng(9);
    const auto x = values(layout, Shape::gaussian, rng);

    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      Carry carry;
      std::array<double, 7> mean{};
      Encoded encoded;
      for (int i = 0; i < 8; ++i) {
        carry.thresholds.clear();
        encoded = encode_ok(layout, {x, {}}, {.level = level}, carry);
        for (std::size_t k = 0; k < 7; ++k)
          mean[k] += static_cast<double>(encoded.figures.unsent_share[k]) / 8;
      }

      // rounding to a grid can make |q| a little longer than |d|
      const double real =
          std::max(0.0, 1 - encoded.figures.sent_energy / encoded.figures.difference_energy);
      CHECK(mean[static_cast<std::size_t>(level)] ==
            doctest::Approx(real).epsilon(0.05).scale(0.1));
      for (std::size_t k = 0; k < 5; ++k) CHECK(mean[k] > mean[k + 1]);
      CHECK(carry.sample == 8);
    }
  }

  TEST_CASE("the bytes of codec version 1 are what they always were") {
    // Drawn with integer and exact operations only, so that every machine draws the same.
    const Layout layout = uneven_layout();
    Hasher bytes;
    for (const Shape shape : {Shape::gaussian, Shape::ties, Shape::equal, Shape::one_hot,
                              Shape::zeros, Shape::denormal, Shape::huge}) {
      for (const Level level : kLevels) {
        Rng rng(static_cast<std::uint64_t>(shape) * 100 + static_cast<std::uint64_t>(level));
        auto x = values(layout, shape, rng);
        Carry carry;
        for (int message = 0; message < 4; ++message) {
          bytes.add(encode_ok(layout, {x, {}}, {.level = level}, carry).bytes);
          const auto drift = values(layout, Shape::gaussian, rng);
          for (std::size_t i = 0; i < x.size(); ++i) x[i] += drift[i];
        }
      }
    }

    REQUIRE(kCodecVersion == 5);
    CHECK(first_u64(bytes.finish()) == 169'840'888'264'513'171U);
  }

  TEST_CASE("messages of ResNet-50 have the sizes of the ladder") {
    const Layout layout = make_layout(resnet50());
    Rng rng(11);
    std::vector<float> table(1U << 16);
    for (float& value : table) value = 1e-4F * gaussian(rng);
    std::vector<float> x(layout.size());
    for (float& value : x) value = table[rng() >> 48];
    const double megabytes[7] = {0.205, 0.54, 1.54, 3.23, 6.43, 12.98, 25.76};

    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      Carry carry;
      const Encoded encoded = encode_ok(layout, {x, {}}, {.level = level}, carry);

      const double expected = megabytes[static_cast<std::size_t>(level)];
      CHECK(static_cast<double>(encoded.bytes.size()) / 1e6 ==
            doctest::Approx(expected).epsilon(0.01));
      CHECK(encoded.bytes.size() <= max_bytes(layout, level));
      CHECK(parse_delta(layout, level, encoded.bytes).has_value());
    }
  }
}

}  // namespace starling::gossip
