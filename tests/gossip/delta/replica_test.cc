#include "gossip/delta/replica.h"

#include "node/base/tree_hash.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace starling::gossip {

using testing::energy;
using testing::kLevels;
using testing::make_layout;
using testing::node;
using testing::same_bits;
using testing::Shape;
using testing::values;

namespace {

// What one thread takes of a payload for the chain.
constexpr std::size_t kPart = TreeHash::kPart;

Layout small_model() {
  return make_layout({{{"w", {37, 5, 3, 3}}, {"v", {70, 50}}, {"b", {100}}}, 9});
}

void fill_genesis(const Layout& layout, std::span<float> out) {
  Rng rng(1);
  const auto start = values(layout, Shape::gaussian, rng);
  std::ranges::copy(start, out.begin());
}

// A node in a test: parameters, statistics, replica.
class Node : public MasterPort {
 public:
  Node(const Layout& layout, std::uint64_t seed, ReplicaOptions options = {})
      : layout_(layout),
        rng_(seed),
        x(layout.size()),
        mean(layout.bn_channels()),
        variance(layout.bn_channels(), 1.0F),
        replica(
            layout, *this, [&layout](std::span<float> out) { fill_genesis(layout, out); },
            options) {
    fill_genesis(layout, x);
  }

  void with_master(const std::function<void(MasterView)>& job) override {
    ++leases;
    job({x, mean, variance});
  }

  void train(int changes) {
    for (int i = 0; i < changes; ++i) {
      const std::size_t at = rng_.below(layout_.size());
      if (layout_.is_real(at / kBlock, at % kBlock)) x[at] += testing::gaussian(rng_) * 1e-2F;
    }
    for (float& value : mean) value += testing::gaussian(rng_) * 1e-2F;
    for (float& value : variance) value = static_cast<float>(rng_.unit());
  }

  template <class Done>
  Done done(const CodecJob& job) {
    auto outcome = replica.run(job);
    if (!outcome.result) FAIL(to_string(outcome.result.error()));
    REQUIRE(std::holds_alternative<Done>(*outcome.result));
    return std::get<Done>(*std::move(outcome.result));
  }
  Errc refused(const CodecJob& job) {
    const auto outcome = replica.run(job);
    REQUIRE_FALSE(outcome.result.has_value());
    return outcome.result.error().code;
  }

 private:
  const Layout& layout_;
  Rng rng_;

 public:
  std::vector<float> x;
  std::vector<float> mean;
  std::vector<float> variance;
  Replica replica;
  int leases = 0;
};

const EdgeEnds kEdge = EdgeEnds::of(node(1), node(2));

// Two nodes with an open edge at genesis.
struct Pair {
  Layout layout = small_model();
  Node lower;
  Node higher;
  Hash lower_chain;
  Hash higher_chain;

  explicit Pair(ReplicaOptions options = {})
      : lower{layout, 11, options}, higher{layout, 12, options} {
    lower_chain = lower.done<ReferenceSet>(GenesisJob{kEdge}).reference;
    higher_chain = higher.done<ReferenceSet>(GenesisJob{kEdge}).reference;
  }

  ExchangeTerms terms(Side side, Weight weight = {}) const {
    return {.edge = kEdge,
            .own_side = side,
            .weight = weight,
            .max_norm = 0,
            .chain = side == Side::lower ? lower_chain : higher_chain};
  }

  // The lower end offers, the higher one answers, the lower one applies.
  void answered(Level offer_level, Level answer_level, Statistics statistics, Weight weight) {
    const auto offer = lower.done<OfferDone>(OfferJob{kEdge, offer_level, statistics, 1});
    lower.train(5);  // the answer takes a while
    const auto answered = higher.done<ExchangeDone>(
        AnswerJob{terms(Side::higher, weight), answer_level, offer.payload, offer.spot});
    const auto applied = lower.done<ExchangeDone>(
        ApplyJob{terms(Side::lower, weight), offer.payload, answered.answer, std::nullopt});
    CHECK(answered.norm == applied.norm);
    CHECK(applied.answer.bytes == nullptr);
    higher_chain = answered.chain;
    lower_chain = applied.chain;
  }

