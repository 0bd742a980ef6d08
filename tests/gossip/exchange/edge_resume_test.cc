#include "gossip/exchange/edge.h"
#include "tests/gossip/exchange/pair.h"

#include <doctest/doctest.h>

#include <cmath>

TEST_SUITE_BEGIN("gossip/exchange/edge");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

// --- resuming -----------------------------------------------------------------------------------

TEST_CASE("what a lost session held up is offered afresh") {
  Pair pair;
  pair.open();
  (void)offer_from(pair.low);
  (void)offer_from(pair.high);
  pair.disconnect();
  CHECK(pair.low.edge.state() == EdgeState::lost);

  pair.connect();
  CHECK(pair.low.edge.state() == EdgeState::resuming);
  pair.run();

  for (End* end : {&pair.low, &pair.high}) {
    CHECK(end->edge.state() == EdgeState::open);
    CHECK(end->edge.seq() == Seq{0});
    CHECK(end->edge.may_offer());
  }
  pair.low.offer();
  pair.high.offer();
  pair.run();
  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.low.edge.chain() == pair.high.edge.chain());
  CHECK(pair.low.last<Exchanged>()->role == Role::crossing);
  CHECK(pair.low.count<EdgeWasReset>() == 0);
}

TEST_CASE("after a lost session leaving ends push what is pending, which crosses") {
  Pair pair;
  pair.open();
  for (End* end : {&pair.low, &pair.high}) {
    end->offer(Purpose::leave);
    end->finish_job();
    REQUIRE(end->take<Offer>().has_value());
  }
  pair.disconnect();

  pair.connect();
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.high.edge.seq() == Seq{1});
  CHECK(pair.low.last<Exchanged>()->role == Role::crossing);
  CHECK(pair.low.count<EdgeWasReset>() == 0);
}

TEST_CASE("an outage says nothing about how many steps the next answer takes") {
  Pair pair;
  pair.open();
  (void)offer_from(pair.low);
  pair.disconnect();
  pair.low.node.replica.steps += 600;  // trained meanwhile
  pair.low.tick(30s);
  pair.high.tick(30s);
  pair.connect();
  pair.run();

  pair.high.receive(offer_from(pair.low));
  pair.low.node.replica.steps += 2;
  pair.low.tick(100ms);
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.low.edge.answer_steps() <= 2);
  CHECK(weight_for(pair.low.edge.answer_steps()) == Weight{64});
}

TEST_CASE("whoever is behind gets its answer and a fresh offer") {
  Pair pair;
  pair.open();
  (void)answer_from(pair.high, offer_from(pair.low));
  (void)offer_from(pair.high);
  pair.disconnect();

  pair.connect();
  pair.run();
  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.high.edge.may_offer());
  pair.high.offer();
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{2});
  CHECK(pair.low.edge.chain() == pair.high.edge.chain());
  CHECK(pair.low.count<EdgeWasReset>() + pair.high.count<EdgeWasReset>() == 0);
}

TEST_CASE("an answer that got lost is sent again after Resume") {
  Pair pair;
  pair.open();
  (void)answer_from(pair.high, offer_from(pair.low));
  pair.disconnect();

  pair.connect();
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.low.edge.chain() == pair.high.edge.chain());
  CHECK(pair.high.count<Exchanged>() == 1);
}

TEST_CASE("a crossing of which one half got lost is completed after Resume") {
  Pair pair;
  pair.open();
  const Offer from_low = offer_from(pair.low);
  (void)offer_from(pair.high);
  pair.high.receive(from_low);
  pair.high.finish_job();
  CHECK(pair.high.edge.seq() == Seq{1});
  pair.disconnect();

  pair.connect();
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.low.edge.chain() == pair.high.edge.chain());
}

TEST_CASE("Resume waits for the job that is running") {
  Pair pair;
  pair.open();
  pair.high.receive(offer_from(pair.low));
  pair.disconnect();

  pair.connect();
  CHECK_FALSE(pair.high.take<Resume>().has_value());
  pair.high.finish_job();

  const auto resume = pair.high.take<Resume>();
  REQUIRE(resume.has_value());
  CHECK(resume->seq == Seq{1});
}

TEST_CASE("ends that are further apart than one exchange reset") {
  Pair pair;
  pair.open();
  pair.disconnect();
  pair.connect();

  pair.low.receive(Resume{.generation = {1}, .seq = {5}, .chain8 = 0, .pending = Pending::none});

  CHECK(pair.low.last<EdgeWasReset>()->reason == ResetReason::sequence_differs);
}

