// Renewal: a session that is replaced by a fresh handshake.
#include "tests/transport/harness.h"
#include "tests/transport/relay.h"
#include "transport/transport.h"

#include <doctest/doctest.h>

namespace starling::transport {
namespace {

using namespace std::chrono_literals;
using Way = Relay::Way;

constexpr int kMessages = 20;
constexpr std::size_t kBody = 60'000;

Message numbered(int number) {
  auto message = control_message(0x0201, std::to_string(number));
  message.body.resize(kBody);
  return message;
}

int number_of(const Message& message) {
  return std::stoi(std::string(as_text(ByteView(message.body).first(2))));
}

// Two nodes whose session goes through a relay and is renewed at the next opportunity.
struct RenewingPair {
  TestWorld world;
  TestNode& left = world.add(renewing());
  TestNode& right = world.add();
  Relay relay{world.io(), right.transport->listen(kAnyPort).value()};

  RenewingPair() {
    assert_io_thread();
    left.transport->dial({relay.endpoint(), {}});
    REQUIRE(world.run_until([&] { return !left.events.up.empty() && !right.events.up.empty(); }));
  }
  ~RenewingPair() {
    relay.stop();
    CHECK(world.run_until([&] { return relay.idle(); }));
  }

  static TransportOptions renewing() {
    TransportOptions options;
    options.renew_after = 1ms;
    return options;
  }

  // Holds one way of the session, queues messages for that way, and waits for the renewal, whose
  // session takes one message more.
  void renew_while_held(Way way) {
    assert_io_thread();
    auto& from = way == Way::there ? left : right;
    auto& to = way == Way::there ? right : left;
    relay.hold(0, way);
    for (int i = 10; i < 10 + kMessages; ++i) REQUIRE(from.transport->send(to.id(), numbered(i)));
    REQUIRE(world.run_until([&] {
      assert_io_thread();
      return left.transport->totals().sessions_opened == 2 &&
             right.transport->totals().sessions_opened == 2;
    }));
    REQUIRE(from.transport->send(to.id(), numbered(10 + kMessages)));
  }
};

// How many messages arrived; they must be the first that were sent, in order.
std::size_t in_order(const RecordingEvents& events) {
  int expected = 10;
  for (const auto& [peer, message] : events.messages) CHECK(number_of(message) == expected++);
  return events.messages.size();
}

TEST_SUITE("transport/renewal") {
  TEST_CASE(
      "a worn session is replaced by a fresh handshake, and no message is lost or reordered") {
    assert_io_thread();
    TestWorld world;
    TransportOptions options;
    options.renew_after = 1ms;
    auto& left = world.add(options);
    auto& right = world.add();
    left.transport->dial({right.transport->listen(kAnyPort).value(), {}});
    REQUIRE(world.run_until([&] { return !left.events.up.empty() && !right.events.up.empty(); }));
    int sent = 0;
    const auto renewed = [&] {
      assert_io_thread();
      return left.transport->totals().sessions_opened >= 3 &&
             right.transport->totals().sessions_closed >= 2;
    };
    REQUIRE(world.run_until([&] {
      assert_io_thread();
      if (renewed()) return true;
      const auto text = std::to_string(sent);
      REQUIRE(left.transport->send(right.id(), control_message(0x0201, text)));
      REQUIRE(right.transport->send(left.id(), control_message(0x0201, text)));
      ++sent;
      return false;
    }));
    REQUIRE(world.run_until([&] {
      return left.events.messages.size() == static_cast<std::size_t>(sent) &&
             right.events.messages.size() == static_cast<std::size_t>(sent);
    }));
    for (auto* events : {&left.events, &right.events}) {
      CHECK(events->up.size() == 1);
      CHECK(events->down.empty());
      int wrong = 0;
      for (int i = 0; i < sent; ++i) {
        const auto& body = events->messages[static_cast<std::size_t>(i)].second.body;
        wrong += as_text(body) == std::to_string(i) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
    CHECK(right.transport->totals().truncations == 0);
    CHECK(left.transport->sessions().size() == 1);
  }

  TEST_CASE(
      "a stop ends a renewal whose peer says nothing, without the pause before the next try") {
    assert_io_thread();
    RenewingPair pair;
    pair.relay.fall_silent();
    REQUIRE(pair.world.run_until([&] { return pair.relay.connections() == 2; }));
    const SteadyClock clock;
    const auto start = clock.now();
    bool stopped = false;
    auto* transport = pair.left.transport.get();
    asio::co_spawn(
        pair.world.io(), [transport] { return transport->stop(); },
        [&stopped](const std::exception_ptr&) { stopped = true; });
    REQUIRE(pair.world.run_until([&] { return stopped; }));
    CHECK(clock.now() - start < limits::kRenewRetry / 2);
  }

  TEST_CASE("a session that was replaced has time for its queue on a slow line") {
    assert_io_thread();
    for (const auto way : {Way::there, Way::back}) {
      CAPTURE(way == Way::there);
      RenewingPair pair;
      pair.renew_while_held(way);
      pair.world.run_for(std::chrono::ceil<std::chrono::milliseconds>(limits::kCloseDeadline) +
                         500ms);
      pair.relay.go_on(0, way);
      const auto& events = way == Way::there ? pair.right.events : pair.left.events;
      CHECK(pair.world.run_until([&] { return events.messages.size() == kMessages + 1; }));
      CHECK(in_order(events) == kMessages + 1);
      CHECK(pair.left.events.down.empty());
      CHECK(pair.right.events.down.empty());
    }
  }

  TEST_CASE(
      "both sides are told of a renewal that lost messages, and none is heard after the gap") {
    assert_io_thread();
    for (const auto way : {Way::there, Way::back}) {
      CAPTURE(way == Way::there);
      RenewingPair pair;
      pair.renew_while_held(way);
      pair.relay.cut(0);
      CHECK(pair.world.run_until(
          [&] { return !pair.left.events.down.empty() && !pair.right.events.down.empty(); }));
      CHECK(in_order(way == Way::there ? pair.right.events : pair.left.events) < kMessages);
      CHECK(pair.left.events.down.size() == 1);
      CHECK(pair.right.events.down.size() == 1);
      // As after any session that ended.
      pair.left.transport->dial({pair.relay.endpoint(), {}});
      CHECK(pair.world.run_until(
          [&] { return pair.left.events.up.size() == 2 && pair.right.events.up.size() == 2; }));
    }
  }

  TEST_CASE("a session that is closed while its renewal is under way ends on both sides") {
    assert_io_thread();
    for (const bool accepted : {false, true}) {
      CAPTURE(accepted);
      RenewingPair pair;
      REQUIRE(pair.world.run_until([&] {
        assert_io_thread();
        const auto opened = pair.right.transport->totals().sessions_opened;
        return pair.relay.connections() == 2 && (!accepted || opened == 2);
      }));
      pair.relay.hold(1, Way::back);  // message 2, or the welcome
      pair.left.transport->close(pair.right.id(), {Errc::closed, Doing::stopping, "enough"});
      pair.relay.go_on(1, Way::back);
      CHECK(pair.world.run_until(
          [&] { return !pair.left.events.down.empty() && !pair.right.events.down.empty(); }));
      pair.world.run_for(200ms);
      for (const auto* node : {&pair.left, &pair.right}) {
        CHECK(node->events.up.size() == 1);
        CHECK(node->events.down.size() == 1);
        CHECK(node->transport->sessions().empty());
      }
    }
  }
}

}  // namespace
}  // namespace starling::transport
