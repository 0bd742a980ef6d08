#include "gossip/delta/parts.h"

#include "gossip/delta/codec.h"
#include "gossip/delta/exchange.h"
#include "node/base/team.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

namespace starling::gossip {

using testing::plain_layout;
using testing::same_bits;
using testing::Shape;
using testing::values;

namespace {

ForEachPart shared_by(Team& team) {
  return [&team](std::size_t parts, const auto& job) { team.share(parts, job); };
}

}  // namespace

TEST_SUITE("gossip/delta/parts") {
  TEST_CASE("whoever takes the parts of a model, bytes, figures and values are the same bits") {
    const Layout layout = plain_layout(2 * kPartBlocks + 3);
    const ForEachPart backwards = [](std::size_t parts, const auto& job) {
      for (std::size_t part = parts; part > 0; --part) job(part - 1);
    };
    Team team("test", 4);
    const ForEachPart together = shared_by(team);
    Rng rng(5);
    const auto x = values(layout, Shape::mixed, rng);
    const auto r = values(layout, Shape::gaussian, rng);
    for (const Level level : {Level::l0, Level::l2, Level::l4, Level::l6}) {
      CAPTURE(name_of(level));
      Carry carry;
      const auto expected = encode(layout, {x, r}, {.level = level}, carry);
      REQUIRE(expected.has_value());
      const auto view = parse_delta(layout, level, expected->bytes);
      REQUIRE(view.has_value());
      Carry their_carry;
      const auto theirs = encode(layout, {r, x}, {.level = level}, their_carry);
      const auto their_view = parse_delta(layout, level, theirs.value().bytes);
      const DeltaPair pair{*view, their_view.value(), Side::lower};
      auto x_alone = x;
      auto r_alone = r;
      const double norm = apply_exchange(pair, 0.5F, {x_alone, r_alone}, detected_isa());
      CHECK(difference_norm(pair, detected_isa()) == norm);

      for (const ForEachPart* parts : {&backwards, &together}) {
        Carry other_carry;
        const auto encoded = encode(layout, {x, r}, {.level = level, .parts = parts}, other_carry);
        REQUIRE(encoded.has_value());
        CHECK(encoded->bytes == expected->bytes);
        CHECK(encoded->offsets == expected->offsets);
        CHECK(encoded->figures.sent_energy == expected->figures.sent_energy);
        CHECK(encoded->figures.difference_energy == expected->figures.difference_energy);
        CHECK(encoded->figures.unsent_share == expected->figures.unsent_share);
        CHECK(same_bits(other_carry.thresholds, carry.thresholds));
        auto x_shared = x;
        auto r_shared = r;
        CHECK(apply_exchange(pair, 0.5F, {x_shared, r_shared}, detected_isa(), *parts) == norm);
        CHECK(same_bits(x_shared, x_alone));
        CHECK(same_bits(r_shared, r_alone));
        auto x_once = x;
        auto r_once = r;
        Carry carry_once;
        const auto answered = encode_and_apply({*their_view, Side::lower, 0.5F}, {x_once, r_once},
                                               {.level = level, .parts = parts}, carry_once);
        REQUIRE(answered.has_value());
        CHECK(answered->own.bytes == expected->bytes);
        CHECK(answered->norm == norm);
        CHECK(same_bits(x_once, x_alone));
        CHECK(same_bits(r_once, r_alone));
      }
    }
  }

  TEST_CASE("of several parts that cannot be sent the first is named") {
    const Layout layout = plain_layout(2 * kPartBlocks + 3);
    std::vector<float> x(layout.size());
    x[(kPartBlocks + 7) * kBlock] = std::numeric_limits<float>::quiet_NaN();
    x[(2 * kPartBlocks + 1) * kBlock] = std::numeric_limits<float>::infinity();
    Team team("test", 3);
    const ForEachPart together = shared_by(team);
    Carry carry;
    const auto refused = encode(layout, {x, {}}, {.parts = &together}, carry);
    REQUIRE_FALSE(refused.has_value());
    CHECK(to_string(refused.error()).contains(std::to_string(kPartBlocks + 7)));
    CHECK(carry.thresholds.empty());
  }
}

}  // namespace starling::gossip
