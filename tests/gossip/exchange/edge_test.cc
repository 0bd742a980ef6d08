#include "gossip/exchange/edge.h"

#include "tests/gossip/exchange/pair.h"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("gossip/exchange/edge");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

// --- opening ------------------------------------------------------------------------------------

TEST_CASE("an edge between young replicas opens at the genesis without bytes") {
  Pair pair;
  pair.connect();

  pair.low.open();
  CHECK(pair.low.job<GenesisJob>() != nullptr);
  pair.low.finish_job();
  const auto open = pair.low.take<EdgeOpen>();
  REQUIRE(open.has_value());
  CHECK(open->snapshot == nullptr);
  CHECK(pair.low.edge.state() == EdgeState::opening);
  pair.high.receive(*open);
  CHECK(pair.high.edge.state() == EdgeState::accepting);
  pair.run();

  CHECK(pair.low.edge.state() == EdgeState::open);
  CHECK(pair.high.edge.state() == EdgeState::open);
  CHECK(pair.low.edge.generation() == Generation{1});
  CHECK(pair.high.edge.chain() == pair.low.edge.chain());
}

TEST_CASE("an edge of an older replica opens by snapshot") {
  Pair pair;
  pair.low.node.replica.age = 5000;
  pair.connect();

  pair.low.open();

  CHECK(pair.low.job<SnapshotJob>() != nullptr);
  pair.run();
  CHECK(pair.high.edge.state() == EdgeState::open);
  CHECK(pair.high.edge.peer_age() == 5000);
}

TEST_CASE("an older replica answers an opening at the genesis with its own snapshot") {
  Pair pair;
  pair.high.node.replica.age = 5000;
  pair.connect();

  pair.low.open();
  pair.run();

  CHECK(pair.low.edge.state() == EdgeState::open);
  CHECK(pair.high.edge.state() == EdgeState::open);
  CHECK(pair.low.edge.generation() == Generation{2});
  CHECK(pair.high.last<EdgeOpened>()->mode == OpenMode::snapshot);
}

TEST_CASE("of two openings that cross that of the lower id stands") {
  Pair pair;
  pair.connect();
  for (End* end : {&pair.low, &pair.high}) {
    end->node.replica.age = 5000;
    end->open();
    end->finish_job();
  }
  const auto from_low = pair.low.take<EdgeOpen>();
  const auto from_high = pair.high.take<EdgeOpen>();
  REQUIRE(from_low.has_value());
  REQUIRE(from_high.has_value());

  pair.low.receive(*from_high);
  pair.high.receive(*from_low);

  CHECK(pair.low.edge.state() == EdgeState::opening);
  CHECK(pair.high.edge.state() == EdgeState::accepting);
  pair.run();
  CHECK(pair.low.edge.state() == EdgeState::open);
  CHECK(pair.high.edge.state() == EdgeState::open);
  CHECK(pair.low.count<EdgeOpened>() == 1);
}

TEST_CASE("an opening with a generation that is not new is refused with the known one") {
  Pair pair;
  pair.open();
  pair.high.close(CloseReason::not_wanted);
  pair.high.finish_jobs();
  pair.high.out.send.clear();

  EdgeOpen again;
  again.generation = {1};
  pair.high.receive(again);

  const auto close = pair.high.take<EdgeClose>();
  REQUIRE(close.has_value());
  CHECK(close->reason == CloseReason::stale_generation);
  CHECK(close->generation == Generation{1});
}

TEST_CASE("an opening that admission refuses leaves both ends closed") {
  Pair pair;
  pair.connect();
  pair.low.open();
  pair.low.finish_job();
  const auto open = pair.low.take<EdgeOpen>();
  REQUIRE(open.has_value());

  pair.high.receive(*open, {.refuse_open = CloseReason::full});
  pair.run();

  CHECK(pair.high.edge.state() == EdgeState::closed);
  CHECK(pair.low.edge.state() == EdgeState::closed);
  CHECK(pair.low.last<EdgeWasClosed>()->reason == CloseReason::full);
}

