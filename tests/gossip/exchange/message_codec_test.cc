#include "gossip/exchange/message_codec.h"

#include "node/base/random.h"
#include "tests/gossip/exchange/sample_messages.h"

#include <doctest/doctest.h>

#include <limits>

TEST_SUITE_BEGIN("gossip/exchange/message_codec");

namespace starling::gossip {
namespace {

// The same message: the same bytes again.
void check_same(const transport::Message& a, const transport::Message& b) {
  CHECK(a.type == b.type);
  CHECK(a.body == b.body);
  CHECK(to_bytes(a.attached()) == to_bytes(b.attached()));
}

Result<ExchangeMessage> decode_changed(ExchangeMessage message) {
  return decode_exchange(encode_exchange(message));
}

template <class Message>
Message sample() {
  for (const auto& message : sample_messages())
    if (const auto* found = std::get_if<Message>(&message)) return *found;
  return {};
}

TEST_CASE("every message survives the wire") {
  for (const auto& message : sample_messages()) {
    CAPTURE(message.index());
    const auto wire = encode_exchange(message);
    const auto decoded = decode_exchange(wire);

    REQUIRE(decoded.has_value());
    CHECK(decoded->index() == message.index());
    check_same(encode_exchange(*decoded), wire);
    CHECK(wire.room() == transport::Room::exchange);
    CHECK(wire.body.size() <= exchange_limits::kMaxBody);
  }
}

TEST_CASE("fields arrive where they were") {
  const auto decoded = decode_changed(sample<Offer>());
  REQUIRE(decoded.has_value());
  const auto& offer = std::get<Offer>(*decoded);

  CHECK(offer.generation == Generation{4});
  CHECK(offer.seq == Seq{15});
  CHECK(offer.attempt == 9);
  CHECK(offer.purpose == Purpose::leave);
  CHECK(offer.figures.steps == 4321);
  CHECK(offer.figures.age == 4000.5);
  CHECK(offer.expected_wait == 3.5F);
  CHECK(offer.spot.block == 77);
  CHECK(offer.payload.level == Level::l5);
  CHECK(name_of_offer(offer) == name_of_offer(sample<Offer>()));
}

TEST_CASE("numbers out of range are refused") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const auto refused = [](auto message, auto&& spoil) {
    spoil(message);
    const auto decoded = decode_changed(message);
    return !decoded && decoded.error().code == Errc::bad_message;
  };

  CHECK(refused(sample<Answer>(), [](Answer& a) { a.weight = {65}; }));
  CHECK(refused(sample<Answer>(), [](Answer& a) { a.weight = {0}; }));
  CHECK(refused(sample<Answer>(), [&](Answer& a) { a.figures.age = inf; }));
  CHECK(refused(sample<Answer>(), [](Answer& a) { a.figures.age = -1; }));
  CHECK(refused(sample<Answer>(), [](Answer& a) { a.payload.statistics = Statistics::with; }));
  CHECK(refused(sample<Answer>(), [](Answer& a) { a.payload.bytes = nullptr; }));
  CHECK(refused(sample<Offer>(), [](Offer& o) { o.payload.statistics = Statistics::without; }));
  CHECK(refused(sample<Offer>(), [&](Offer& o) { o.expected_wait = nan; }));
  CHECK(refused(sample<Offer>(), [](Offer& o) { o.expected_wait = -1; }));
  CHECK(refused(sample<Offer>(), [](Offer& o) { o.generation = {1ULL << 63}; }));
  CHECK(refused(sample<Offer>(), [](Offer& o) { o.payload.level = static_cast<Level>(7); }));
  CHECK(refused(sample<Busy>(), [](Busy& b) { b.retry_after = std::chrono::minutes(2); }));
  CHECK(refused(sample<EdgeReset>(), [](EdgeReset& r) { r.reason = static_cast<ResetReason>(6); }));
  CHECK(refused(sample<EdgeClose>(), [](EdgeClose& c) { c.reason = CloseReason::peer_restarted; }));
  CHECK(refused(sample<EdgeOpen>(), [](EdgeOpen& o) { o.mode = OpenMode::snapshot; }));
}

TEST_CASE("a record above its maximum is refused") {
  EdgeOpen open = sample<EdgeOpen>();
  open.record.resize(exchange_limits::kMaxRecord + 1);

  const auto decoded = decode_changed(open);

  REQUIRE_FALSE(decoded.has_value());
  CHECK(decoded.error().code == Errc::too_large);
}

TEST_CASE("an attachment where none belongs is refused") {
  auto wire = encode_exchange(sample<Resume>());
  wire.attachment = share(Bytes(3));

  CHECK_FALSE(decode_exchange(wire).has_value());
}

TEST_CASE("a refused message is known by its body") {
  const auto wire = encode_exchange(sample<Offer>());

  const auto refused = decode_refused(wire.type, wire.body);

  REQUIRE(refused.has_value());
  CHECK(std::get<Offer>(*refused).seq == Seq{15});
}

TEST_CASE("unknown types are refused") {
  auto wire = encode_exchange(sample<Resume>());
  for (const unsigned type : {0x0200U, 0x0209U, 0x0103U, 0x0000U, 0xffffU}) {
    wire.type = static_cast<std::uint16_t>(type);
    CHECK_FALSE(decode_exchange(wire).has_value());
  }
}

TEST_CASE("no prefix of a message is a message") {
  for (const auto& message : sample_messages()) {
    const auto whole = encode_exchange(message);
    for (std::size_t length = 0; length < whole.body.size(); ++length) {
      auto cut = whole;
      cut.body.resize(length);
      CHECK_FALSE(decode_exchange(cut).has_value());
    }
  }
}

TEST_CASE("a mutated message is refused or still within every bound") {
  Rng rng(7);
  for (const auto& message : sample_messages()) {
    const auto whole = encode_exchange(message);
    for (int i = 0; i < 2000; ++i) {
      auto mutated = whole;
      for (std::uint64_t flips = 1 + rng.below(4); flips > 0; --flips)
        mutated.body[rng.below(mutated.body.size())] ^= static_cast<std::byte>(1U << rng.below(8));
      const auto decoded = decode_exchange(mutated);
      if (!decoded) continue;
      const auto again = decode_exchange(encode_exchange(*decoded));
      REQUIRE(again.has_value());
      if (const auto* answer = std::get_if<Answer>(&*decoded)) {
        CHECK(answer->weight.of_128 >= 1);
        CHECK(answer->weight.of_128 <= 64);
        CHECK(answer->figures.age >= 0);
      }
    }
  }
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
