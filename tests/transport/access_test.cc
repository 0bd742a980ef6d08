// Who gets a session: secrets in rotation, lists of nodes, invites.
#include "tests/transport/certificates.h"
#include "tests/transport/harness.h"
#include "transport/handshake.h"

#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace starling::transport {
namespace {

// A desk with one invite, which it counts in memory.
struct OneInvite final : InviteDesk {
  std::optional<noise::Key> find(const KeyId& id) override {
    if (redeemed > 0 || id != id_of_key(key)) return std::nullopt;
    return key;
  }
  Task<bool> redeem(KeyId) override { co_return ++redeemed == 1; }

  noise::Key key = make_invite_key();
  int redeemed = 0;
};

// One whose disk is slow: it answers when the test says so, and no cancellation hurries it.
struct SlowInvite final : InviteDesk {
  std::optional<noise::Key> find(const KeyId&) override { return key; }
  Task<bool> redeem(KeyId) override {
    asked = true;
    const auto executor = co_await asio::this_coro::executor;
    asio::steady_timer timer(executor);
    while (!written) {
      timer.expires_after(std::chrono::milliseconds(2));
      const auto [error] = co_await timer.async_wait(as_result);
      cancelled = cancelled || error;
    }
    co_return true;
  }

  noise::Key key = make_invite_key();
  bool asked = false;
  bool written = false;
  bool cancelled = false;
};

TEST_SUITE("transport/access") {
  TEST_CASE("during a rotation the previous secret still opens the door") {
    assert_io_thread();
    TestWorld world;
    const auto next = world.secret().rotated();
    auto key = SwarmKey::of(next);
    key.also_accept(world.secret());
    auto& rotated = world.add(std::move(key));
    auto& behind = world.add();
    const auto port = rotated.transport->listen(kAnyPort).value();
    behind.transport->dial({port, {}});
    CHECK(world.run_until([&] { return !behind.events.up.empty(); }));
  }

  TEST_CASE("a rotation of the key at run time opens the door for both secrets") {
    assert_io_thread();
    TestWorld world;
    const auto next = world.secret().rotated();
    auto& node = world.add();
    auto& early = world.add(SwarmKey::of(next));
    const auto port = node.transport->listen(kAnyPort).value();
    early.transport->dial({port, {}});
    REQUIRE(world.run_until([&] { return !early.events.dial_failed.empty(); }));
    auto key = SwarmKey::of(world.secret());
    key.also_accept(next);
    node.transport->set_key(std::move(key));
    early.transport->dial({port, {}});
    CHECK(world.run_until([&] { return !early.events.up.empty(); }));
  }

  TEST_CASE("a promoted secret renews the sessions, and the layer above notices nothing") {
    assert_io_thread();
    Pair pair;
    const auto next = pair.world.secret().rotated();
    auto accepting = SwarmKey::of(pair.world.secret());
    accepting.also_accept(next);
    pair.right.transport->set_key(std::move(accepting));
    REQUIRE(pair.left.transport->send(pair.right.id(), control_message(0x0201, "before")));

    auto promoted = SwarmKey::of(next);
    promoted.also_accept(pair.world.secret());
    pair.left.transport->set_key(std::move(promoted));
    REQUIRE(pair.left.transport->send(pair.right.id(), control_message(0x0201, "after")));

    REQUIRE(pair.world.run_until([&] {
      assert_io_thread();
      return pair.right.transport->totals().sessions_opened == 2 &&
             pair.right.transport->totals().sessions_closed == 1;
    }));
    CHECK(pair.right.events.messages.size() == 2);
    CHECK(pair.right.events.up.size() == 1);
    CHECK(pair.right.events.down.empty());
    CHECK(pair.left.events.down.empty());
  }

  TEST_CASE("a node that is denied loses its session and gets no other, and is told why") {
    assert_io_thread();
    Pair pair;
    PeerRules rules;
    rules.denied.insert(pair.left.id());
    pair.right.transport->set_peer_rules(rules);
    REQUIRE(pair.world.run_until(
        [&] { return !pair.left.events.down.empty() && !pair.right.events.down.empty(); }));
    CHECK(pair.left.events.down[0].second.code == Errc::refused);
    CHECK(pair.left.events.down[0].second.detail.find("denied") != std::string::npos);
    const auto port = pair.right.transport->listen(kAnyPort).value();
    pair.left.transport->dial({port, {}});
    REQUIRE(pair.world.run_until([&] { return !pair.left.events.dial_failed.empty(); }));
    CHECK(pair.left.events.dial_failed[0].code == Errc::refused);
    CHECK(pair.right.transport->totals().handshakes_failed.refused == 1);
    CHECK(pair.left.transport->totals().handshakes_failed.refused == 1);
    CHECK(pair.left.transport->totals().handshakes_ok == 1);

    pair.right.transport->set_peer_rules({});
    pair.left.transport->dial({port, {}});
    CHECK(pair.world.run_until([&] { return pair.left.events.up.size() == 2; }));
  }

  TEST_CASE("a newcomer with an invite gets in once, and then needs the secret") {
    assert_io_thread();
    TestWorld world;
    OneInvite desk;
    auto& issuer = world.add(desk);
    const auto invited = [&] { return SwarmKey::invited(world.secret().swarm(), desk.key); };
    auto& newcomer = world.add(invited());
    auto& late = world.add(invited());
    const auto port = issuer.transport->listen(kAnyPort).value();
    newcomer.transport->dial({port, {}});
    REQUIRE(
        world.run_until([&] { return !newcomer.events.up.empty() && !issuer.events.up.empty(); }));
    CHECK(newcomer.events.up[0].invited);
    CHECK(issuer.events.up[0].invited);
    CHECK(desk.redeemed == 1);
    late.transport->dial({port, {}});
    REQUIRE(world.run_until([&] { return !late.events.dial_failed.empty(); }));
    CHECK(late.events.dial_failed[0].code == Errc::wrong_swarm);
    CHECK(late.events.dial_failed[0].detail.find("invite") != std::string::npos);

    auto text = world.secret().print();
    REQUIRE(issuer.transport->send(newcomer.id(), control_message(kSwarmSecretMessage, text)));
    REQUIRE(world.run_until([&] { return !newcomer.events.messages.empty(); }));
    const auto given = SwarmSecret::parse(as_text(newcomer.events.messages[0].second.body));
    newcomer.transport->set_key(SwarmKey::of(given.value()));
    auto& member = world.add();
    newcomer.transport->dial({member.transport->listen(kAnyPort).value(), {}});
    CHECK(world.run_until([&] { return !member.events.up.empty(); }));
    CHECK_FALSE(member.events.up.at(0).invited);
    CHECK(newcomer.transport->has_session(issuer.id()));
  }

  TEST_CASE("a handshake whose time is over while an invite is counted ends with the count") {
    assert_io_thread();
    TestWorld world;
    SlowInvite desk;
    auto& issuer = world.add(desk);
    const auto port = issuer.transport->listen(kAnyPort).value();
    const auto newcomer = Identity::generate();
    const auto newcomers_key = noise::KeyPair::generate();
    const auto invited = SwarmKey::invited(world.secret().swarm(), desk.key);
    ReplayMemory replays;
    HandshakeContext context{newcomer, newcomers_key, invited, replays, {}, {}};
    auto handshake = Handshake::initiate(std::move(context), {});
    asio::ip::tcp::socket socket(world.io());
    socket.connect({asio::ip::address_v4::loopback(), port.port});
    asio::write(socket, asio::buffer(handshake.take_output()));
    REQUIRE(world.run_until([&] { return desk.asked; }));

    bool stopped = false;
    auto* transport = issuer.transport.get();
    asio::co_spawn(
        world.io(), [transport] { return transport->stop(); },
        [&stopped](const std::exception_ptr&) { stopped = true; });
    REQUIRE(world.run_until([&] { return desk.cancelled; }));
    CHECK_FALSE(stopped);
    desk.written = true;

    std::array<char, 16> reply;
    std::optional<std::size_t> got;
    socket.async_read_some(asio::buffer(reply),
                           [&](const std::error_code&, std::size_t size) { got = size; });
    REQUIRE(world.run_until([&] { return got.has_value(); }));
    CHECK(*got == 0);  // message 2 would wait for message 3
    CHECK(world.run_until([&] { return stopped; }));
  }

  TEST_CASE(
      "the first session of an invited node ends when the certificate it was given is revoked") {
    assert_io_thread();
    TestWorld world;
    OneInvite desk;
    auto& issuer = world.add(desk);
    auto& newcomer = world.add(SwarmKey::invited(world.secret().swarm(), desk.key));
    const Admin admin;
    const auto rules_with = [&](Revocations revoked) {
      PeerRules rules;
      rules.admin = {admin.key.id(), admin.swarm, std::move(revoked)};
      return rules;
    };
    const auto inviter = admin.inviter(issuer.id(), 40);
    const auto given = admin.invited(inviter, issuer.identity, newcomer.id(), 41);
    issuer.transport->set_peer_rules(rules_with({}));
    newcomer.transport->dial({issuer.transport->listen(kAnyPort).value(), {}});
    REQUIRE(world.run_until([&] { return !issuer.events.up.empty(); }));
    CHECK_FALSE(issuer.events.up[0].certificate);

    issuer.transport->set_certificate_of(newcomer.id(), given);
    // Somebody else's serial: nothing to this session.
    issuer.transport->set_peer_rules(rules_with(admin.revoke(1, {}, {42})));
    REQUIRE(issuer.transport->sessions().size() == 1);
    CHECK(issuer.transport->sessions()[0].certificate == given);
    REQUIRE(issuer.transport->send(newcomer.id(), control_message(0x0201, "still here")));
    REQUIRE(world.run_until([&] { return !newcomer.events.messages.empty(); }));

    issuer.transport->set_peer_rules(rules_with(admin.revoke(2, {}, {41, 42})));
    REQUIRE(world.run_until([&] { return !newcomer.events.down.empty(); }));
    CHECK(newcomer.events.down[0].second.code == Errc::refused);
    CHECK(newcomer.events.down[0].second.detail.find("revoked") != std::string::npos);
  }

  TEST_CASE("a certificate that is void when it is given ends the session at once") {
    assert_io_thread();
    Pair pair;
    const Admin admin;
    const auto inviter = admin.inviter(pair.right.id(), 40);
    PeerRules rules;
    rules.admin = {admin.key.id(), admin.swarm, admin.revoke(1, {}, {40})};
    rules.allowed.emplace().insert(pair.left.id());  // otherwise it ends for want of one
    pair.right.transport->set_peer_rules(rules);
    CHECK(pair.right.events.down.empty());
    pair.right.transport->set_certificate_of(
        pair.left.id(), admin.invited(inviter, pair.right.identity, pair.left.id(), 41));
    REQUIRE(pair.world.run_until([&] { return !pair.left.events.down.empty(); }));
    CHECK(pair.left.events.down[0].second.detail.find("inviter") != std::string::npos);
  }

  TEST_CASE("under an admin certificates open the doors of both sides, until they are revoked") {
    assert_io_thread();
    Pair pair;
    const Admin admin;
    auto& stranger = pair.world.add();
    const auto rules_with = [&](Revocations revoked) {
      PeerRules rules;
      rules.admin = {admin.key.id(), admin.swarm, std::move(revoked)};
      return rules;
    };
    for (auto* node : {&pair.left, &pair.right}) {
      node->transport->set_certificate(admin.member(node->id(), 5));
      node->transport->set_peer_rules(rules_with({}));
    }
    // Their session began without: it ends with the first rules.
    REQUIRE(pair.world.run_until(
        [&] { return !pair.left.events.down.empty() && !pair.right.events.down.empty(); }));
    const auto port = pair.right.transport->listen(kAnyPort).value();
    pair.left.transport->dial({port, {}});
    stranger.transport->dial({port, {}});
    REQUIRE(pair.world.run_until([&] {
      return pair.left.events.up.size() == 2 && pair.right.events.up.size() == 2 &&
             !stranger.events.dial_failed.empty();
    }));
    CHECK(pair.right.events.up[1].certificate == admin.member(pair.left.id(), 5));
    CHECK(stranger.events.dial_failed[0].code == Errc::refused);
    CHECK(stranger.events.dial_failed[0].detail.find("no certificate") != std::string::npos);

    pair.right.transport->set_peer_rules(rules_with(admin.revoke(1, {pair.left.id()})));
    REQUIRE(pair.world.run_until([&] { return pair.left.events.down.size() == 2; }));
    CHECK(pair.left.events.down[1].second.detail.find("revoked") != std::string::npos);
    pair.left.transport->dial({port, {}});
    REQUIRE(pair.world.run_until([&] { return !pair.left.events.dial_failed.empty(); }));
    CHECK(pair.left.events.dial_failed[0].detail.find("revoked") != std::string::npos);
  }

  TEST_CASE("a dialler shows nothing of itself to a node that its own rules refuse") {
    assert_io_thread();
    TestWorld world;
    auto& left = world.add();
    auto& right = world.add();
    PeerRules rules;
    rules.allowed.emplace().insert(left.id());
    left.transport->set_peer_rules(rules);
    left.transport->dial({right.transport->listen(kAnyPort).value(), {}});
    REQUIRE(world.run_until([&] {
      assert_io_thread();
      return !left.events.dial_failed.empty() && right.transport->totals().unauthenticated == 0;
    }));
    CHECK(left.events.dial_failed[0].code == Errc::refused);
    CHECK(right.events.up.empty());
    CHECK(right.transport->totals().handshakes_ok == 0);
  }
}

}  // namespace
}  // namespace starling::transport