TEST_CASE("a genesis of other settings ends the opening") {
  Pair pair;
  pair.connect();
  pair.low.open();
  pair.low.finish_job(ReferenceSet{hash_of(as_bytes("other genesis")), nullptr});
  pair.run();

  CHECK(pair.low.edge.state() == EdgeState::closed);
  CHECK(pair.low.last<EdgeWasClosed>()->reason == CloseReason::genesis_differs);
}

TEST_CASE("a snapshot that does not decode ends the opening and is counted") {
  Pair pair;
  pair.low.node.replica.age = 5000;
  pair.connect();
  pair.low.open();
  pair.low.finish_job();
  pair.high.receive(*pair.low.take<EdgeOpen>());

  pair.high.finish_job(failed_job(Errc::corrupt));

  CHECK(pair.high.edge.state() == EdgeState::closed);
  CHECK(pair.high.count<PayloadRefused>() == 1);
  CHECK(pair.high.take<EdgeClose>()->reason == CloseReason::bad_snapshot);
}

TEST_CASE("an opening without a reply times out") {
  Pair pair;
  pair.connect();
  pair.low.open();
  pair.low.finish_job();
  CHECK(pair.low.edge.next_deadline() == pair.low.now + 5min);

  pair.low.tick(5min);

  CHECK(pair.low.edge.state() == EdgeState::closed);
  CHECK(pair.low.last<EdgeWasClosed>()->reason == CloseReason::timed_out);
}

TEST_CASE("a session that ends while an edge is opened leaves it closed") {
  Pair pair;
  pair.connect();
  pair.low.open();

  pair.low.session_down();

  CHECK(pair.low.edge.state() == EdgeState::closed);
  pair.low.finish_job();  // the genesis job, whose outcome says nothing any more
  CHECK(pair.low.job<DropJob>() != nullptr);
  pair.low.finish_job();
  CHECK_FALSE(pair.low.edge.job_running());
}

// --- exchanging ---------------------------------------------------------------------------------

TEST_CASE("an exchange moves both ends on by one") {
  Pair pair;
  pair.open();

  const Offer offer = offer_from(pair.low);
  CHECK(offer.spot.block == 0);
  pair.high.receive(offer);
  const auto* job = pair.high.job<AnswerJob>();
  REQUIRE(job != nullptr);
  CHECK(job->terms.weight.of_128 == 64);
  CHECK(job->terms.own_side == Side::higher);
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.high.edge.seq() == Seq{1});
  CHECK(pair.low.edge.chain() == pair.high.edge.chain());
  CHECK(pair.low.last<Exchanged>()->role == Role::initiator);
  CHECK(pair.high.last<Exchanged>()->role == Role::responder);
  CHECK(offer_from(pair.low).spot.block == 1);
}

TEST_CASE("two offers that cross are one exchange with the smaller weight") {
  Pair pair;
  pair.open();
  Offer from_low = offer_from(pair.low);
  Offer from_high = offer_from(pair.high);
  from_low.expected_wait = 16;  // what the other end gets; the sender knows it too

  pair.high.receive(from_low);
  pair.low.receive(from_high);

  const auto* at_high = pair.high.job<ApplyJob>();
  REQUIRE(at_high != nullptr);
  CHECK(at_high->terms.weight.of_128 == 16);
  REQUIRE(pair.low.job<ApplyJob>() != nullptr);
  pair.run();
  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.high.edge.seq() == Seq{1});
  CHECK(pair.high.last<Exchanged>()->role == Role::crossing);
  CHECK_FALSE(pair.low.edge.offering());
}

TEST_CASE("an offer is answered Busy and void at both ends") {
  Pair pair;
  pair.open();
  const Offer offer = offer_from(pair.low);

  pair.high.receive(offer, {.refuse_open = {}, .answering = Admission::Answering::busy});
  const auto busy = pair.high.take<Busy>();
  REQUIRE(busy.has_value());
  CHECK(busy->offer == name_of_offer(offer));
  pair.low.receive(*busy);

  CHECK_FALSE(pair.low.edge.offering());
  CHECK(pair.low.edge.may_offer());
  const Offer second = offer_from(pair.low);
  CHECK(second.seq == offer.seq);
  CHECK(name_of_offer(second) != name_of_offer(offer));
}

