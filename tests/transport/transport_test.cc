#include "transport/transport.h"

#include "tests/transport/harness.h"
#include "tests/transport/relay.h"
#include "transport/handshake.h"

#include <asio/connect.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <vector>

namespace starling::transport {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;

TEST_SUITE("transport/transport") {
  TEST_CASE("two nodes that share a secret meet and know each other") {
    assert_io_thread();
    Pair pair;

    const auto& seen = pair.left.events.up.front();
    CHECK(seen.peer == pair.right.id());
    CHECK(seen.name == "node-2");
    CHECK(seen.instance == Instance{2});
    CHECK(seen.direction == Direction::dialled);
    CHECK(seen.peer_addresses == std::vector<Endpoint>{{"192.0.2.1", 7411}});
    CHECK(pair.right.events.up.front().peer == pair.left.id());
    CHECK(pair.right.events.up.front().direction == Direction::accepted);
    CHECK(pair.right.events.up.front().remote.host == "127.0.0.1");
    CHECK(pair.left.transport->has_session(pair.right.id()));
    CHECK(pair.left.transport->totals().handshakes_ok == 1);
  }

  TEST_CASE("what a peer does not acknowledge for half a minute ends the session") {
    assert_io_thread();
    Pair pair;
    // Nothing on loopback is ever lost, so the promise is read off the sockets of both ends.
    int asked = 0;
    for (int number = 0; number < 1'024; ++number) {
      unsigned patience = 0;
      socklen_t size = sizeof patience;
      if (::getsockopt(number, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, &size) == 0 &&
          patience == 30'000)
        ++asked;
    }
    CHECK(asked == 2);
  }

  TEST_CASE("messages arrive both ways in order, and a 5 MB attachment arrives whole") {
    assert_io_thread();
    Pair pair;
    for (int i = 0; i < 100; ++i)
      REQUIRE(
          pair.left.transport->send(pair.right.id(), control_message(0x0201, std::to_string(i))));
    const auto bulk = bulk_message(0x0202, 5'000'000);
    REQUIRE(pair.right.transport->send(pair.left.id(), bulk));
    REQUIRE(pair.left.transport->send(pair.right.id(), bulk));

    REQUIRE(pair.world.run_until([&] {
      return pair.right.events.messages.size() == 101 && pair.left.events.messages.size() == 1;
    }));
    for (int i = 0; i < 100; ++i)
      CHECK(as_text(pair.right.events.messages[static_cast<std::size_t>(i)].second.body) ==
            std::to_string(i));
    CHECK(*pair.left.events.messages[0].second.attachment == *bulk.attachment);
    CHECK(*pair.right.events.messages[100].second.attachment == *bulk.attachment);

    CHECK(pair.world.run_until([&] {  // the last confirmation
      assert_io_thread();
      const auto now = pair.left.transport->figures();
      return !now.empty() && now[0].goodput > 0 && now[0].queued_bulk_bytes == 0 &&
             pair.left.transport->totals().sent.total() ==
                 pair.right.transport->totals().received.total();
    }));
    const auto figures = pair.left.transport->figures();
    REQUIRE(figures.size() == 1);
    CHECK(figures[0].sent.bulk > 5'000'000);
    CHECK(figures[0].received.bulk > 5'000'000);
    CHECK(figures[0].goodput > 0);
    CHECK(figures[0].queued_bulk_bytes == 0);
  }

  TEST_CASE("an attachment that the peer does not admit is refused by name and costs one chunk") {
    assert_io_thread();
    Pair pair;
    pair.right.events.admits = false;
    auto message = bulk_message(0x0202, 5'000'000);
    message.body = to_bytes(as_bytes("offer 812"));
    REQUIRE(pair.left.transport->send(pair.right.id(), message));
    REQUIRE(pair.world.run_until([&] { return !pair.left.events.refused.empty(); }));

    CHECK(pair.right.events.asked == 1);
    CHECK(pair.left.events.refused[0].first == 0x0202);
    CHECK(as_text(pair.left.events.refused[0].second) == "offer 812");
    CHECK(pair.right.transport->totals().received.bulk < 300'000);
    CHECK(pair.right.transport->totals().reserved_bytes == 0);
    CHECK(pair.right.events.messages.empty());
  }

  TEST_CASE("in secret mode a stranger gets no byte") {
    assert_io_thread();
    TestWorld world;
    auto& node = world.add();
    auto& stranger = world.add(SwarmKey::of(SwarmSecret::generate()));
    const auto port = node.transport->listen(kAnyPort).value();
    stranger.transport->dial({port, {}});
    REQUIRE(world.run_until([&] { return !stranger.events.dial_failed.empty(); }));
    CHECK(stranger.events.dial_failed[0].code == Errc::wrong_swarm);
    CHECK(stranger.events.dial_failed[0].detail.starts_with("closed without a reply"));
    CHECK(node.transport->totals().handshakes_failed.wrong_swarm == 1);

    // The right key id with a message 1 that was not made with the key, and plain rubbish.
    const auto own = SwarmKey::of(world.secret());
    Preamble preamble;
    preamble.mode = Mode::secret;
    preamble.key = own.current()->id;
    const auto clear = encode_preamble(preamble);
    Bytes guess(clear.begin(), clear.end());
    guess.push_back(std::byte{0});
    guess.push_back(std::byte{48});
    guess.resize(guess.size() + 48, std::byte{0x5a});
    for (const auto& bytes : {guess, Bytes(200, std::byte{'x'})}) {
      tcp::socket socket(world.io());
      socket.connect({asio::ip::address_v4::loopback(), port.port});
      asio::write(socket, asio::buffer(bytes));
      std::array<char, 16> reply;
      std::optional<std::size_t> got;
      socket.async_read_some(asio::buffer(reply),
                             [&](const std::error_code&, std::size_t size) { got = size; });
      REQUIRE(world.run_until([&] { return got.has_value(); }));
      CHECK(*got == 0);
    }
    CHECK(node.events.up.empty());
  }

  TEST_CASE("open swarms with different names refuse each other by name") {
    assert_io_thread();
    TestWorld world;
    auto& node = world.add(SwarmKey::open("cats"));
    auto& friendly = world.add(SwarmKey::open("cats"));
    auto& other = world.add(SwarmKey::open("dogs"));
    const auto port = node.transport->listen(kAnyPort).value();
    friendly.transport->dial({port, {}});
    other.transport->dial({port, {}});
    REQUIRE(world.run_until(
        [&] { return !friendly.events.up.empty() && !other.events.dial_failed.empty(); }));
    CHECK(other.events.dial_failed[0].code == Errc::wrong_swarm);
    CHECK(other.events.dial_failed[0].detail.starts_with("the peer belongs to swarm"));
  }

  TEST_CASE("an address that pins an identity fails on another one") {
    assert_io_thread();
    TestWorld world;
    auto& node = world.add();
    auto& dialler = world.add();
    const auto port = node.transport->listen(kAnyPort).value();
    dialler.transport->dial({port, dialler.id()});
    REQUIRE(world.run_until([&] { return !dialler.events.dial_failed.empty(); }));
    CHECK(dialler.events.dial_failed[0].code == Errc::wrong_identity);
    dialler.transport->dial({port, node.id()});
    CHECK(world.run_until([&] { return !dialler.events.up.empty(); }));
  }

  TEST_CASE("a node that dials itself is told so") {
    assert_io_thread();
    TestWorld world;
    auto& node = world.add();
    const auto port = node.transport->listen(kAnyPort).value();
    node.transport->dial({port, {}});
    REQUIRE(world.run_until([&] { return !node.events.dial_failed.empty(); }));
    CHECK(node.events.dial_failed[0].code == Errc::already_exists);
    CHECK(node.events.up.empty());
  }

  TEST_CASE("a second process with the same identity is refused by name") {
    assert_io_thread();
    TestWorld world;
    auto& hub = world.add();
    const auto port = hub.transport->listen(kAnyPort).value();
    const std::array<std::byte, 32> seed{std::byte{9}};
    auto& original = world.add_clone_of(seed);
    original.transport->dial({port, {}});
    REQUIRE(world.run_until([&] { return !hub.events.up.empty(); }));
    auto& clone = world.add_clone_of(seed);
    clone.transport->dial({port, {}});
    REQUIRE(world.run_until([&] { return !clone.events.dial_failed.empty(); }));
    CHECK(clone.events.dial_failed[0].code == Errc::duplicate_identity);
    CHECK(
        clone.events.dial_failed[0].detail.starts_with("this identity already runs at 127.0.0.1"));
    CHECK(hub.events.down.empty());
    CHECK(hub.transport->has_session(original.id()));

    const auto address = original.transport->listen(kAnyPort).value();
    clone.transport->dial({address, {}});
    REQUIRE(world.run_until([&] { return clone.events.dial_failed.size() == 2; }));
    CHECK(clone.events.dial_failed[1].code == Errc::duplicate_identity);
  }

  TEST_CASE("two nodes that dial each other at once keep one session, and can use it") {
    assert_io_thread();
    for (int round = 0; round < 5; ++round) {
      CAPTURE(round);
      TestWorld world;
      auto& a = world.add();
      auto& b = world.add();
      const auto a_port = a.transport->listen(kAnyPort).value();
      const auto b_port = b.transport->listen(kAnyPort).value();
      a.transport->dial({b_port, {}});
      b.transport->dial({a_port, {}});
      REQUIRE(world.run_until([&] {
        assert_io_thread();
        const auto of_a = a.transport->sessions();
        const auto of_b = b.transport->sessions();
        return a.events.up.size() == a.events.down.size() + 1 &&
               b.events.up.size() == b.events.down.size() + 1 && of_a.size() == 1 &&
               of_b.size() == 1 && of_a[0].direction != of_b[0].direction;
      }));
      world.run_for(50ms);  // and nothing more happens
      CHECK(a.events.up.size() == a.events.down.size() + 1);
      CHECK(b.events.up.size() == b.events.down.size() + 1);
      CHECK(a.transport->sessions().size() == 1);
      CHECK(b.transport->sessions().size() == 1);
      CHECK(a.transport->sessions()[0].direction != b.transport->sessions()[0].direction);
      CHECK(a.events.dial_failed.empty());
      CHECK(b.events.dial_failed.empty());
      REQUIRE(a.transport->send(b.id(), control_message(0x0101, "hello")));
      REQUIRE(b.transport->send(a.id(), control_message(0x0101, "hello")));
      CHECK(world.run_until(
          [&] { return !a.events.messages.empty() && !b.events.messages.empty(); }));
    }
  }

  TEST_CASE("dialling a node that has a session already is neither an error nor a second session") {
    assert_io_thread();
    Pair pair;
    const auto port = pair.left.transport->listen(kAnyPort).value();
    std::vector<NodeId> met;
    pair.right.transport->dial({port, {}}, [&](const NodeId& peer) { met.push_back(peer); });
    REQUIRE(pair.world.run_until([&] { return !met.empty(); }));
    CHECK(met == std::vector{pair.left.id()});
    CHECK(pair.left.events.up.size() == 1);
    CHECK(pair.right.events.up.size() == 1);
    CHECK(pair.left.events.down.empty());
    CHECK(pair.right.events.dial_failed.empty());
  }

  TEST_CASE("a session that is ending is in no dial's way") {
    assert_io_thread();
    TestWorld world;
    auto& left = world.add();
    auto& right = world.add();
    Relay relay(world.io(), right.transport->listen(kAnyPort).value());
    left.transport->dial({relay.endpoint(), {}});
    REQUIRE(world.run_until([&] { return !left.events.up.empty() && !right.events.up.empty(); }));

    // The peer hears nothing of the goodbye, which therefore takes a second.
    for (const auto way : {Relay::Way::there, Relay::Way::back}) relay.hold(0, way);
    left.transport->close(right.id(), {Errc::timed_out, Doing::stopping, "no answer"});
    left.transport->dial({relay.endpoint(), {}});
    CHECK(
        world.run_until([&] { return left.events.up.size() == 2 && right.events.up.size() == 2; }));
    CHECK(left.events.down.size() == 1);
    CHECK(left.events.dial_failed.empty());
    relay.stop();
    CHECK(world.run_until([&] { return relay.idle(); }));
  }

  TEST_CASE("a session that another one took over is counted as closed") {
    assert_io_thread();
    TestWorld world;
    auto& left = world.add();
    auto& right = world.add();
    Relay relay(world.io(), right.transport->listen(kAnyPort).value());
    left.transport->dial({relay.endpoint(), {}});
    REQUIRE(world.run_until([&] { return !left.events.up.empty() && !right.events.up.empty(); }));
    // Neither hears the other's goodbye: the one of the left is answered by a new connection.
    for (const auto way : {Relay::Way::there, Relay::Way::back}) relay.hold(0, way);
    left.transport->close(right.id(), {Errc::timed_out, Doing::stopping, "no answer"});
    left.transport->dial({relay.endpoint(), {}});
    REQUIRE(
        world.run_until([&] { return left.events.up.size() == 2 && right.events.up.size() == 2; }));
    CHECK(world.run_until([&] {
      assert_io_thread();
      return left.transport->totals().sessions_closed == 1 &&
             right.transport->totals().sessions_closed == 1;
    }));
    relay.stop();
    CHECK(world.run_until([&] {
      assert_io_thread();
      return relay.idle() && left.transport->totals().sessions_closed == 2 &&
             right.transport->totals().sessions_closed == 2;
    }));
    CHECK(left.transport->totals().sessions_opened == 2);
    CHECK(right.transport->totals().sessions_opened == 2);
  }

  TEST_CASE("close ends a session with its reason, after the messages that were queued") {
    assert_io_thread();
    Pair pair;
    REQUIRE(pair.left.transport->send(pair.right.id(), control_message(0x0101, "last words")));
    pair.left.transport->close(pair.right.id(), {Errc::settings_mismatch, Doing::joining, "no"});
    REQUIRE(pair.world.run_until(
        [&] { return !pair.left.events.down.empty() && !pair.right.events.down.empty(); }));
    CHECK(pair.right.events.messages.size() == 1);
    CHECK(pair.right.events.down[0].second.code == Errc::settings_mismatch);
    CHECK(pair.right.events.down[0].second.detail == "no");
    CHECK(pair.right.transport->totals().truncations == 0);
    CHECK_FALSE(pair.left.transport->send(pair.right.id(), control_message(0x0101, "more")));
  }

  TEST_CASE("who stops with patience sends first what is under way, and no longer than that") {
    assert_io_thread();
    for (const bool reads : {true, false}) {
      CAPTURE(reads);
      TestWorld world;
      auto& left = world.add();
      auto& right = world.add();
      Relay relay(world.io(), right.transport->listen(kAnyPort).value());
      left.transport->dial({relay.endpoint(), {}});
      REQUIRE(world.run_until([&] { return !left.events.up.empty() && !right.events.up.empty(); }));
      if (!reads) relay.hold(0, Relay::Way::there);
      REQUIRE(left.transport->send(right.id(), bulk_message(0x0203, 20'000'000)));
      auto close = control_message(0x0204, "closed");
      close.in_order = true;
      REQUIRE(left.transport->send(right.id(), close));
      bool stopped = false;
      auto* transport = left.transport.get();
      const Duration patience = reads ? Duration(60s) : Duration(500ms);
      asio::co_spawn(
          world.io(), [transport, patience] { return transport->stop(patience); },
          [&stopped](const std::exception_ptr&) { stopped = true; });
      CHECK(world.run_until([&] { return stopped; }));
      if (reads) {
        CHECK(world.run_until([&] { return !right.events.down.empty(); }));
        REQUIRE(right.events.messages.size() == 2);
        CHECK(right.events.messages[0].second.type == 0x0203);
        CHECK(right.events.down[0].second.detail == "the node stops");
        CHECK(right.transport->totals().truncations == 0);
      }
      relay.stop();
      CHECK(world.run_until([&] { return relay.idle(); }));
    }
  }

  TEST_CASE("a port that is taken and a host without address are reported") {
    assert_io_thread();
    Pair pair;
    const auto port = pair.left.transport->listen(kAnyPort).value();
    const auto taken = pair.right.transport->listen(port);
    REQUIRE_FALSE(taken);
    CHECK(taken.error().code == Errc::listen_failed);
    CHECK_FALSE(pair.right.transport->listen({"not-an-address", 1}));
    tcp::acceptor closed(pair.world.io(), {asio::ip::address_v4::loopback(), 0});
    const auto free_port = closed.local_endpoint().port();
    closed.close();
    pair.left.transport->dial({{"127.0.0.1", free_port}, {}});
    REQUIRE(pair.world.run_until([&] { return !pair.left.events.dial_failed.empty(); }));
    // What a verdict about a member that is gone rests on: no other failure says so much.
    CHECK(pair.left.events.dial_failed[0].code == Errc::connect_refused);
  }

  TEST_CASE("a byte that is changed on the way ends that session, names why, and no other") {
    assert_io_thread();
    Pair pair;
    auto& third = pair.world.add();
    Relay relay(pair.world.io(), pair.right.transport->listen(kAnyPort).value());
    third.transport->dial({relay.endpoint(), {}});
    REQUIRE(pair.world.run_until([&] { return pair.right.events.up.size() == 2; }));
    REQUIRE(pair.world.run_until([&] { return !third.events.up.empty(); }));
    relay.flip_next();
    REQUIRE(third.transport->send(pair.right.id(), bulk_message(0x0202, 100'000)));
    REQUIRE(pair.world.run_until([&] { return !third.events.down.empty(); }));
    // The one that was told is back before the other side has done with its goodbye.
    third.transport->dial({pair.right.transport->listen(kAnyPort).value(), {}});
    REQUIRE(pair.world.run_until([&] { return third.events.up.size() == 2; }));
    relay.stop();
    REQUIRE(pair.world.run_until([&] {
      assert_io_thread();
      return pair.right.transport->totals().bad_records == 1 && relay.idle();
    }));
    REQUIRE(!pair.right.events.down.empty());
    CHECK(pair.right.events.down[0].first == third.id());
    CHECK(pair.right.events.down[0].second.code == Errc::bad_message);
    CHECK(third.events.down[0].second.code == Errc::bad_message);
    CHECK(pair.right.events.messages.empty());
    CHECK(pair.left.events.down.empty());
    CHECK(pair.right.transport->has_session(pair.left.id()));
    CHECK(pair.right.transport->totals().reserved_bytes == 0);
  }

  TEST_CASE("a connection that ends without a goodbye is a truncation, and may come back") {
    assert_io_thread();
    TestWorld world;
    auto& left = world.add();
    auto& right = world.add();
    const auto port = right.transport->listen(kAnyPort).value();
    for (std::size_t round = 1; round <= 2; ++round) {
      Relay relay(world.io(), port);
      left.transport->dial({relay.endpoint(), {}});
      REQUIRE(world.run_until(
          [&] { return left.events.up.size() == round && right.events.up.size() == round; }));
      relay.stop();
      REQUIRE(world.run_until([&] {
        return left.events.down.size() == round && right.events.down.size() == round &&
               relay.idle();
      }));
    }
    CHECK(right.events.down[0].second.code == Errc::closed);
    CHECK(right.transport->totals().truncations == 2);
    CHECK(right.transport->totals().bad_records == 0);
    CHECK(right.transport->totals().sessions_opened == 2);
    CHECK(right.transport->totals().sessions_closed == 2);
  }

  TEST_CASE("an address that opens nine connections at once has one turned away") {
    assert_io_thread();
    TestWorld world;
    auto& node = world.add();
    const auto port = node.transport->listen(kAnyPort).value();
    std::vector<tcp::socket> sockets;
    for (int i = 0; i < 9; ++i)
      sockets.emplace_back(world.io()).connect({asio::ip::address_v4::loopback(), port.port});
    REQUIRE(world.run_until([&] {
      assert_io_thread();
      return node.transport->totals().handshakes_failed.crowded == 1;
    }));
    CHECK(node.transport->totals().unauthenticated == 8);
  }

  TEST_CASE("connections that say nothing, from everywhere, keep no newcomer out") {
    assert_io_thread();
    TestWorld world;
    auto& node = world.add();
    auto& newcomer = world.add();
    const auto port = node.transport->listen(kAnyPort).value();
    constexpr std::size_t kPlaces = limits::kMaxUnauthenticated - limits::kUnauthenticatedReserve;
    std::vector<tcp::socket> silent;
    for (std::uint32_t i = 0; i < kPlaces; ++i) {
      auto& socket = silent.emplace_back(world.io());
      socket.open(tcp::v4());
      socket.bind({asio::ip::address_v4(0x7f010001U + i), 0});
      socket.connect({asio::ip::address_v4::loopback(), port.port});
    }
    REQUIRE(world.run_until([&] {
      assert_io_thread();
      return node.transport->totals().unauthenticated == kPlaces;
    }));
    newcomer.transport->dial({port, {}});
    REQUIRE(world.run_until(
        [&] { return !newcomer.events.up.empty() || !newcomer.events.dial_failed.empty(); }));
    CHECK(newcomer.events.dial_failed.empty());
    CHECK(node.transport->totals().handshakes_failed.crowded == 1);
    CHECK(node.transport->totals().unauthenticated == kPlaces - 1);
  }
}

}  // namespace
}  // namespace starling::transport
