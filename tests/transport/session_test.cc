#include "transport/session.h"

#include "tests/transport/harness.h"

#include <asio/ip/tcp.hpp>
#include <doctest/doctest.h>

#include <optional>

namespace starling::transport {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;

class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration time) { now_ += time; }

 private:
  TimePoint now_{std::chrono::seconds(50)};
};

class DeafHost final : public SessionHost {
 public:
  void on_welcome(Session&) override {}
  void on_message(Session&, Message) override {}
  bool admit(Session&, std::uint16_t, ByteView, std::size_t) override { return false; }
  void on_refused(Session&, std::uint16_t, ByteView) override {}
  void on_worn(Session&) override {}
};

// A session whose peer neither reads nor writes.
struct StuckSession {
  StuckSession() {
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    peer.connect(acceptor.local_endpoint());
    HandshakeOutcome outcome;
    outcome.send.set_key(noise::Key{std::byte{0x42}});
    outcome.receive.set_key(noise::Key{std::byte{0x43}});
    SessionInfo info;
    info.direction = Direction::accepted;
    const SessionServices services{budget, clock, host, log};
    session.emplace(acceptor.accept(), outcome, std::move(info), services);
    asio::co_spawn(
        io, [this] { return session->run(); },
        [this](const std::exception_ptr&, const Error& why) { ended = why; });
  }

  // Until it has ended, or for a while in which its ticker looks at the clock.
  bool ends_within(std::chrono::milliseconds time) {
    const SteadyClock real;
    for (const auto end = real.now() + time; !ended && real.now() < end;) io.run_one_for(50ms);
    return ended.has_value();
  }

  asio::io_context io{1};
  tcp::socket peer{io};
  TransferBudget budget;
  ManualClock clock;
  DeafHost host;
  NullLog log;
  std::optional<Session> session;
  std::optional<Error> ended;
};

TEST_SUITE("transport/session") {
  TEST_CASE("a session whose goodbye no peer answers ends after a second, in order") {
    assert_io_thread();
    StuckSession stuck;
    stuck.session->close({Errc::closed, Doing::stopping, "enough"}, Leave::after_messages);
    stuck.clock.advance(limits::kCloseDeadline);
    REQUIRE(stuck.ends_within(20s));
    CHECK(stuck.ended->detail == "enough");
    CHECK(stuck.session->how_it_ended() == SessionEnd::orderly);
  }

  TEST_CASE("who leaves has its patience for attachments under way, and a second for the goodbye") {
    assert_io_thread();
    const Error leaves{Errc::cancelled, Doing::stopping, "leaves"};
    StuckSession stuck;
    REQUIRE(stuck.session->send(bulk_message(0x0202, 50'000'000)));
    stuck.session->leave(leaves, 4s);
    CHECK_FALSE(stuck.session->send(control_message(0x0201, "too late")));
    stuck.clock.advance(3s);
    CHECK_FALSE(stuck.ends_within(1'500ms));
    CHECK(stuck.session->figures().queued_bulk_bytes > 0);
    stuck.clock.advance(1s);
    CHECK_FALSE(stuck.ends_within(1'500ms));
    CHECK(stuck.session->figures().queued_bulk_bytes == 0);  // and the goodbye is next
    stuck.clock.advance(limits::kCloseDeadline);
    REQUIRE(stuck.ends_within(20s));
    CHECK(stuck.ended->detail == "leaves");
    CHECK(stuck.session->how_it_ended() == SessionEnd::orderly);
  }

  TEST_CASE("who leaves with nothing under way waits for the goodbye alone") {
    assert_io_thread();
    StuckSession stuck;
    stuck.session->leave({Errc::cancelled, Doing::stopping, "leaves"}, 1h);
    stuck.clock.advance(limits::kCloseDeadline);
    CHECK(stuck.ends_within(20s));
  }

  TEST_CASE("a peer that reads the last attachment and no goodbye has a second from then on") {
    assert_io_thread();
    StuckSession stuck;
    REQUIRE(stuck.session->send(bulk_message(0x0202, 1'000)));  // which the kernel takes
    stuck.session->leave({Errc::cancelled, Doing::stopping, "leaves"}, 1h);
    CHECK_FALSE(stuck.ends_within(500ms));
    CHECK(stuck.session->figures().queued_bulk_bytes == 0);
    stuck.clock.advance(limits::kCloseDeadline);
    CHECK(stuck.ends_within(20s));
  }

  TEST_CASE("who leaves and finds a broken rule waits for nothing") {
    assert_io_thread();
    StuckSession stuck;
    REQUIRE(stuck.session->send(bulk_message(0x0202, 50'000'000)));
    stuck.session->leave({Errc::cancelled, Doing::stopping, "leaves"}, 1h);
    stuck.session->close({Errc::refused, Doing::stopping, "revoked"}, Leave::at_once);
    CHECK(stuck.session->figures().queued_bulk_bytes == 0);
    stuck.clock.advance(limits::kCloseDeadline);
    CHECK(stuck.ends_within(20s));
  }

  TEST_CASE("one that was replaced waits longer for the peer's goodbye, and without it lost some") {
    assert_io_thread();
    for (const auto successor : {Direction::dialled, Direction::accepted}) {
      CAPTURE(successor == Direction::dialled);
      StuckSession stuck;
      stuck.session->retire(successor);
      stuck.clock.advance(limits::kHandoverDeadline - 1s);
      CHECK_FALSE(stuck.ends_within(1'500ms));
      stuck.clock.advance(2s);
      REQUIRE(stuck.ends_within(20s));
      CHECK(stuck.session->how_it_ended() == SessionEnd::truncated);
    }
  }

  TEST_CASE("one that was replaced and is closed for a reason of its own does not linger") {
    assert_io_thread();
    StuckSession stuck;
    stuck.session->retire(Direction::dialled);
    stuck.session->close({Errc::refused, Doing::stopping, "revoked"}, Leave::at_once);
    stuck.clock.advance(limits::kCloseDeadline);
    CHECK(stuck.ends_within(20s));
  }
}

}  // namespace
}  // namespace starling::transport