TEST_CASE("a Busy that names another offer is ignored") {
  Pair pair;
  pair.open();
  const Offer offer = offer_from(pair.low);

  pair.low.receive(Busy{offer.generation, offer.seq, hash_of(as_bytes("another")), 1s});

  CHECK(pair.low.edge.offering());
}

TEST_CASE("an offer that crosses an own one is never refused") {
  Pair pair;
  pair.open();
  const Offer from_low = offer_from(pair.low);
  (void)offer_from(pair.high);

  pair.high.receive(from_low, {.refuse_open = {}, .answering = Admission::Answering::busy});

  CHECK(pair.high.job<ApplyJob>() != nullptr);
  CHECK_FALSE(pair.high.take<Busy>().has_value());
}

TEST_CASE("an offer that comes while an own one is encoded crosses it") {
  Pair pair;
  pair.open();
  const Offer from_low = offer_from(pair.low);
  pair.high.offer();

  pair.high.receive(from_low);
  CHECK(pair.high.edge.job_running());
  pair.high.finish_job();

  CHECK(pair.high.take<Offer>().has_value());
  CHECK(pair.high.job<ApplyJob>() != nullptr);
}

TEST_CASE("a second copy of an offer gets the kept answer again") {
  Pair pair;
  pair.open();
  const Offer offer = offer_from(pair.low);
  const Answer first = answer_from(pair.high, offer);

  pair.high.receive(offer);

  const auto second = pair.high.take<Answer>();
  REQUIRE(second.has_value());
  CHECK(second->payload.bytes == first.payload.bytes);
  CHECK_FALSE(pair.high.has_job());
}

TEST_CASE("a second copy of an answer changes nothing") {
  Pair pair;
  pair.open();
  const Answer answer = answer_from(pair.high, offer_from(pair.low));
  pair.low.receive(answer);
  pair.low.finish_job();

  pair.low.receive(answer);

  CHECK_FALSE(pair.low.has_job());
  CHECK(pair.low.edge.seq() == Seq{1});
}

TEST_CASE("the weight falls with the wait") {
  CHECK(weight_for(0).of_128 == 64);
  CHECK(weight_for(4).of_128 == 64);
  CHECK(weight_for(8).of_128 == 32);
  CHECK(weight_for(16).of_128 == 16);
  CHECK(weight_for(1e6).of_128 == 1);
}

TEST_CASE("ages are averaged and their sum stays") {
  Pair pair;
  pair.open();
  pair.low.node.replica.age = 90;
  pair.high.node.replica.age = 50;

  pair.low.offer();
  pair.run();

  CHECK(pair.low.node.replica.age == doctest::Approx(70));
  CHECK(pair.high.node.replica.age == doctest::Approx(70));
}

TEST_CASE("an unanswered offer is parked and its late answer counts") {
  Pair pair;
  pair.open();
  const Offer offer = offer_from(pair.low);
  CHECK(pair.low.edge.blocks_node());
  CHECK(pair.low.edge.next_deadline() == pair.low.now + 1s);

  pair.low.tick(1s);
  CHECK(pair.low.edge.parked());
  CHECK_FALSE(pair.low.edge.blocks_node());
  CHECK_FALSE(pair.low.edge.may_offer());

  pair.high.receive(offer);
  pair.run();
  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK_FALSE(pair.low.edge.parked());
}

TEST_CASE("the sixteenth exchange carries statistics") {
  Pair pair;
  pair.open();
  for (int i = 0; i < 15; ++i) {
    pair.low.offer();
    CHECK(pair.low.job<OfferJob>()->statistics == Statistics::without);
    pair.run();
  }

  pair.low.offer();

  CHECK(pair.low.job<OfferJob>()->statistics == Statistics::with);
}

