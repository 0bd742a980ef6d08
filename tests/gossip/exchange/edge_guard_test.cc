// What one edge does against a peer that sends too much, what does not decode, or what contradicts.
#include "gossip/exchange/edge.h"
#include "tests/gossip/exchange/pair.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>

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

TEST_CASE("samples that a peer claims lift its bound to what is usual with sixteen times ours") {
  for (const bool says_nothing_first : {false, true}) {
    CAPTURE(says_nothing_first);
    Pair pair;
    pair.open();
    for (int i = 0; i < 9; ++i) {
      if (!says_nothing_first) pair.low.node.replica.samples += 32;
      pair.high.node.replica.samples += 32;
      pair.high.receive(offer_from(pair.low));
      pair.run();
    }
    pair.low.node.replica.samples = std::numeric_limits<std::uint64_t>::max();
    pair.high.node.replica.samples += 32;

    pair.high.receive(offer_from(pair.low));

    // Norms of 1 with 64 samples, or with the own 32 where it claimed none: 3 of that times
    // sqrt(32 + 16 * 32), 2.9 or 4.1 times the bound of an honest peer.
    const double usual = 1 / std::sqrt(says_nothing_first ? 32.0 : 64.0);
    CHECK(pair.high.job<AnswerJob>()->terms.max_norm ==
          doctest::Approx(3 * usual * std::sqrt(17 * 32.0)));
  }
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
  pair.low.open();
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

TEST_CASE("a word of whoever was dropped does not open the edge sooner") {
  EdgeOptions options;
  options.drop_min = 30min;
  Pair pair(options);
  pair.open();
  for (int i = 0; i < 3; ++i) {
    pair.high.receive(offer_from(pair.low));
    pair.high.finish_job(failed_job(Errc::bad_message));
    pair.run();
  }
  REQUIRE(pair.high.edge.drops() == 1);

  pair.high.receive(EdgeClose{pair.high.edge.generation(), CloseReason::cooling});

  CHECK_FALSE(pair.high.edge.may_open(pair.high.now + 29min));
  CHECK(pair.high.edge.may_open(pair.high.now + 30min));
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

TEST_CASE("an opening of an edge that is open already is a reset, and counts as one") {
  Pair pair;
  pair.open();
  const auto open_again = [&] {
    EdgeOpen again;
    again.generation = pair.high.edge.generation().next();
    again.reference = hash_of(as_bytes("genesis"));
    pair.high.receive(again);
    pair.high.finish_jobs();
  };
  for (int i = 0; i < 3; ++i) {
    open_again();
    REQUIRE(pair.high.edge.state() == EdgeState::open);
  }
  REQUIRE(pair.high.count<EdgeWasReset>() == 3);
  CHECK(pair.high.last<EdgeWasReset>()->reason == ResetReason::generation_differs);
  CHECK(pair.high.last<EdgeWasReset>()->by == By::them);
  CHECK(pair.high.last<EdgeWasReset>()->generation == Generation{4});
  pair.high.out.send.clear();

  open_again();

  CHECK(pair.high.edge.state() == EdgeState::closed);
  CHECK_FALSE(pair.high.edge.may_open(pair.high.now + 9min));
  const auto close = pair.high.take<EdgeClose>();
  REQUIRE(close.has_value());
  CHECK(close->generation == Generation{5});
  CHECK(close->reason == CloseReason::too_many_resets);
}

TEST_CASE("an opening of an open edge whose generation is not new contradicts it") {
  for (const std::uint64_t generation : {0U, 1U}) {
    CAPTURE(generation);
    Pair pair;
    pair.open();
    EdgeOpen again;
    again.generation = {generation};
    again.reference = hash_of(as_bytes("genesis"));

    pair.high.receive(again);

    const auto reset = pair.high.take<EdgeReset>();
    REQUIRE(reset.has_value());
    CHECK(reset->reason == ResetReason::bad_header);
    CHECK(pair.high.count<EdgeWasReset>() == 1);
    pair.low.receive(*reset);
    pair.run();
    CHECK(pair.low.edge.state() == EdgeState::open);
    CHECK(pair.high.edge.state() == EdgeState::open);
  }
}

EdgeOpen opening_beyond(const End& end) {
  EdgeOpen open;
  open.generation = end.edge.generation().next().next();
  open.reference = hash_of(as_bytes("genesis"));
  return open;
}

TEST_CASE("openings in quick succession cost eight references at most, whatever the edge is") {
  for (const bool old : {true, false}) {
    CAPTURE(old);
    End end(node_named(1), node_named(2));
    end.node.replica.age = old ? 5'000 : 0;
    end.session_up(7);
    std::size_t references = 0;
    for (int i = 0; i < 1'000; ++i) {
      end.receive(opening_beyond(end));
      for (; end.has_job(); end.finish_job())
        if (end.job<SnapshotJob>() != nullptr || end.job<GenesisJob>() != nullptr) ++references;
      // The young end opened the edge: its peer closes it and proposes the next one.
      if (!old) end.receive(EdgeClose{end.edge.generation(), CloseReason::not_wanted});
      end.finish_jobs();
    }

    CHECK(references == 8);
    CHECK(end.edge.state() == EdgeState::closed);
    const auto* last = std::get_if<EdgeClose>(&end.out.send.back().message);
    REQUIRE(last != nullptr);
    CHECK(last->reason == CloseReason::too_many_openings);
    CHECK(end.edge.may_open(end.now));
  }
}

TEST_CASE("a process that restarts three times within a minute has its edge each time") {
  End end(node_named(1), node_named(2));
  for (std::uint64_t process = 7; process <= 10; ++process) {
    CAPTURE(process);
    end.session_up(process);
    end.receive(opening_beyond(end));
    end.finish_jobs();
    CHECK(end.take<EdgeOpenAck>().has_value());
    // It has joined, and took over another replica.
    end.receive(EdgeClose{end.edge.generation(), CloseReason::replica_changed});
    end.receive(opening_beyond(end));
    end.finish_jobs();
    CHECK(end.edge.state() == EdgeState::open);
    end.now += 15s;
  }
}

TEST_CASE("who opened too often is let in again after a minute, once") {
  End end(node_named(1), node_named(2));
  end.session_up(7);
  const auto accepted = [&] {
    end.out.send.clear();
    end.receive(opening_beyond(end));
    end.finish_jobs();
    return end.take<EdgeOpenAck>().has_value();
  };
  const auto close = [&] {
    end.receive(EdgeClose{end.edge.generation(), CloseReason::not_wanted});
    end.finish_jobs();
  };
  for (int i = 0; i < 8; ++i) {
    CHECK(accepted());
    close();
  }
  CHECK_FALSE(accepted());
  end.now += 1min;

  CHECK(accepted());
  close();
  CHECK_FALSE(accepted());
}

TEST_CASE("openings that leave a minute between them are no offence") {
  End end(node_named(1), node_named(2));
  end.session_up(7);
  for (int i = 0; i < 20; ++i) {
    CAPTURE(i);
    end.receive(opening_beyond(end));
    end.finish_jobs();
    REQUIRE(end.edge.state() == EdgeState::open);
    end.receive(EdgeClose{end.edge.generation(), CloseReason::replica_changed});
    end.finish_jobs();
    end.now += 1min;
  }
}

TEST_CASE("the opening that follows a reset counts as a part of it") {
  Pair pair;
  pair.open();
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    Offer offer = offer_from(pair.low);
    offer.chain8 ^= 1;
    pair.high.receive(offer);
    pair.run();
    CHECK(pair.low.edge.state() == EdgeState::open);
    CHECK(pair.high.edge.state() == EdgeState::open);
  }
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