TEST_CASE("a resumption of an edge that is closed here is refused") {
  Pair pair;
  pair.connect();

  pair.high.receive(Resume{.generation = {4}, .seq = {5}, .chain8 = 0, .pending = Pending::none});

  const auto close = pair.high.take<EdgeClose>();
  REQUIRE(close.has_value());
  CHECK(close->reason == CloseReason::unknown_edge);
  CHECK(close->generation == Generation{4});
}

TEST_CASE("an opening instead of a resumption is answered whatever its generation is") {
  for (const std::uint64_t generation : {0U, 1U, 2U}) {
    CAPTURE(generation);
    Pair pair;
    pair.open();
    pair.disconnect();
    pair.high.session_up(11);
    REQUIRE(pair.high.take<Resume>().has_value());
    EdgeOpen other;
    other.generation = {generation};
    other.reference = hash_of(as_bytes("genesis"));

    pair.high.receive(other);

    if (generation == 2) {
      CHECK(pair.high.edge.state() == EdgeState::accepting);  // the peer gave the edge up meanwhile
    } else {
      const auto close = pair.high.take<EdgeClose>();
      REQUIRE(close.has_value());
      CHECK(close->reason == CloseReason::stale_generation);
      CHECK(close->generation == Generation{1});
    }
    CHECK(pair.high.count<EdgeWasReset>() == 0);
  }
}

TEST_CASE("another process of the peer voids the edge") {
  Pair pair;
  pair.open();
  pair.low.session_down();

  pair.low.session_up(23);

  CHECK(pair.low.edge.state() == EdgeState::closed);
  CHECK(pair.low.edge.generation() == Generation{0});
  CHECK(pair.low.last<EdgeWasClosed>()->reason == CloseReason::peer_restarted);
  CHECK(pair.low.job<DropJob>() != nullptr);
}

TEST_CASE("a reference is not kept for ever for a session that is gone") {
  Pair pair;
  pair.open();
  pair.low.session_down();

  pair.low.tick(60s);

  CHECK(pair.low.edge.state() == EdgeState::closed);
  CHECK(pair.low.job<DropJob>() != nullptr);
}

TEST_CASE("an offer whose session ends before it is encoded never existed") {
  Pair pair;
  pair.open();
  pair.low.offer();
  pair.disconnect();
  pair.low.finish_job();
  CHECK_FALSE(pair.low.edge.offering());

  pair.connect();
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{0});
  CHECK(pair.low.edge.may_offer());
}

// --- refused by the session ---------------------------------------------------------------------

TEST_CASE("an offer that the peer had no room for is sent again and keeps its edge only") {
  Pair pair;
  pair.open();
  Offer offer = offer_from(pair.low);

  for (int refusals = 0; refusals < 3; ++refusals) {
    pair.low.refused(offer);
    CHECK_FALSE(pair.low.edge.blocks_node());
    CHECK(pair.low.edge.next_deadline() == pair.low.now + 1s);
    CHECK(pair.low.out.send.empty());
    pair.low.tick(1s);
    const auto again = pair.low.take<Offer>();
    REQUIRE(again.has_value());
    CHECK(name_of_offer(*again) == name_of_offer(offer));
    CHECK_FALSE(pair.low.edge.blocks_node());
    offer = *again;
  }
  pair.high.receive(offer);
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{1});
  CHECK(pair.low.edge.chain() == pair.high.edge.chain());
  CHECK(pair.low.edge.next_deadline() == kNever);
}

TEST_CASE("an offer that is refused before it crossed is sent again as the answer") {
  Pair pair;
  pair.open();
  const Offer from_low = offer_from(pair.low);
  const Offer from_high = offer_from(pair.high);
  const auto refuse = [&] { pair.low.refused(from_low); };
  SUBCASE("when it crosses") {
    refuse();
    pair.low.receive(from_high);
  }
  SUBCASE("while the crossing is applied") {
    pair.low.receive(from_high);
    refuse();
  }

  pair.low.finish_job();
  CHECK(pair.low.edge.seq() == Seq{1});
  pair.low.tick(1s);
  pair.run();

  CHECK(pair.high.edge.seq() == Seq{1});
  CHECK(pair.high.edge.chain() == pair.low.edge.chain());
  CHECK(pair.high.edge.may_offer());
}