// --- what contradicts ---------------------------------------------------------------------------

TEST_CASE("every contradiction in an offer resets the edge with its reason") {
  const auto reset_by = [](auto&& spoil) {
    Pair pair;
    pair.open();
    Offer offer = offer_from(pair.low);
    spoil(offer);
    pair.high.receive(offer);
    const auto reset = pair.high.take<EdgeReset>();
    REQUIRE(reset.has_value());
    CHECK(reset->generation > Generation{1});
    CHECK(pair.high.edge.state() == EdgeState::resetting);
    return reset->reason;
  };
  CHECK(reset_by([](Offer& offer) { ++offer.chain8; }) == ResetReason::chain_differs);
  CHECK(reset_by([](Offer& offer) { offer.seq = {7}; }) == ResetReason::sequence_differs);
  CHECK(reset_by([](Offer& offer) { offer.generation = {9}; }) == ResetReason::generation_differs);
  CHECK(reset_by([](Offer& offer) { offer.spot.block = 3; }) == ResetReason::bad_header);
}

TEST_CASE("a spot that differs and a payload that does not decode reset the edge") {
  for (const auto& [code, reason] : {std::pair{Errc::corrupt, ResetReason::spot_differs},
                                     std::pair{Errc::bad_message, ResetReason::bad_payload}}) {
    Pair pair;
    pair.open();
    pair.high.receive(offer_from(pair.low));

    pair.high.finish_job(failed_job(code));

    CHECK(pair.high.take<EdgeReset>()->reason == reason);
    CHECK(pair.high.edge.seq() == Seq{0});
  }
}

TEST_CASE("after a reset the lower id sends a snapshot with the new generation") {
  Pair pair;
  pair.open();
  Offer offer = offer_from(pair.low);
  ++offer.chain8;
  pair.high.receive(offer);

  pair.run();

  CHECK(pair.low.edge.state() == EdgeState::open);
  CHECK(pair.high.edge.state() == EdgeState::open);
  CHECK(pair.low.edge.generation() == Generation{2});
  CHECK(pair.low.last<EdgeOpened>()->mode == OpenMode::snapshot);
  CHECK(pair.low.last<EdgeWasReset>()->by == By::them);
}

TEST_CASE("resets that cross are one") {
  Pair pair;
  pair.open();
  Offer from_low = offer_from(pair.low);
  Offer from_high = offer_from(pair.high);
  ++from_low.chain8;
  ++from_high.chain8;
  pair.low.receive(from_high);
  pair.high.receive(from_low);

  pair.run();

  CHECK(pair.low.edge.state() == EdgeState::open);
  CHECK(pair.high.edge.generation() == Generation{2});
  CHECK(pair.low.count<EdgeWasReset>() == 1);
}

TEST_CASE("a fourth reset within an hour closes the edge for ten minutes") {
  Pair pair;
  pair.open();
  for (int i = 0; i < 3; ++i) {
    Offer offer = offer_from(pair.low);
    ++offer.chain8;
    pair.high.receive(offer);
    pair.run();
    REQUIRE(pair.low.edge.state() == EdgeState::open);
  }
  Offer offer = offer_from(pair.low);
  ++offer.chain8;
  pair.high.receive(offer);
  pair.run();

  CHECK(pair.high.edge.state() == EdgeState::closed);
  CHECK(pair.low.edge.state() == EdgeState::closed);
  CHECK(pair.high.edge.cooling(pair.high.now + 9min));
  CHECK_FALSE(pair.low.edge.may_open(pair.low.now + 9min));
  CHECK(pair.low.edge.may_open(pair.low.now + 10min));
}

TEST_CASE("messages of an edge before a reset are ignored") {
  Pair pair;
  pair.open();
  const Offer old = offer_from(pair.low);
  Offer spoiled = old;
  ++spoiled.chain8;
  pair.high.receive(spoiled);
  pair.run();

  pair.high.receive(old);

  CHECK_FALSE(pair.high.has_job());
  CHECK(pair.high.edge.state() == EdgeState::open);
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
