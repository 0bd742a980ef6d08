#include "transport/channel.h"

#include "node/base/random.h"
#include "tests/transport/channel_pair.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace starling::transport {
namespace {

using namespace testing;

TEST_SUITE("transport/channel") {
  TEST_CASE("messages of every size arrive as they were sent") {
    Link link;
    const std::vector<std::size_t> sizes = {0,
                                            1,
                                            100,
                                            limits::kMaxRecordBody - 14,
                                            limits::kMaxRecordBody - 13,
                                            limits::kMaxControlBody};
    for (const auto size : sizes) REQUIRE(link.left.channel.send(message_of(0x0201, size)));
    link.settle();
    REQUIRE(link.right.messages.size() == sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i)
      CHECK(link.right.messages[i].body.size() == sizes[i]);
    CHECK(link.left.channel.idle());
    CHECK(link.left.channel.queued_control_bytes() == 0);
  }

  TEST_CASE("attachments of random sizes in both directions arrive whole") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      Link link;
      std::size_t expected = 0;
      for (int i = 0; i < 20; ++i) {
        auto& from = rng.chance(0.5) ? link.left : link.right;
        const auto size = 1 + rng.below(rng.chance(0.2) ? 3'000'000 : 5'000);
        expected += size;
        REQUIRE(from.channel.send(message_of(0x0202, rng.below(2000), size)));
        for (std::uint64_t k = rng.below(30); k > 0; --k) {
          if (rng.chance(0.5))
            (void)link.step(link.left, link.right);
          else
            (void)link.step(link.right, link.left);
        }
      }
      link.settle();
      std::size_t arrived = 0;
      for (const auto* node : {&link.left, &link.right})
        for (const auto& message : node->messages) arrived += message.attached().size();
      CHECK(arrived == expected);
      CHECK(link.left.channel.idle());
      CHECK(link.right.channel.idle());
      CHECK(link.budget.reserved() == 0);
    }
  }

