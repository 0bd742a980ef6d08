// What one edge does against a peer that sends too much, or what does not decode.
#include "gossip/exchange/edge.h"
#include "tests/gossip/exchange/pair.h"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("gossip/exchange/edge_guard");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

TEST_CASE("norms are clipped after eight exchanges, those of a leave push are not") {
  Pair pair;
  pair.open();
  for (int i = 0; i < 8; ++i) {
    pair.low.node.replica.samples += 32;
    pair.high.node.replica.samples += 32;
    CHECK(pair.high.edge.state() == EdgeState::open);
    const Offer offer = offer_from(pair.low);
    pair.high.receive(offer);
    CHECK(pair.high.job<AnswerJob>()->terms.max_norm == 0);
    pair.run();
  }
  pair.low.node.replica.samples += 32;
  pair.high.node.replica.samples += 32;

  pair.high.receive(offer_from(pair.low));
  CHECK(pair.high.job<AnswerJob>()->terms.max_norm == doctest::Approx(3));
  pair.run();

  pair.low.offer(Purpose::leave);
  pair.low.finish_job();
  pair.high.receive(*pair.low.take<Offer>());
  CHECK(pair.high.job<AnswerJob>()->terms.max_norm == 0);
  pair.run();

  pair.low.offer(Purpose::leave);
  pair.low.finish_job();
  pair.high.receive(*pair.low.take<Offer>());
  CHECK(pair.high.job<AnswerJob>()->terms.max_norm > 0);  // one push is all a peer gets
}

TEST_CASE("an edge that clips at what is usual elsewhere does so from the first exchange on") {
  Pair pair({.aggregator = Aggregator::clip});
  pair.open();
  const auto limit = [&](Purpose purpose) {
    pair.low.node.replica.samples += 32;
    pair.high.node.replica.samples += 32;
    pair.low.offer(purpose);
    pair.low.finish_job();
    pair.high.receive(*pair.low.take<Offer>());
    const float found = pair.high.job<AnswerJob>()->terms.max_norm;
    pair.run();
    return found;
  };
  const float first = limit(Purpose::regular);  // nobody knows yet what is usual
  CHECK(first > 0);
  CHECK(first < 1e-30F);

  pair.high.node.usual_norm = 0.25;

  CHECK(limit(Purpose::regular) == doctest::Approx(0.25 * 8));  // 64 samples at both ends
  CHECK(limit(Purpose::leave) == doctest::Approx(0.25 * 8));    // a farewell is no exception
}

TEST_CASE("an unguarded edge never clips") {
  Pair pair({.aggregator = Aggregator::unguarded});
  pair.open();
  for (int i = 0; i < 12; ++i) {
    pair.low.node.replica.samples += 32;
    pair.high.receive(offer_from(pair.low));
    CHECK(pair.high.job<AnswerJob>()->terms.max_norm == 0);
    pair.run();
  }
}

TEST_CASE("the third payload that does not decode drops its sender, each time for longer") {
  Pair pair;
  pair.open();
  const auto offend = [&] {
    REQUIRE(pair.high.edge.state() == EdgeState::open);
    pair.high.receive(offer_from(pair.low));
    pair.high.finish_job(failed_job(Errc::bad_message));
    return pair.high.last<PayloadRefused>()->offences;
  };
  CHECK(offend() == 1);
  pair.run();
  CHECK(offend() == 2);
  CHECK(pair.high.edge.offences(pair.high.now) == 2);
  pair.run();
  CHECK(offend() == 3);

  CHECK(pair.high.edge.state() == EdgeState::closed);
  CHECK(pair.high.last<EdgeWasClosed>()->reason == CloseReason::misbehaved);
  CHECK(pair.high.edge.drops() == 1);
  pair.run();
  CHECK(pair.low.last<EdgeWasClosed>()->reason == CloseReason::misbehaved);
  CHECK_FALSE(pair.high.edge.may_open(pair.high.now + 59s));
  CHECK_FALSE(pair.low.edge.may_open(pair.low.now + 59s));
  CHECK(pair.high.edge.may_open(pair.high.now + 60s));

  pair.low.now += 61s;
  pair.high.now += 61s;
  pair.low.act([&](Turn& turn) { pair.low.edge.open(turn); });
  pair.run();
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    pair.low.now += 1h;  // so that the resets of before do not count
    pair.high.now += i == 0 ? Duration{1h} : Duration{1s};
    offend();
    pair.run();
  }
  CHECK(pair.high.edge.drops() == 2);
  CHECK_FALSE(pair.high.edge.may_open(pair.high.now + 119s));
  CHECK(pair.high.edge.may_open(pair.high.now + 120s));
}

TEST_CASE("an offence is forgotten after an hour") {
  Pair pair;
  pair.open();
  for (int i = 0; i < 4; ++i) {
    REQUIRE(pair.high.edge.state() == EdgeState::open);
    pair.high.receive(offer_from(pair.low));
    pair.high.finish_job(failed_job(Errc::bad_message));
    pair.run();
    pair.low.now += 31min;
    pair.high.now += 31min;
  }
  CHECK(pair.high.edge.drops() == 0);
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
