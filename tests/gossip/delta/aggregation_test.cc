#include "gossip/delta/aggregation.h"

#include "gossip/delta/replica.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace starling::gossip {

using testing::make_layout;

namespace {

NodeId member_id(std::size_t number) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(number + 1);
  return id;
}

Layout model() { return make_layout({{{"w", {64, 96}}, {"b", {100}}}, 3}); }

// A replica whose parameters all have one value, and an edge with each of the others.
struct Member : MasterPort {
  Member(const Layout& layout, Aggregator aggregator)
      : x(layout.size()),
        mean(layout.bn_channels()),
        variance(layout.bn_channels(), 1.0F),
        replica(layout, *this, [](std::span<float>) {}, {.aggregator = aggregator}) {}
  void with_master(const std::function<void(MasterView)>& job) override {
    job({x, mean, variance});
  }
  void fill(const Layout& layout, float value) {
    for (std::size_t i = 0; i < layout.size(); ++i)
      x[i] = layout.is_real(i / kBlock, i % kBlock) ? value : 0.0F;
  }

  std::vector<float> x;
  std::vector<float> mean;
  std::vector<float> variance;
  Replica replica;
};

// Node 0 and its neighbours 1 to n, with edges at genesis; all at L6, which says what is.
struct Star {
  explicit Star(Aggregator aggregator, std::size_t neighbours) {
    members.push_back(std::make_unique<Member>(layout, aggregator));
    for (std::size_t k = 1; k <= neighbours; ++k) {
      members.push_back(std::make_unique<Member>(layout, Aggregator::mean));
      const EdgeEnds edge = EdgeEnds::of(member_id(0), member_id(k));
      REQUIRE(members[0]->replica.run(GenesisJob{edge}).result);
      REQUIRE(members[k]->replica.run(GenesisJob{edge}).result);
    }
  }
  // Neighbour k offers what it holds, node 0 answers.
  ExchangeDone exchange(std::size_t k, Statistics statistics = Statistics::without) {
    const EdgeEnds edge = EdgeEnds::of(member_id(0), member_id(k));
    const auto offered = members[k]->replica.run(OfferJob{edge, Level::l6, statistics, 0});
    const auto& offer = std::get<OfferDone>(offered.result.value());
    const ExchangeTerms terms{
        .edge = edge, .own_side = Side::lower, .weight = {}, .max_norm = 0, .chain = {}};
    const auto answered =
        members[0]->replica.run(AnswerJob{terms, Level::l6, offer.payload, offer.spot});
    const auto& done = std::get<ExchangeDone>(answered.result.value());
    auto theirs = terms;
    theirs.own_side = Side::higher;
    REQUIRE(
        members[k]->replica.run(ApplyJob{theirs, offer.payload, done.answer, std::nullopt}).result);
    return done;
  }
  [[nodiscard]] float value() const { return members[0]->x[0]; }

  Layout layout = model();
  std::vector<std::unique_ptr<Member>> members;
};

float middle(std::vector<float> values) { return middle_of(values); }
float trimmed(std::vector<float> values) { return trimmed_mean_of(values); }

}  // namespace