  TEST_CASE("control overtakes bulk at the next record") {
    Link link;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 1'000'000)));
    (void)link.step(link.left, link.right);  // the announcement
    (void)link.step(link.left, link.right);  // bulk
    REQUIRE(link.left.channel.send(message_of(0x0101, 10)));
    const auto next = link.left.channel.next_record(kStart, limits::kMaxBulkRecord);
    REQUIRE(next);
    CHECK(next->type == RecordType::message);
  }

  TEST_CASE("without a grant a sender stops after its initial credit") {
    TransferBudget budget;
    Node sender(End::responder, budget);
    REQUIRE(sender.channel.send(message_of(0x0202, 10, 5'000'000)));
    std::size_t bulk = 0;
    while (const auto record = sender.channel.next_record(kStart, limits::kMaxBulkRecord))
      if (record->type == RecordType::bulk) bulk += record->tail.size();
    CHECK(bulk == limits::kInitialCredit);
    CHECK_FALSE(sender.channel.has_record());
    CHECK(sender.channel.queued_bulk_bytes() == 5'000'000 - limits::kInitialCredit);
  }

  TEST_CASE("a sender that exceeds its credit ends the session") {
    TransferBudget budget;
    Node receiver(End::responder, budget);
    receiver.admitter.admits = false;
    REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, 1, 0, 5'000'000)));
    auto bulk = numbers({1});
    bulk.resize(4 + 60'000);
    for (int i = 0; i < 4; ++i) REQUIRE(receiver.take(kStart, RecordType::bulk, bulk));
    CHECK_FALSE(receiver.take(kStart, RecordType::bulk, bulk));
    CHECK(budget.reserved() == 0);
  }

  TEST_CASE("memory is reserved only for what was admitted, and given back at the end") {
    TransferBudget budget(1'000'000);
    {
      Node receiver(End::responder, budget);
      receiver.admitter.admits = false;
      REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, 1, 0, 900'000)));
      CHECK(budget.reserved() == 0);
      receiver.admitter.admits = true;
      REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, 2, 0, 900'000)));
      CHECK(budget.reserved() == 900'000);
      REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, 3, 0, 200'000)));
      CHECK(receiver.admitter.asked == 3);
      CHECK(budget.reserved() == 900'000);  // no room: refused although admitted
    }
    CHECK(budget.reserved() == 0);
  }

  TEST_CASE("a body that waits for its attachment is paid from the same budget") {
    for (const bool finishes : {true, false}) {
      CAPTURE(finishes);
      TransferBudget budget;
      Node receiver(End::responder, budget);
      constexpr std::size_t kBody = limits::kMaxControlBody;
      const Bytes part(limits::kMaxRecordBody);
      for (std::uint32_t id = 1; id <= limits::kMaxTransfers; ++id) {
        auto first = head_of(0x0202, id, kBody, 1);
        first.insert(first.end(), part.begin() + limits::kMessageHead, part.end());
        REQUIRE(receiver.take(kStart, RecordType::message, first));
        const auto rest = kBody + limits::kMessageHead - first.size();
        REQUIRE(receiver.take(kStart, RecordType::more, ByteView(part).first(rest)));
        CHECK(budget.reserved() == id * (kBody + 1));
        CHECK(receiver.channel.incoming_bytes() == budget.reserved());
      }
      if (!finishes) receiver.channel.on_tick(kStart + limits::kTransferStall + 1ms);
      for (std::uint32_t id = 1; finishes && id <= limits::kMaxTransfers; ++id) {
        auto last = numbers({id});
        last.push_back(std::byte{0x22});
        REQUIRE(receiver.take(kStart, RecordType::bulk, last));
      }
      CHECK(receiver.messages.size() == (finishes ? limits::kMaxTransfers : 0));
      CHECK(budget.reserved() == 0);
    }
    // The largest message of all finds room, alone.
    TransferBudget budget;
    Node receiver(End::responder, budget);
    CHECK(budget.try_reserve(limits::kMaxAttachment + limits::kMaxControlBody, 0));
    // Where nothing is left, an offer is refused and keeps nothing.
    REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, 1, 0, 1)));
    CHECK(receiver.channel.incoming_bytes() == 0);
    budget.release(budget.reserved());
  }

  TEST_CASE("a refused attachment is dropped by its sender, who is told which message it was") {
    Link link;
    link.right.admitter.admits = false;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 5'000'000)));
    REQUIRE(link.left.channel.send(message_of(0x0201, 10)));
    link.settle();
    CHECK(link.left.refused == 1);
    CHECK(link.right.messages.size() == 1);
    CHECK(link.left.channel.idle());
    CHECK(link.right.channel.idle());
    link.right.admitter.admits = true;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 5'000'000)));
    link.settle();
    CHECK(link.right.messages.size() == 2);
  }

  TEST_CASE("a transfer that stands still for 15 seconds is given up and its memory freed") {
    TransferBudget budget;
    Node receiver(End::responder, budget);
    REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, 1, 0, 900'000)));
    receiver.channel.on_tick(kStart + 14s);
    CHECK(budget.reserved() == 900'000);
    receiver.channel.on_tick(kStart + 16s);
    CHECK(budget.reserved() == 0);
    bool refused = false;
    while (const auto record = receiver.channel.next_record(kStart + 16s, limits::kMaxBulkRecord))
      refused = refused || record->type == RecordType::refuse;
    CHECK(refused);
    REQUIRE(receiver.take(kStart + 17s, RecordType::abandon, numbers({1})));
    CHECK(receiver.channel.idle());
  }

  TEST_CASE("transfers that trickle are given up, a slow line's are not") {
    // A byte each ten seconds, and what a line of 64 kbit/s carries, which comes in bursts.
    for (const std::size_t bytes : {1U, 80'000U}) {
      CAPTURE(bytes);
      TransferBudget budget;
      Node receiver(End::responder, budget);
      REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, 1, 0, 20'000'000)));
      Bytes bulk = numbers({1});
      bulk.resize(bulk.size() + bytes);
      for (TimePoint now = kStart; now < kStart + 10min; now += 1s) {
        if ((now - kStart) % 10s == 0s) REQUIRE(receiver.take(now, RecordType::bulk, bulk));
        receiver.channel.on_tick(now);
        while (receiver.channel.next_record(now, limits::kMaxBulkRecord)) continue;
        if (now == kStart + 150s) CHECK((budget.reserved() == 0) == (bytes == 1));
      }
      CHECK((budget.reserved() == 0) == (bytes == 1));
    }
  }

  TEST_CASE("transfers that wait for their turn on a slow line do not stand still") {
    Link link;
    constexpr int kTransfers = 12;
    for (int i = 0; i < kTransfers; ++i)
      REQUIRE(link.left.channel.send(message_of(0x0202, 1, limits::kBulkChunk)));
    // 64 KB a second: a turn takes four seconds, and the last one comes after 44.
    for (auto tick = link.now; link.right.messages.size() < kTransfers && link.now < kStart + 2min;
         link.now += 125ms) {
      const auto record = link.left.channel.next_record(link.now, limits::kMinBulkRecord);
      if (record) REQUIRE(link.right.take(link.now, record->type, whole(*record)));
      while (link.step(link.right, link.left)) continue;
      if (link.now < tick) continue;
      tick += 1s;
      link.right.channel.on_tick(link.now);
    }
    CHECK(link.right.messages.size() == kTransfers);
    CHECK(link.left.refused == 0);
  }

  TEST_CASE("a peer that opens transfers and finishes none keeps no other peer out") {
    TransferBudget budget;
    Node receiver(End::responder, budget);
    constexpr std::uint32_t kSize = 25'760'000;
    std::uint32_t transfer = 0;
    while (transfer < limits::kMaxTransfers)
      REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0202, ++transfer, 0, kSize)));
    CHECK(budget.reserved() >= kSize);
    CHECK(budget.reserved() <= limits::kTransferBudget / 2);
    Node other(End::responder, budget);
    REQUIRE(other.take(kStart, RecordType::message, head_of(0x0202, 1, 0, kSize)));
    REQUIRE(other.take(kStart, RecordType::message, head_of(0x0202, 2, 0, kSize)));
    CHECK(budget.reserved() >= limits::kTransferBudget / 2);

    receiver.channel.on_tick(kStart + limits::kTransferStall + 1ms);
    other.channel.on_tick(kStart + limits::kTransferStall + 1ms);
    CHECK(budget.reserved() == 0);
    const auto one_more =
        receiver.take(kStart + 16s, RecordType::message, head_of(0x0202, ++transfer, 0, kSize));
    REQUIRE_FALSE(one_more);
    CHECK(one_more.error().code == Errc::too_many);
    // The longest size that fits the field is above what any attachment may have.
    Node fresh(End::responder, budget);
    CHECK_FALSE(fresh.take(kStart, RecordType::message, head_of(0x0202, 1, 0, 0xffff'ffffU)));
    CHECK(budget.reserved() == 0);
  }

  TEST_CASE("queues have bounds, and a full one refuses without queueing") {
    TransferBudget budget;
    Node sender(End::responder, budget);
    int queued = 0;
    while (sender.channel.send(message_of(0x0201, limits::kMaxControlBody))) ++queued;
    CHECK(queued >= 40);
    CHECK(sender.channel.queued_control_bytes() <= limits::kMaxQueuedControl);
    Node bulk(End::responder, budget);
    for (std::size_t i = 0; i < limits::kMaxTransfers; ++i)
      REQUIRE(bulk.channel.send(message_of(0x0202, 1, 10)));
    const auto refused = bulk.channel.send(message_of(0x0202, 1, 10));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::too_many);
    CHECK(bulk.channel.send(message_of(0x0201, 1)));
  }

  TEST_CASE("messages that no peer may get are refused before they are queued") {
    TransferBudget budget;
    Node sender(End::responder, budget);
    CHECK(sender.channel.send(message_of(0x00ff, 1)).error().code == Errc::bad_argument);
    CHECK(sender.channel.send(message_of(0x0501, 1)).error().code == Errc::bad_argument);
    CHECK(sender.channel.send(message_of(0x0101, limits::kMaxMembershipBody + 1)).error().code ==
          Errc::too_large);
    CHECK(sender.channel.send(message_of(0x0201, limits::kMaxControlBody + 1)).error().code ==
          Errc::too_large);
    sender.channel.say_bye({Errc::closed, Doing::stopping, ""}, Leave::after_messages);
    CHECK(sender.channel.send(message_of(0x0201, 1)).error().code == Errc::closed);
  }

  TEST_CASE("a peer that pings without reading the answers is cut off") {
    TransferBudget budget;
    Node node(End::responder, budget);
    const Bytes token(8);
    bool refused = false;
    for (int i = 0; i < 100'000 && !refused; ++i)
      refused = !node.take(kStart, RecordType::ping, token);
    CHECK(refused);
  }

  TEST_CASE("a ping is answered with its token") {
    Link link;
    link.left.channel.ping(77);
    link.settle();
    CHECK(link.left.pongs == 1);
  }

  TEST_CASE("goodput is learned from what the peer confirms") {
    Link link;
    REQUIRE(link.left.channel.send(message_of(0x0202, 1, 4'000'000)));
    // A record of 64 KiB each 10 ms: 6.5 MB/s.
    while (link.step(link.left, link.right)) {
      link.now += 10ms;
      while (link.step(link.right, link.left)) {
      }
    }
    CHECK(link.left.channel.goodput() > 5e6);
    CHECK(link.left.channel.goodput() < 8e6);
  }

  TEST_CASE("goodbye at once drops the queues, goodbye after messages sends them first") {
    for (const auto leave : {Leave::at_once, Leave::after_messages}) {
      Link link;
      REQUIRE(link.left.channel.send(message_of(0x0201, 1)));
      REQUIRE(link.left.channel.send(message_of(0x0202, 1, 900'000)));
      link.left.channel.say_bye({Errc::refused, Doing::stopping, "enough"}, leave);
      link.settle();
      CHECK(link.right.messages.size() == (leave == Leave::at_once ? 0 : 1));
      REQUIRE(link.right.bye);
      CHECK(link.right.bye->code == Errc::refused);
      CHECK(link.right.bye->detail == "enough");
      CHECK(link.left.channel.bye_taken());
      CHECK_FALSE(link.right.take(kStart, RecordType::ping, Bytes(8)));
    }
  }

  TEST_CASE("every record that breaks a rule ends the session") {
    const auto refused = [](RecordType type, const Bytes& body) {
      TransferBudget budget;
      Node node(End::responder, budget);
      return !node.take(kStart, type, body).has_value();
    };
    CHECK(refused(RecordType::welcome, {}));
    CHECK(refused(RecordType::ping, Bytes(7)));
    CHECK(refused(RecordType::pong, Bytes(9)));
    CHECK(refused(RecordType::message, Bytes(13)));
    CHECK(refused(RecordType::message, head_of(0x0007, 0, 0, 0)));
    CHECK(refused(RecordType::message, head_of(0x0101, 0, limits::kMaxMembershipBody + 1, 0)));
    CHECK(refused(RecordType::message, head_of(0x0201, 1, 0, limits::kMaxAttachment + 1)));
    CHECK(refused(RecordType::message, head_of(0x0201, 0, 0, 5)));
    CHECK(refused(RecordType::message, head_of(0x0201, 1, 0, 0)));
    CHECK(refused(RecordType::message, head_of(0x0201, 2, 0, 5)));
    auto longer = head_of(0x0201, 0, 3, 0);
    longer.resize(longer.size() + 4);
    CHECK(refused(RecordType::message, longer));
    CHECK(refused(RecordType::more, Bytes(1)));
    CHECK(refused(RecordType::bulk, numbers({1, 0})));
    CHECK(refused(RecordType::grant, numbers({1, 0, 0})));
    CHECK(refused(RecordType::refuse, numbers({1})));
    CHECK(refused(RecordType::abandon, numbers({1})));
    CHECK(refused(RecordType::bye, Bytes(3)));
  }

  TEST_CASE("a record inside a body, or a grant that takes back, ends the session") {
    TransferBudget budget;
    Node receiver(End::responder, budget);
    REQUIRE(receiver.take(kStart, RecordType::message, head_of(0x0201, 0, 10, 0)));
    CHECK_FALSE(receiver.take(kStart, RecordType::ping, Bytes(8)));

    const std::vector<std::vector<std::uint32_t>> grants = {
        {1, 0, 1'000},            // below the initial credit
        {1, 0, 2'000'000},        // beyond the attachment
        {1, 900'000, 1'000'000},  // more than was sent
        {2, 0, 1'000'000},        // another transfer
    };
    for (const auto& grant : grants) {
      Node sender(End::responder, budget);
      REQUIRE(sender.channel.send(message_of(0x0202, 1, 1'000'000)));
      while (sender.channel.next_record(kStart, limits::kMaxBulkRecord)) {
      }
      CHECK_FALSE(sender.take(kStart, RecordType::grant, numbers(grant)));
    }
  }

  TEST_CASE("a dialled session hears welcome or goodbye first, nothing else") {
    TransferBudget budget;
    Node early(End::initiator, budget);
    CHECK_FALSE(early.take(kStart, RecordType::ping, Bytes(8)));
    Node refused(End::initiator, budget);
    TransferBudget other;
    Channel responder(End::responder, other);
    responder.say_bye({Errc::duplicate_identity, Doing::handshaking, "twice"}, Leave::at_once);
    const auto record = responder.next_record(kStart, limits::kMaxBulkRecord);
    REQUIRE(record);
    REQUIRE(refused.take(kStart, record->type, whole(*record)));
    REQUIRE(refused.bye);
    CHECK(refused.bye->code == Errc::duplicate_identity);
  }

  TEST_CASE("attachments take turns, so a small one does not wait for a large one") {
    Link link;
    REQUIRE(link.left.channel.send(message_of(0x0202, 1, 8'000'000)));
    REQUIRE(link.left.channel.send(message_of(0x0203, 1, 100'000)));
    link.settle();
    REQUIRE(link.right.messages.size() == 2);
    CHECK(link.right.messages[0].type == 0x0203);
  }
}

}  // namespace
}  // namespace starling::transport