  // Both offer at once, each takes the other's offer for the answer.
  void crossed(Level lower_level, Level higher_level, Statistics statistics, Weight weight) {
    const auto a = lower.done<OfferDone>(OfferJob{kEdge, lower_level, statistics, 0});
    const auto b = higher.done<OfferDone>(OfferJob{kEdge, higher_level, statistics, 0});
    lower_chain =
        lower.done<ExchangeDone>(ApplyJob{terms(Side::lower, weight), a.payload, b.payload, b.spot})
            .chain;
    higher_chain =
        higher
            .done<ExchangeDone>(ApplyJob{terms(Side::higher, weight), b.payload, a.payload, a.spot})
            .chain;
  }
};

}  // namespace

TEST_SUITE("gossip/delta/replica") {
  TEST_CASE("edges open at genesis with the same reference and the same start of the chain") {
    Pair pair;

    CHECK(pair.lower_chain == pair.higher_chain);
    CHECK(pair.lower_chain == tree_hash_of(std::as_bytes(pair.lower.replica.reference(kEdge))));
    CHECK(same_bits(pair.lower.replica.reference(kEdge), pair.lower.x));
    CHECK(pair.lower.leases == 0);
  }

  TEST_CASE("random exchanges leave both ends with one reference and one chain") {
    Pair pair;
    Rng rng(21);
    for (int i = 0; i < 1'500; ++i) {
      pair.lower.train(20);
      pair.higher.train(20);
      const Level a = kLevels[rng.below(7)];
      const Level b = kLevels[rng.below(7)];
      const Statistics statistics = i % 16 == 0 ? Statistics::with : Statistics::without;
      const Weight weight{static_cast<std::uint8_t>(1 + rng.below(64))};

      if (rng.chance(0.3))
        pair.crossed(a, b, statistics, weight);
      else
        pair.answered(a, b, statistics, weight);

      REQUIRE(pair.lower_chain == pair.higher_chain);
      if (!same_bits(pair.lower.replica.reference(kEdge), pair.higher.replica.reference(kEdge)))
        FAIL("references differ after exchange ", i);
    }
  }

  TEST_CASE("an answer with statistics pools both ends to the same ones") {
    Pair pair;
    pair.lower.train(3);
    pair.higher.train(3);

    pair.crossed(Level::l2, Level::l2, Statistics::with, {});

    CHECK(pair.lower.mean == pair.higher.mean);
    CHECK(pair.lower.variance == pair.higher.variance);
  }

  TEST_CASE("an answer takes one lease, so it encodes the x that its increment changes") {
    Pair pair;
    pair.lower.train(50);
    const auto offer = pair.lower.done<OfferDone>(OfferJob{kEdge, Level::l2, Statistics::with, 0});
    const int before = pair.higher.leases;

    (void)pair.higher.done<ExchangeDone>(
        AnswerJob{pair.terms(Side::higher), Level::l3, offer.payload, offer.spot});

    CHECK(pair.higher.leases == before + 1);
  }

  TEST_CASE("an increment above the norm is clipped, the reference is not") {
    Pair pair;
    pair.lower.train(400);
    const auto x = pair.higher.x;
    const auto offer =
        pair.lower.done<OfferDone>(OfferJob{kEdge, Level::l6, Statistics::without, 0});
    auto terms = pair.terms(Side::higher);
    terms.max_norm = 0.01F;

    const auto answered =
        pair.higher.done<ExchangeDone>(AnswerJob{terms, Level::l6, offer.payload, offer.spot});
    (void)pair.lower.done<ExchangeDone>(
        ApplyJob{pair.terms(Side::lower), offer.payload, answered.answer, std::nullopt});

    CHECK(answered.norm > 0.01F);
    CHECK(answered.scale == doctest::Approx(0.01 / static_cast<double>(answered.norm)));
    std::vector<float> moved = pair.higher.x;
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] -= x[i];
    CHECK(std::sqrt(energy(moved)) == doctest::Approx(0.005).epsilon(0.001));
    CHECK(same_bits(pair.lower.replica.reference(kEdge), pair.higher.replica.reference(kEdge)));
  }

  TEST_CASE("of an increment of four times the norm, whoever clips against liars adds a quarter") {
    float norm = 0;
    for (const bool limited : {false, true}) {
      Pair pair({.aggregator = Aggregator::clip});
      pair.lower.train(400);
      const auto x = pair.higher.x;
      const auto offer =
          pair.lower.done<OfferDone>(OfferJob{kEdge, Level::l6, Statistics::without, 0});
      auto terms = pair.terms(Side::higher);
      if (limited) terms.max_norm = norm / 4;

      const auto answered =
          pair.higher.done<ExchangeDone>(AnswerJob{terms, Level::l6, offer.payload, offer.spot});

      norm = answered.norm;
      CHECK(answered.scale == doctest::Approx(limited ? 1.0 / 16 : 1.0));
      std::vector<float> moved = pair.higher.x;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] -= x[i];
      // Half of a quarter of the norm, which is a quarter of the difference itself.
      const double added = static_cast<double>(norm) / 2 * (limited ? 1.0 / 16 : 1.0);
      CHECK(std::sqrt(energy(moved)) == doctest::Approx(added).epsilon(0.001));
    }
  }

  TEST_CASE("the clip begins at the norm itself, not at its bound") {
    for (const float share : {0.999F, 1.001F, 3.0F}) {
      CAPTURE(share);
      float norm = 0;
      for (const bool limited : {false, true}) {
        Pair pair;
        pair.lower.train(400);
        const auto offer =
            pair.lower.done<OfferDone>(OfferJob{kEdge, Level::l2, Statistics::without, 0});
        auto terms = pair.terms(Side::higher);
        if (limited) terms.max_norm = share * norm;

        const auto answered =
            pair.higher.done<ExchangeDone>(AnswerJob{terms, Level::l2, offer.payload, offer.spot});

        CHECK((answered.scale < 1) == (limited && share < 1));
        norm = answered.norm;
      }
    }
  }

  TEST_CASE("what the own delta makes too much of an answer is not added either") {
    for (const Aggregator aggregator : {Aggregator::mean, Aggregator::clip}) {
      Pair pair({.aggregator = aggregator});
      pair.higher.train(400);
      const auto x = pair.higher.x;
      const auto offer =
          pair.lower.done<OfferDone>(OfferJob{kEdge, Level::l2, Statistics::without, 0});
      auto terms = pair.terms(Side::higher);
      terms.max_norm = 0.05F;

      const auto answered =
          pair.higher.done<ExchangeDone>(AnswerJob{terms, Level::l2, offer.payload, offer.spot});
      (void)pair.lower.done<ExchangeDone>(
          ApplyJob{pair.terms(Side::lower), offer.payload, answered.answer, std::nullopt});

      const double share = 0.05 / static_cast<double>(answered.norm);
      CHECK(share < 0.7);
      const double scale = aggregator == Aggregator::clip ? share * share : share;
      CHECK(answered.scale == doctest::Approx(scale));
      std::vector<float> moved = pair.higher.x;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] -= x[i];
      CHECK(std::sqrt(energy(moved)) ==
            doctest::Approx(scale * static_cast<double>(answered.norm) / 2).epsilon(0.001));
      CHECK(same_bits(pair.lower.replica.reference(kEdge), pair.higher.replica.reference(kEdge)));
    }
  }

  TEST_CASE("an answer that cannot be sent leaves no reference that could differ") {
    const Layout layout = make_layout({{{"w", {3 * kBlock, 1}}}, 0});
    Node lower(layout, 1);
    Node higher(layout, 2);
    (void)lower.done<ReferenceSet>(GenesisJob{kEdge});
    (void)higher.done<ReferenceSet>(GenesisJob{kEdge});
    const ExchangeTerms terms{
        .edge = kEdge, .own_side = Side::higher, .weight = {}, .max_norm = 0, .chain = {}};
    lower.train(500);
    const auto offer = lower.done<OfferDone>(OfferJob{kEdge, Level::l2, Statistics::without, 0});
    higher.x[kBlock + 1] = std::numeric_limits<float>::quiet_NaN();  // not in the first block

    const AnswerJob answer{terms, Level::l2, offer.payload, offer.spot};
    CHECK(higher.refused(answer) == Errc::diverged);

    CHECK(higher.refused(answer) == Errc::not_found);
    const auto snapshot = lower.done<ReferenceSet>(SnapshotJob{kEdge});
    (void)higher.done<ReferenceSet>(InstallJob{kEdge, snapshot.bytes, snapshot.reference});
    CHECK(same_bits(lower.replica.reference(kEdge), higher.replica.reference(kEdge)));
  }

  TEST_CASE("a spot that differs refuses the exchange and changes nothing") {
    Pair pair;
    pair.lower.train(50);
    auto offer = pair.lower.done<OfferDone>(OfferJob{kEdge, Level::l2, Statistics::without, 1});
    const auto x = pair.higher.x;
    const auto reference = pair.higher.replica.reference(kEdge);
    const std::vector<float> r(reference.begin(), reference.end());

    offer.spot.hash.bytes[5] ^= std::byte{1};
    CHECK(pair.higher.refused(AnswerJob{pair.terms(Side::higher), Level::l2, offer.payload,
                                        offer.spot}) == Errc::corrupt);
    offer.spot.block = 1'000'000;
    CHECK(pair.higher.refused(AnswerJob{pair.terms(Side::higher), Level::l2, offer.payload,
                                        offer.spot}) == Errc::bad_message);

    CHECK(same_bits(pair.higher.x, x));
    CHECK(same_bits(pair.higher.replica.reference(kEdge), r));
  }

  TEST_CASE("malformed payloads and a replica that diverged change nothing") {
    Pair pair;
    pair.lower.train(50);
    const auto offer = pair.lower.done<OfferDone>(OfferJob{kEdge, Level::l2, Statistics::with, 0});
    Bytes cut = *offer.payload.bytes;
    cut.pop_back();
    const Payload bad{Level::l2, Statistics::with, share(std::move(cut))};
    auto& higher = pair.higher;
    const auto x = higher.x;
    const auto mean = higher.mean;
    const auto reference = higher.replica.reference(kEdge);
    const std::vector<float> r(reference.begin(), reference.end());

    CHECK(higher.refused(AnswerJob{pair.terms(Side::higher), Level::l2, bad, offer.spot}) ==
          Errc::bad_message);
    CHECK(higher.refused(ApplyJob{pair.terms(Side::higher), offer.payload, bad, offer.spot}) ==
          Errc::bad_message);
    CHECK(same_bits(higher.x, x));

    higher.x[3] = std::numeric_limits<float>::quiet_NaN();
    CHECK(higher.refused(OfferJob{kEdge, Level::l2, Statistics::without, 0}) == Errc::diverged);
    CHECK(higher.refused(SnapshotJob{kEdge}) == Errc::diverged);
    higher.x[3] = x[3];
    higher.variance[2] = -1;
    CHECK(higher.refused(AnswerJob{pair.terms(Side::higher), Level::l2, offer.payload,
                                   offer.spot}) == Errc::diverged);

    CHECK(same_bits(higher.x, x));
    CHECK(higher.mean == mean);
    CHECK(same_bits(higher.replica.reference(kEdge), r));
  }

  TEST_CASE("a snapshot opens an edge at the same reference, a damaged one does not") {
    const Layout layout = small_model();
    Node sender(layout, 1);
    Node receiver(layout, 2);
    sender.train(500);
    const auto snapshot = sender.done<ReferenceSet>(SnapshotJob{kEdge});
    REQUIRE(snapshot.bytes != nullptr);

    const auto installed =
        receiver.done<ReferenceSet>(InstallJob{kEdge, snapshot.bytes, snapshot.reference});
    CHECK(installed.reference == snapshot.reference);
    CHECK(installed.bytes == nullptr);
    CHECK(same_bits(sender.replica.reference(kEdge), receiver.replica.reference(kEdge)));
    CHECK(energy(sender.replica.reference(kEdge)) ==
          doctest::Approx(energy(sender.x)).epsilon(0.01));

    Bytes other = *snapshot.bytes;
    other[40] ^= std::byte{1};
    CHECK(receiver.refused(InstallJob{kEdge, share(other), snapshot.reference}) == Errc::corrupt);
    CHECK(receiver.replica.reference(kEdge).empty());
    other.pop_back();
    CHECK(receiver.refused(InstallJob{kEdge, share(other), snapshot.reference}) ==
          Errc::bad_message);
    CHECK(receiver.refused(InstallJob{kEdge, nullptr, snapshot.reference}) == Errc::bad_message);
    CHECK(receiver.replica.edges() == 0);
  }

  TEST_CASE("a snapshot replaces a reference that lost its way") {
    Pair pair;
    pair.lower.train(50);
    pair.answered(Level::l2, Level::l4, Statistics::without, {});
    const auto snapshot = pair.lower.done<ReferenceSet>(SnapshotJob{kEdge});

    (void)pair.higher.done<ReferenceSet>(InstallJob{kEdge, snapshot.bytes, snapshot.reference});
    pair.lower_chain = pair.higher_chain = snapshot.reference;
    pair.answered(Level::l2, Level::l4, Statistics::without, {});

    CHECK(same_bits(pair.lower.replica.reference(kEdge), pair.higher.replica.reference(kEdge)));
    CHECK(pair.lower_chain == pair.higher_chain);
  }

  TEST_CASE("jobs of an edge without a reference are refused, dropping one is not") {
    const Layout layout = small_model();
    Node one(layout, 1);

    CHECK(one.refused(OfferJob{kEdge, Level::l2, Statistics::without, 0}) == Errc::not_found);
    CHECK(one.refused(AnswerJob{}) == Errc::not_found);
    CHECK(one.refused(ApplyJob{}) == Errc::not_found);
    (void)one.done<ReferenceDropped>(DropJob{kEdge});
    (void)one.done<ReferenceSet>(GenesisJob{kEdge});
    CHECK(one.replica.edges() == 1);
    (void)one.done<ReferenceDropped>(DropJob{kEdge});
    CHECK(one.replica.edges() == 0);
    CHECK(one.leases == 0);
  }

  TEST_CASE("the chain depends on the chain, on every byte of both payloads and on their order") {
    const Bytes a(2 * kPart + 5, std::byte{1});
    const Bytes b(7, std::byte{2});
    const Hash chain = next_chain({}, a, b);

    CHECK(chain != next_chain({}, b, a));
    CHECK(chain != next_chain(chain, a, b));
    for (const std::size_t at : {std::size_t{0}, kPart, a.size() - 1}) {
      Bytes other = a;
      other[at] ^= std::byte{4};
      CHECK(chain != next_chain({}, other, b));
      CHECK(next_chain({}, b, a) != next_chain({}, b, other));
    }
  }

  TEST_CASE("a byte that goes from one end's payload to the other's changes the chain") {
    const Bytes all(3 * kPart, std::byte{1});
    const ByteView view(all);

    std::set<Hash> chains;
    for (const std::size_t cut :
         {std::size_t{0}, std::size_t{1}, kPart, kPart + 1, 2 * kPart, all.size()})
      chains.insert(next_chain({}, view.first(cut), view.subspan(cut)));
    CHECK(chains.size() == 6);
  }

  TEST_CASE("the chain is the same whoever hashes the parts, and in whatever order") {
    Rng rng(7);
    Bytes a(3 * kPart + 1);
    for (std::byte& byte : a) byte = static_cast<std::byte>(rng() & 255);
    const Bytes b(kPart, std::byte{3});
    const ForEachPart backwards = [](std::size_t parts, const auto& job) {
      for (std::size_t part = parts; part > 0; --part) job(part - 1);
    };

    CHECK(next_chain({}, a, b, backwards) == next_chain({}, a, b));
    CHECK(next_chain({}, b, {}, backwards) == next_chain({}, b, {}));
  }

  TEST_CASE("edges do not touch one another") {
    const Layout layout = small_model();
    Node one(layout, 1);
    const EdgeEnds other = EdgeEnds::of(node(1), node(3));
    (void)one.done<ReferenceSet>(GenesisJob{kEdge});
    const auto genesis = one.done<ReferenceSet>(GenesisJob{other}).reference;
    one.train(30);

    const auto offer = one.done<OfferDone>(OfferJob{kEdge, Level::l5, Statistics::without, 0});
    (void)one.done<ExchangeDone>(
        ApplyJob{{.edge = kEdge, .own_side = Side::lower, .weight = {}, .max_norm = 0, .chain = {}},
                 offer.payload,
                 offer.payload,
                 std::nullopt});

    CHECK(tree_hash_of(std::as_bytes(one.replica.reference(other))) == genesis);
    CHECK(tree_hash_of(std::as_bytes(one.replica.reference(kEdge))) != genesis);
  }
}

}  // namespace starling::gossip
