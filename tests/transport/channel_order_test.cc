// What may overtake an attachment, and what may not (decision 0071).
#include "tests/transport/channel_pair.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace starling::transport {
namespace {

using namespace testing;

TEST_SUITE("transport/channel_order") {
  TEST_CASE("what is in order waits for the attachments of its room, and holds up no other room") {
    Link link;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 1'000'000)));
    REQUIRE(link.left.channel.send(in_order(message_of(0x0203, 10))));
    REQUIRE(link.left.channel.send(message_of(0x0204, 10, 100)));
    REQUIRE(link.left.channel.send(in_order(message_of(0x0205, 10))));
    REQUIRE(link.left.channel.send(message_of(0x0206, 10)));
    REQUIRE(link.left.channel.send(in_order(message_of(0x0301, 10))));
    REQUIRE(link.left.channel.send(message_of(0x0302, 10, 100)));
    link.settle();
    CHECK(types_of(link.right.messages) ==
          std::vector<std::uint16_t>{0x0301, 0x0302, 0x0202, 0x0203, 0x0204, 0x0205, 0x0206});
    CHECK(link.left.channel.idle());
    CHECK(link.left.channel.queued_control_bytes() == 0);
  }

  TEST_CASE("what is in order goes when the attachment before it is refused") {
    Link link;
    link.right.admitter.admits = false;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 5'000'000)));
    REQUIRE(link.left.channel.send(in_order(message_of(0x0203, 10))));
    link.settle();
    CHECK(types_of(link.right.messages) == std::vector<std::uint16_t>{0x0203});
    CHECK(link.left.refused == 1);
    CHECK(link.left.channel.idle());
  }

  TEST_CASE("attachments that wait behind what is in order count as under way") {
    Link link;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 1'000'000)));
    REQUIRE(link.left.channel.send(in_order(message_of(0x0203, 10))));
    for (std::size_t i = 1; i < limits::kMaxTransfers; ++i)
      REQUIRE(link.left.channel.send(message_of(0x0204, 10, 100)));
    CHECK(link.left.channel.send(message_of(0x0204, 10, 100)).error().code == Errc::too_many);
    CHECK(link.left.channel.unfinished().size() == limits::kMaxTransfers);
    CHECK(link.left.channel.queued_bulk_bytes() == 1'000'000 + 100 * (limits::kMaxTransfers - 1));
    link.settle();
    CHECK(link.right.messages.size() == limits::kMaxTransfers + 1);
  }

  TEST_CASE("a goodbye after messages takes along what is in order, without the attachments") {
    Link link;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 1'000'000)));
    REQUIRE(link.left.channel.send(in_order(message_of(0x0203, 10))));
    REQUIRE(link.left.channel.send(message_of(0x0204, 10, 100)));
    REQUIRE(link.left.channel.send(message_of(0x0205, 10)));
    (void)link.step(link.left, link.right);  // the announcement
    link.left.channel.say_bye(Error{Errc::cancelled, Doing::stopping, "over"},
                              Leave::after_messages);
    link.settle();
    CHECK(types_of(link.right.messages) == std::vector<std::uint16_t>{0x0203, 0x0205});
    CHECK(link.right.bye.has_value());
    CHECK(link.left.channel.queued_control_bytes() == 0);
  }

  TEST_CASE("a goodbye after attachments lets them and what waits for them go first") {
    Link link;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 20'000'000)));
    REQUIRE(link.left.channel.send(in_order(message_of(0x0203, 10))));
    REQUIRE(link.left.channel.send(message_of(0x0204, 10, 100)));
    (void)link.step(link.left, link.right);  // the announcement
    link.left.channel.say_bye(Error{Errc::cancelled, Doing::stopping, "over"},
                              Leave::after_attachments);
    REQUIRE(link.left.channel.finishing());
    CHECK(link.left.channel.send(message_of(0x0205, 10)).error().code == Errc::closed);
    // What the peer wants to send meanwhile is for nobody.
    REQUIRE(link.right.channel.send(message_of(0x0206, 10, 100)));
    while (link.step(link.right, link.left)) {
    }
    link.settle();
    CHECK(types_of(link.right.messages) == std::vector<std::uint16_t>{0x0202, 0x0203, 0x0204});
    CHECK(link.right.bye.has_value());
    CHECK(link.right.refused == 1);
    CHECK_FALSE(link.left.channel.finishing());
  }

  TEST_CASE("a goodbye after attachments waits for none that is refused") {
    Link link;
    link.right.admitter.admits = false;
    REQUIRE(link.left.channel.send(message_of(0x0202, 10, 20'000'000)));
    link.left.channel.say_bye(Error{Errc::cancelled, Doing::stopping, "over"},
                              Leave::after_attachments);
    link.settle();
    CHECK(link.right.bye.has_value());
  }

  TEST_CASE("a goodbye after attachments may be hurried, and then drops them") {
    for (const auto leave : {Leave::at_once, Leave::after_messages}) {
      CAPTURE(leave == Leave::at_once);
      Link link;
      REQUIRE(link.left.channel.send(message_of(0x0202, 10, 20'000'000)));
      REQUIRE(link.left.channel.send(in_order(message_of(0x0203, 10))));
      const Error over{Errc::cancelled, Doing::stopping, "over"};
      link.left.channel.say_bye(over, Leave::after_attachments);
      for (int i = 0; i < 3; ++i) REQUIRE(link.step(link.left, link.right));
      link.left.channel.say_bye(over, leave);
      CHECK_FALSE(link.left.channel.finishing());
      link.settle();
      CHECK(link.right.messages.size() == (leave == Leave::at_once ? 0 : 1));
      CHECK(link.right.bye.has_value());
    }
  }
}

}  // namespace
}  // namespace starling::transport