TEST_CASE("a leave push that the peer had no room for is void, another neighbour gets it") {
  Pair pair;
  pair.open();
  pair.low.offer(Purpose::leave);
  pair.low.finish_job();
  const auto push = pair.low.take<Offer>();
  REQUIRE(push.has_value());

  pair.low.refused(*push);

  CHECK(pair.low.count<OfferVoided>() == 1);
  CHECK(pair.low.edge.may_offer());
}

TEST_CASE("an offer that came although its sender was told that it did not is answered once") {
  for (const bool answer_is_late : {false, true}) {
    CAPTURE(answer_is_late);
    Pair pair;
    pair.open();
    const Offer offer = offer_from(pair.low);
    const Answer answer = answer_from(pair.high, offer);

    // A renewed session dropped the last word about an attachment that was there already.
    pair.low.refused(offer);
    if (answer_is_late) {
      pair.low.tick(1s);
      CHECK(pair.low.out.send.size() == 1);
    }
    pair.low.receive(answer);
    pair.run();

    for (const End* end : {&pair.low, &pair.high}) {
      CHECK(end->edge.state() == EdgeState::open);
      CHECK(end->edge.seq() == Seq{1});
      CHECK(end->count<Exchanged>() == 1);
    }
    CHECK(pair.low.edge.chain() == pair.high.edge.chain());
    CHECK(pair.low.edge.may_offer());
  }
}

TEST_CASE("a refused offer that crossed is sent again as the answer") {
  Pair pair;
  pair.open();
  const Offer from_low = offer_from(pair.low);
  const Offer from_high = offer_from(pair.high);
  pair.low.receive(from_high);
  pair.low.finish_job();
  CHECK(pair.low.edge.seq() == Seq{1});

  pair.low.refused(from_low);
  pair.low.tick(1s);
  pair.run();

  CHECK(pair.high.edge.seq() == Seq{1});
  CHECK(pair.high.edge.chain() == pair.low.edge.chain());
}

TEST_CASE("an offer that overtakes a refused answer waits for it") {
  Pair pair;
  pair.open();
  const Answer answer = answer_from(pair.high, offer_from(pair.low));
  const Offer next = offer_from(pair.high);

  pair.low.receive(next);
  CHECK(pair.low.edge.state() == EdgeState::open);
  CHECK_FALSE(pair.low.has_job());
  pair.high.refused(answer);
  pair.high.tick(1s);
  pair.run();

  CHECK(pair.low.edge.seq() == Seq{2});
  CHECK(pair.high.edge.seq() == Seq{2});
}

TEST_CASE("an edge that was closed and opened again while a job ran here is open again") {
  Pair pair;
  pair.open();
  pair.low.act([&](Turn& turn) { pair.low.edge.offer(turn, {}); });
  pair.low.finish_job();
  pair.high.receive(*pair.low.take<Offer>());
  REQUIRE(pair.high.job<AnswerJob>() != nullptr);

  pair.low.close(CloseReason::not_wanted);
  pair.low.finish_jobs();
  pair.low.open();
  pair.low.finish_job();
  pair.high.receive(*pair.low.take<EdgeClose>());
  pair.high.receive(*pair.low.take<EdgeOpen>());
  pair.high.finish_jobs();
  CHECK(pair.high.last<EdgeWasClosed>()->by == By::them);
  CHECK(pair.high.edge.state() == EdgeState::open);
  CHECK(pair.high.edge.generation() == Generation{2});
  pair.run();
  CHECK(pair.low.edge.state() == EdgeState::open);
}

TEST_CASE("a peer that floods a busy edge resets it") {
  Pair pair;
  pair.open();
  const Offer offer = offer_from(pair.low);
  for (int i = 0; i < 10; ++i) pair.high.receive(offer);

  CHECK(pair.high.count<EdgeWasReset>() == 1);
  pair.high.finish_jobs();
  CHECK(pair.high.count<ExchangeTorn>() == 1);
}

TEST_CASE("payloads that wait for a job are bounded by their bytes, messages without one are not") {
  EdgeOptions options;
  options.inbox_bytes = 3000;
  for (const std::size_t bytes : {1000U, 1001U}) {
    CAPTURE(bytes);
    Pair pair(options);
    pair.open();
    Offer offer = offer_from(pair.low);
    offer.payload.bytes = share(Bytes(bytes));
    pair.high.receive(offer);  // is being answered
    for (int i = 0; i < 3; ++i) pair.high.receive(offer);
    pair.high.receive(Busy{.generation = {1}, .seq = {0}, .offer = {}, .retry_after = {}});

    CHECK(pair.high.count<EdgeWasReset>() == (bytes > 1000 ? 1 : 0));
  }
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