TEST_SUITE("gossip/delta/aggregation") {
  TEST_CASE("the middle of an odd and of an even number of values") {
    CHECK(middle({3}) == 3);
    CHECK(middle({5, -1, 3}) == 3);
    CHECK(middle({10, 1, 4, 2}) == 3);
    CHECK(middle({-1e38F, 1, 2, 3e38F, 1.5F}) == 1.5F);
    CHECK(middle({3e38F, 3e38F}) == 3e38F);
  }

  TEST_CASE("a trimmed mean leaves out a quarter at each end, and one at least") {
    CHECK(trimmed({4, 2}) == 3);
    CHECK(trimmed({100, 1, 2}) == 2);
    CHECK(trimmed({-100, 1, 2, 100}) == 1.5F);
    CHECK(trimmed({-100, 1, 2, 3, 100}) == 2);
    CHECK(trimmed({-100, -90, 1, 2, 3, 4, 100, 90}) == 2.5F);
  }

  TEST_CASE("increments are held until every neighbour has spoken") {
    Star star(Aggregator::median, 4);
    star.members[0]->fill(star.layout, 1);
    const float sent[] = {1.1F, 0.9F, 1.2F, 1.05F};
    for (std::size_t k = 1; k <= 4; ++k) {
      CHECK(star.value() == 1);
      star.members[k]->fill(star.layout, sent[k - 1]);
      star.exchange(k);
    }
    // Of 0.9, 1 (its own), 1.05, 1.1 and 1.2; L6 rounds to a 254th of the largest difference.
    CHECK(star.value() == doctest::Approx(1.05).epsilon(0.01));
  }

  TEST_CASE("one of four neighbours moves nothing however large it is") {
    for (const Aggregator rule : {Aggregator::median, Aggregator::trimmed}) {
      CAPTURE(name_of(rule));
      for (const float lie : {1e3F, -1e30F, 3e38F}) {
        CAPTURE(lie);
        Star star(rule, 4);
        star.members[0]->fill(star.layout, 1);
        for (std::size_t k = 1; k <= 4; ++k) {
          star.members[k]->fill(star.layout, k == 2 ? lie : 1.0F + 0.01F * static_cast<float>(k));
          star.exchange(k, Statistics::with);
        }
        for (std::size_t i = 0; i < star.layout.size(); ++i) {
          if (!star.layout.is_real(i / kBlock, i % kBlock)) {
            REQUIRE(star.members[0]->x[i] == 0);
            continue;
          }
          REQUIRE(star.members[0]->x[i] >= 0.99F);
          REQUIRE(star.members[0]->x[i] <= 1.05F);
        }
      }
    }
  }

  TEST_CASE("a neighbour that speaks often makes the others' increments count, not its own") {
    Star star(Aggregator::median, 4);
    star.members[0]->fill(star.layout, 1);
    for (std::size_t k = 1; k <= 4; ++k)
      star.members[k]->fill(star.layout, k == 1 ? 1000.0F : 1.1F);
    star.exchange(1);
    star.exchange(1);
    star.exchange(2);
    star.exchange(1);
    CHECK(star.value() == 1);  // two neighbours are no majority
    star.exchange(3);          // the third: of 1 and twice 1.1 and the lie
    CHECK(star.value() == doctest::Approx(1.1).epsilon(0.01));
  }

  TEST_CASE(
      "of three neighbours one that is silent holds nothing up, and one alone moves nothing") {
    for (const Aggregator rule : {Aggregator::median, Aggregator::trimmed}) {
      CAPTURE(name_of(rule));
      Star star(rule, 3);
      star.members[0]->fill(star.layout, 1);
      star.members[1]->fill(star.layout, 1000);
      star.members[2]->fill(star.layout, 1.1F);
      star.exchange(1);
      star.exchange(1);
      CHECK(star.value() == 1);
      star.exchange(2);  // of 1 (its own), 1.1 and the lie
      CHECK(star.value() == doctest::Approx(1.1).epsilon(0.01));
    }
  }

  TEST_CASE("of two neighbours neither moves anything without the other") {
    Star star(Aggregator::median, 2);
    star.members[0]->fill(star.layout, 1);
    for (std::size_t k = 1; k <= 2; ++k) star.members[k]->fill(star.layout, 1.1F);
    for (int i = 0; i < 5; ++i) star.exchange(1);
    CHECK(star.value() == 1);
    star.exchange(2);
    CHECK(star.value() > 1);
  }

  TEST_CASE("an edge that is dropped takes what it said with it") {
    Star star(Aggregator::median, 3);
    star.members[0]->fill(star.layout, 1);
    for (std::size_t k = 1; k <= 3; ++k) star.members[k]->fill(star.layout, 1.1F);
    star.exchange(1);
    (void)star.members[0]->replica.run(DropJob{EdgeEnds::of(member_id(0), member_id(1))});
    star.exchange(2);
    CHECK(star.value() == 1);
    star.exchange(3);
    CHECK(star.value() == doctest::Approx(1.1).epsilon(0.01));
  }

  TEST_CASE("statistics that are out of reason are clipped and told, unless nothing is") {
    for (const Aggregator rule : {Aggregator::mean, Aggregator::unguarded}) {
      CAPTURE(name_of(rule));
      Star star(rule, 1);
      star.members[0]->fill(star.layout, 1);
      star.members[1]->fill(star.layout, 1);
      star.members[1]->mean[2] = 1e6F;
      const ExchangeDone done = star.exchange(1, Statistics::with);
      CHECK(done.channels_clipped == (rule == Aggregator::mean ? 1 : 0));
      CHECK((star.members[0]->mean[2] < 3) == (rule == Aggregator::mean));  // half of 4 sqrt(2)
      CHECK(done.scale == 1);
    }
  }

  TEST_CASE("statistics of a neighbour are pooled only by who trusts it") {
    for (const Aggregator rule : {Aggregator::mean, Aggregator::clip, Aggregator::trimmed}) {
      CAPTURE(name_of(rule));
      Star star(rule, 1);
      star.members[0]->fill(star.layout, 1);
      star.members[1]->fill(star.layout, 1);
      star.members[1]->mean.assign(3, 1e3F);
      star.exchange(1, Statistics::with);
      CHECK((star.members[0]->mean[0] > 1) == (rule == Aggregator::mean));
    }
  }
}

}  // namespace starling::gossip
