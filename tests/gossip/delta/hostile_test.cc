// A member with a valid key whose deltas are poison: nothing that it sends makes a parameter
// infinite or no number, and what no encoder makes is refused.
#include "gossip/delta/format.h"
#include "gossip/delta/replica.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>

namespace starling::gossip {

using testing::kLevels;
using testing::make_layout;
using testing::node;

namespace {

enum class Poison : std::uint8_t {
  not_a_number,
  infinite,
  negative,
  huge,
  denormal,
  zero,
  cut,
  longer,
  noise,     // indices behind the end, codes that no encoder makes, counts out of range
  all_ones,  // the largest count there is
  all_zeros,
};
constexpr std::size_t kPoisons = 11;

class Master : public MasterPort {
 public:
  explicit Master(const Layout& layout)
      : x(layout.size()), mean(layout.bn_channels()), variance(layout.bn_channels(), 1.0F) {}
  void with_master(const std::function<void(MasterView)>& job) override {
    job({x, mean, variance});
  }
  std::vector<float> x;
  std::vector<float> mean;
  std::vector<float> variance;
};

void put_scale(Bytes& bytes, std::uint16_t scale) {
  bytes.at(0) = static_cast<std::byte>(scale & 0xff);
  bytes.at(1) = static_cast<std::byte>(scale >> 8);
}

// Changes an honest delta; the first two bytes are the first block's largest scale at every level.
Bytes poisoned(Bytes bytes, Poison poison, Level level, Rng& rng) {
  switch (poison) {
    case Poison::not_a_number:
      put_scale(bytes, 0x7fc0);
      break;
    case Poison::infinite:
      put_scale(bytes, 0x7f80);
      break;
    case Poison::negative:
      put_scale(bytes, 0x8001);
      break;
    case Poison::huge:
      put_scale(bytes, level == Level::l6   ? kMaxScale8
                       : level == Level::l5 ? kMaxScale4
                                            : to_bf16(1e38F));
      break;
    case Poison::denormal:
      put_scale(bytes, 1);
      if (level < Level::l3 || level == Level::l4) bytes.at(2) = bytes.at(3) = std::byte{0};
      break;
    case Poison::zero:
      put_scale(bytes, 0);
      break;
    case Poison::cut:
      bytes.resize(rng.below(bytes.size()));
      break;
    case Poison::longer:
      bytes.resize(bytes.size() + 1 + rng.below(9), std::byte{1});
      break;
    case Poison::noise:
      for (std::size_t i = 2; i < bytes.size(); ++i)
        if (rng.below(3) == 0) bytes[i] = static_cast<std::byte>(rng.below(256));
      break;
    case Poison::all_ones:
      std::fill(bytes.begin() + 4, bytes.end(), std::byte{0xff});
      break;
    case Poison::all_zeros:
      std::fill(bytes.begin() + 4, bytes.end(), std::byte{0});
      break;
  }
  return bytes;
}

}  // namespace

TEST_SUITE("gossip/delta/hostile") {
  TEST_CASE("of ten thousand poisoned deltas none leaves a parameter that is not finite") {
    const Layout layout = make_layout({{{"w", {37, 5, 3, 3}}, {"v", {70, 50}}, {"b", {100}}}, 9});
    const EdgeEnds edge = EdgeEnds::of(node(1), node(2));
    Master victim_master(layout);
    Master sender_master(layout);
    Rng rng(20'26);
    for (float& value : sender_master.x) value = testing::gaussian(rng);
    for (std::size_t i = 0; i < layout.size(); ++i)
      if (!layout.is_real(i / kBlock, i % kBlock)) sender_master.x[i] = 0;
    const auto genesis = [](std::span<float>) {};
    Replica victim(layout, victim_master, genesis);
    Replica sender(layout, sender_master, genesis);
    REQUIRE(sender.run(GenesisJob{edge}).result.has_value());
    REQUIRE(victim.run(GenesisJob{edge}).result.has_value());
    std::map<Poison, int> taken;

    for (int i = 0; i < 10'000; ++i) {
      const auto poison = static_cast<Poison>(rng.below(kPoisons));
      const Level level = kLevels[rng.below(std::size(kLevels))];
      CAPTURE(i);
      CAPTURE(static_cast<int>(poison));
      CAPTURE(name_of(level));
      const auto honest = sender.run(OfferJob{edge, level, Statistics::without, 0});
      const auto& offer = std::get<OfferDone>(honest.result.value());
      const Payload bad{level, Statistics::without,
                        share(poisoned(*offer.payload.bytes, poison, level, rng))};
      const ExchangeTerms terms{
          .edge = edge, .own_side = Side::higher, .weight = {}, .max_norm = 0, .chain = {}};
      const auto outcome = victim.run(AnswerJob{terms, Level::l2, bad, std::nullopt});
      REQUIRE(std::ranges::all_of(victim_master.x, [](float x) { return std::isfinite(x); }));
      if (outcome.result) {
        ++taken[poison];
      } else if (outcome.result.error().code == Errc::corrupt) {
        // Finite values added up to a reference that is not: the edge is set again.
        REQUIRE(victim.run(GenesisJob{edge}).result.has_value());
        std::ranges::fill(victim_master.x, 0.0F);
      } else {
        REQUIRE(outcome.result.error().code == Errc::bad_message);
      }
    }

    for (const Poison poison :
         {Poison::not_a_number, Poison::infinite, Poison::negative, Poison::cut, Poison::longer})
      CHECK(taken[poison] == 0);
    CHECK(taken[Poison::huge] > 100);  // a norm is never refused, so that both ends keep one r
  }
}

}  // namespace starling::gossip
