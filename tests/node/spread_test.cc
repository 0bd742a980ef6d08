// The admin's word and the next secret, from member to member, without a socket or a file.
#include "node/access/spread.h"

#include "tests/node/spread_world.h"
#include "tests/transport/certificates.h"
#include "transport/message.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;
using transport::Admin;
using transport::identity_of;
using transport::SwarmSecret;

TEST_SUITE("node/spread") {
  TEST_CASE(
      "a list that one member was given reaches all, and ends the sessions of whom it names") {
    SpreadWorld world(6);
    world.line_of_sessions();
    const auto victim = world.at(5).id();
    world.put_list(world.at(0), world.admin.revoke(1, {victim}));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(world.at(i).list.number == 1);
      CHECK_FALSE(world.sessions.contains({world.at(i).id(), victim}));
    }
  }

  TEST_CASE("who meets the swarm later is given the list, and what it missed") {
    SpreadWorld world(3);
    world.connect(world.at(0), world.at(1));
    world.put_list(world.at(0), world.admin.revoke(7, {identity_of(99).id()}));
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 7));
    CHECK(world.at(2).list.number == 0);
    world.connect(world.at(1), world.at(2));
    CHECK(world.at(2).list.number == 7);
    CHECK(world.at(2).accepted() == std::vector<std::uint64_t>{0, 1});
  }

  TEST_CASE("an older list changes nothing, from a peer or from a file") {
    SpreadWorld world(2);
    world.line_of_sessions();
    const auto old = world.admin.revoke(1, {identity_of(99).id()});
    const auto now = world.admin.revoke(2, {identity_of(99).id(), identity_of(98).id()});
    world.put_list(world.at(0), now);
    world.say(world.at(1), world.at(0).id(), transport::kRevocationsMessage,
              transport::encode_revocations(old).value());
    CHECK(world.at(1).list == now);
    CHECK(world.at(1).spread.figures().lists_stale == 1);
    CHECK(world.at(1).ended.empty());
    world.put_list(world.at(1), old);
    CHECK(world.at(1).list == now);
    CHECK(world.at(1).warnings == std::vector<std::string>{"revocations.older"});
  }

  TEST_CASE("two lists of one number are told of, from a file and from a peer") {
    SpreadWorld world(2);
    auto one = world.admin.revoke(1, {identity_of(99).id()});
    auto two = world.admin.revoke(1, {identity_of(98).id()});
    if (one.replaces(two)) std::swap(one, two);
    const auto bring = [&](const transport::Revocations& list) {
      world.say(world.at(1), world.at(0).id(), transport::kRevocationsMessage,
                transport::encode_revocations(list).value());
    };
    using Warnings = std::vector<std::string>;
    for (int i = 0; i < 2; ++i) world.put_list(world.at(0), one);
    CHECK(world.at(0).warnings.empty());
    for (const auto& list : {two, one}) world.put_list(world.at(0), list);
    CHECK(world.at(0).list == two);
    CHECK(world.at(0).warnings == Warnings{"revocations.differ", "revocations.differ"});

    world.connect(world.at(0), world.at(1));
    for (const auto& list : {two, one}) bring(list);
    CHECK(world.at(1).list == two);
    CHECK(world.at(1).warnings == Warnings{"revocations.differ"});
    one.signature = {};  // nobody signed that: no warning
    bring(one);
    CHECK(world.at(1).warnings.size() == 1);
    CHECK(world.at(1).ended.size() == 1);
  }

  TEST_CASE(
      "a list that the admin did not sign, or that is no list, ends the session that brought it") {
    SpreadWorld world(3);
    world.line_of_sessions();
    Admin other;
    other.key = identity_of(201);
    other.swarm = world.admin.swarm;
    auto& member = world.at(1);
    world.say(member, world.at(0).id(), transport::kRevocationsMessage,
              transport::encode_revocations(other.revoke(9, {world.at(2).id()})).value());
    REQUIRE(member.ended.size() == 1);
    CHECK(member.ended[0].code == Errc::bad_signature);
    world.say(member, world.at(2).id(), transport::kRevocationsMessage, Bytes(100));
    REQUIRE(member.ended.size() == 2);
    CHECK(member.ended[1].code == Errc::bad_message);
    CHECK(member.list.number == 0);
    CHECK(member.spread.figures().forged == 1);
  }

  TEST_CASE("a flood of lists or secrets is not looked at") {
    SpreadWorld world(2);
    world.line_of_sessions();
    const auto& figures = world.at(1).spread.figures();
    const auto list = transport::encode_revocations(world.admin.revoke(1, {})).value();
    const auto secret = to_bytes(as_bytes(world.secret.rotated(world.admin.key, 0).print()));
    for (int i = 0; i < 100; ++i) {
      world.say(world.at(1), world.at(0).id(), transport::kRevocationsMessage, list);
      world.say(world.at(1), world.at(0).id(), transport::kNextSecretMessage, secret);
    }
    CHECK(figures.lists_taken + figures.lists_stale == 5);
    CHECK(figures.secrets_taken == 1);
    CHECK(figures.unread == 2 * 95);
  }

  TEST_CASE("a secret that the admin ordered reaches all, takes over, and the one before it goes") {
    SpreadWorld world(7);
    world.line_of_sessions();
    world.tick();
    world.put_next(world.at(3), world.secret.rotated(world.admin.key, 0));
    for (const auto& member : world.members) {
      CHECK(member->accepted() == std::vector<std::uint64_t>{0, 1});
      CHECK(member->current.epoch() == 0);
      CHECK(member->spread.phase() == "spreading");
    }
    world.tick();
    for (const auto& member : world.members) {
      CHECK(member->current.epoch() == 1);
      CHECK(member->accepted() == std::vector<std::uint64_t>{0, 1});
      CHECK(member->spread.phase() == "promoted");
    }
    for (int i = 0; i < 20; ++i) world.tick();
    for (const auto& member : world.members) {
      CHECK(member->accepted() == std::vector<std::uint64_t>{1});
      CHECK(member->spread.phase() == "steady");
      CHECK(member->current.bytes().front() == world.at(3).current.bytes().front());
      CHECK(member->warnings.empty());
      CHECK(member->ended.empty());
    }
  }

  TEST_CASE("nobody dials with a secret that an alive member does not hold") {
    SpreadWorld world(4);
    world.connect(world.at(0), world.at(1));
    world.connect(world.at(1), world.at(2));
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    for (int i = 0; i < 60; ++i) world.tick();
    CHECK(world.at(0).current.epoch() == 0);
    CHECK(world.at(0).spread.waiting_for() == 1);
    world.connect(world.at(2), world.at(3));
    world.tick();
    world.tick();
    for (const auto& member : world.members) CHECK(member->current.epoch() == 1);
  }

  TEST_CASE("a dead member is not waited for, but the secret that it knows is kept for it") {
    SpreadWorld world(3);
    world.connect(world.at(0), world.at(1));
    const std::set<NodeId> dead{world.at(2).id()};
    world.tick(dead);
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    for (int i = 0; i < 60; ++i) world.tick(dead);
    CHECK(world.at(0).current.epoch() == 1);
    CHECK(world.at(0).accepted() == std::vector<std::uint64_t>{0, 1});
    // It comes back with the old secret, and gets the new one.
    world.connect(world.at(1), world.at(2));
    for (int i = 0; i < 30; ++i) world.tick();
    for (const auto& member : world.members)
      CHECK(member->accepted() == std::vector<std::uint64_t>{1});
  }

  TEST_CASE("who was revoked is neither waited for nor given the secret") {
    SpreadWorld world(4);
    world.line_of_sessions();
    world.connect(world.at(0), world.at(3));
    const auto lost = world.at(3).id();
    world.tick();
    world.put_list(world.at(0), world.admin.revoke(1, {lost}));
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 1));
    for (int i = 0; i < 30; ++i) world.tick();
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(world.at(i).accepted() == std::vector<std::uint64_t>{1});
    CHECK(world.at(3).accepted() == std::vector<std::uint64_t>{0});
  }

  TEST_CASE("a secret waits for the list that its order names") {
    SpreadWorld world(2);
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 5));
    world.connect(world.at(0), world.at(1));
    world.tick();
    CHECK(world.at(1).accepted() == std::vector<std::uint64_t>{0});
    world.put_list(world.at(0), world.admin.revoke(5, {identity_of(99).id()}));
    world.tick();
    CHECK(world.at(1).current.epoch() == 1);
  }

  TEST_CASE(
      "a secret that the admin did not order is kept by nobody, and its bringer loses the "
      "session") {
    SpreadWorld world(4);
    world.line_of_sessions();
    auto& member = world.at(1);
    const auto bring = [&](const NodeId& from, const SwarmSecret& secret) {
      world.say(member, from, transport::kNextSecretMessage, to_bytes(as_bytes(secret.print())));
    };
    bring(world.at(0).id(), world.secret.rotated());
    REQUIRE(member.ended.size() == 1);
    CHECK(member.ended[0].code == Errc::bad_signature);
    bring(world.at(2).id(), world.secret.rotated(identity_of(1), 0));
    CHECK(member.ended.size() == 2);
    world.connect(world.at(0), member);
    bring(world.at(0).id(), SwarmSecret::generate().rotated(world.admin.key, 0));
    CHECK(member.ended.size() == 3);
    CHECK(member.accepted() == std::vector<std::uint64_t>{0});
    CHECK(member.spread.figures().forged == 3);
  }

  TEST_CASE("an order that was carried out brings no secret back") {
    SpreadWorld world(3);
    world.line_of_sessions();
    world.tick();
    const auto first = world.secret.rotated(world.admin.key, 0);
    const auto second = first.rotated(world.admin.key, 0);
    for (const auto* next : {&first, &second}) {
      world.put_next(world.at(0), copy_of_secret(*next));
      for (int i = 0; i < 30; ++i) world.tick();
    }
    CHECK(world.at(2).accepted() == std::vector<std::uint64_t>{2});
    world.say(world.at(2), world.at(1).id(), transport::kNextSecretMessage,
              to_bytes(as_bytes(first.print())));
    CHECK(world.at(2).accepted() == std::vector<std::uint64_t>{2});
    CHECK(world.at(2).ended.empty());
  }

  TEST_CASE("two orders of one epoch stop the rotation and are told, a third heals them") {
    SpreadWorld world(3);
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    world.put_next(world.at(2), world.secret.rotated(world.admin.key, 0));
    world.line_of_sessions();
    for (int i = 0; i < 30; ++i) world.tick();
    for (const auto& member : world.members) CHECK(member->current.epoch() == 0);
    CHECK(std::ranges::any_of(world.members, [](const auto& m) {
      return std::ranges::count(m->warnings, "secret.differs") > 0;
    }));
    world.put_next(world.at(0), world.at(0).next->rotated(world.admin.key, 0));
    for (int i = 0; i < 30; ++i) world.tick();
    for (const auto& member : world.members)
      CHECK(member->accepted() == std::vector<std::uint64_t>{2});
  }

  TEST_CASE("a holder that did not say so is believed by nobody") {
    SpreadWorld world(3);
    world.line_of_sessions();
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    auto& member = world.at(1);
    const SecretMark mark{1, transport::SwarmKey::of(*member.next).current()->id};
    SpreadWorld fresh(2);
    const SecretHeld lie{mark, {{identity_of(77).id(), Signature{}}}};
    // Nobody knows 77: not even looked at.
    world.say(member, world.at(0).id(), transport::kSecretHeldMessage, encode_held(lie));
    CHECK(member.ended.empty());
    SpreadWorld late(4);
    late.connect(late.at(0), late.at(1));
    late.tick();
    late.put_next(late.at(0), late.secret.rotated(late.admin.key, 0));
    const SecretMark next{1, transport::SwarmKey::of(*late.at(1).next).current()->id};
    const SecretHeld forged{next, {{late.at(3).id(), Signature{}}}};
    late.say(late.at(1), late.at(0).id(), transport::kSecretHeldMessage, encode_held(forged));
    REQUIRE(late.at(1).ended.size() == 1);
    CHECK(late.at(1).ended[0].code == Errc::bad_signature);
  }

  TEST_CASE("a node that is alone keeps the secret that those who come may know") {
    SpreadWorld world(1);
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    for (int i = 0; i < 60; ++i) world.tick();
    // It has only just started, perhaps: it dials as the others do.
    CHECK(world.at(0).current.epoch() == 0);
    for (int i = 0; i < 90; ++i) world.tick();
    CHECK(world.at(0).current.epoch() == 1);
    for (int i = 0; i < 3600; ++i) world.tick();
    CHECK(world.at(0).accepted() == std::vector<std::uint64_t>{0, 1});
    CHECK(world.at(0).spread.phase() == "promoted");

    auto& late = world.add(2);
    world.tick();
    world.connect(world.at(0), late);
    CHECK(late.accepted() == std::vector<std::uint64_t>{0, 1});
    for (int i = 0; i < 30; ++i) world.tick();
    for (const auto& member : world.members)
      CHECK(member->accepted() == std::vector<std::uint64_t>{1});
  }

  TEST_CASE("who is met within the first minutes is waited for, alive ones before a promotion") {
    SpreadWorld world(1);
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    for (int i = 0; i < 60; ++i) world.tick();
    world.add(2);  // alive, and without a session
    for (int i = 0; i < 600; ++i) world.tick();
    CHECK(world.at(0).current.epoch() == 0);
    CHECK(world.at(0).spread.waiting_for() == 1);
    world.connect(world.at(0), world.at(1));
    world.tick();
    CHECK(world.at(0).current.epoch() == 1);
  }

  TEST_CASE("who sees nobody alive waits for those it knows: it may be cut off itself") {
    SpreadWorld world(3);
    world.connect(world.at(0), world.at(1));
    const std::set<NodeId> others{world.at(1).id(), world.at(2).id()};
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    for (int i = 0; i < 600; ++i) world.tick(others);
    CHECK(world.at(0).current.epoch() == 0);
    CHECK(world.at(0).spread.waiting_for() == 1);
    // Those who were revoked are no company, and nobody to wait for.
    world.put_list(world.at(0), world.admin.revoke(1, others));
    world.tick(others);
    CHECK(world.at(0).current.epoch() == 1);
    for (int i = 0; i < 60; ++i) world.tick(others);
    CHECK(world.at(0).accepted() == std::vector<std::uint64_t>{0, 1});
  }

  TEST_CASE("after its time a rotation goes on without those who do not answer") {
    SpreadWorld world(2);
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    world.now += 24h;
    world.tick();
    CHECK(world.at(0).current.epoch() == 1);
  }

  TEST_CASE("what is put into a newcomer's folder reaches the node that it was talking to before") {
    SpreadWorld world(2);
    auto& issuer = world.at(0);
    auto& newcomer = world.at(1);
    world.sessions = {{issuer.id(), newcomer.id()}, {newcomer.id(), issuer.id()}};
    // What it is told before it has a certificate is nothing to it.
    CHECK(issuer.spread.on_session_up(world.now, newcomer.id()).size() == 1);
    world.carry_out(newcomer, newcomer.spread.on_session_up(world.now, issuer.id()));
    world.run();

    world.put_list(newcomer, world.admin.revoke(1, {identity_of(99).id()}));
    world.put_next(newcomer, world.secret.rotated(world.admin.key, 1));

    CHECK(issuer.list.number == 1);
    CHECK(issuer.accepted() == std::vector<std::uint64_t>{0, 1});
  }

  TEST_CASE("facts are answered once a session, and again by who has changed its admin") {
    SpreadWorld world(2);
    auto& member = world.at(0);
    const auto peer = world.at(1).id();
    world.sessions = {{member.id(), peer}};
    world.carry_out(member, member.spread.on_session_up(world.now, peer));
    const auto says = [&](const NodeId& admin) {
      const auto before = member.told;
      world.say(member, peer, transport::kAccessFactsMessage, encode_facts({admin, 0, {}, false}));
      return member.told - before;
    };
    CHECK(says(identity_of(201).id()) == 1);
    CHECK(says(identity_of(201).id()) == 0);
    CHECK(says(world.admin.key.id()) == 1);
    CHECK(says(world.admin.key.id()) == 0);
  }

  TEST_CASE("a member whose disk fails twice is offered the secret again until it has it") {
    SpreadWorld world(3);
    world.line_of_sessions();
    world.connect(world.at(0), world.at(2));
    world.tick();
    auto& unlucky = world.at(2);
    unlucky.failures_to_come = 2;
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    CHECK(unlucky.accepted() == std::vector<std::uint64_t>{0});
    for (int i = 0; i < 180; ++i) world.tick();
    CHECK(unlucky.failures == 2);
    for (const auto& member : world.members) {
      CHECK(member->accepted() == std::vector<std::uint64_t>{1});
      CHECK(member->ended.empty());
    }
  }

  TEST_CASE("a disk that fails in a second rotation makes no liar of its node") {
    SpreadWorld world(4);
    world.line_of_sessions();
    world.disconnect(world.at(2).id(), world.at(3).id());  // the first rotation waits for this one
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    auto& unlucky = world.at(1);
    unlucky.failures_to_come = 1;
    world.put_next(world.at(0), world.at(0).next->rotated(world.admin.key, 0));
    CHECK(unlucky.failures == 1);
    // It tells who holds the first one, to somebody who knows of nobody.
    world.connect(unlucky, world.at(3));
    for (int i = 0; i < 180; ++i) world.tick();
    for (const auto& member : world.members) {
      CHECK(member->accepted() == std::vector<std::uint64_t>{2});
      CHECK(member->ended.empty());
    }
  }

  TEST_CASE("a secret that cannot be written is tried ever less often, however often it is told") {
    SpreadWorld world(2);
    world.line_of_sessions();
    auto& unlucky = world.at(1);
    unlucky.failures_to_come = 1'000'000;
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    for (int i = 0; i < 3600; ++i) world.tick();
    CHECK(unlucky.failures >= 6);
    CHECK(unlucky.failures <= 12);
    unlucky.failures_to_come = 0;
    for (int i = 0; i < 700; ++i) world.tick();
    CHECK(unlucky.accepted() == std::vector<std::uint64_t>{1});
  }

  TEST_CASE("a promotion that cannot succeed is tried ever less often, and goes on when it can") {
    SpreadWorld world(1);
    auto& member = world.at(0);
    member.failures_to_come = 1'000'000;
    world.put_next(member, world.secret.rotated(world.admin.key, 0));
    for (int i = 0; i < 3600; ++i) {
      world.tick();
      // What else is in the files changes nothing in this.
      if (i % 60 == 0) world.carry_out(member, member.read_files(world.now));
    }
    CHECK(member.failures >= 6);
    CHECK(member.failures <= 12);
    member.failures_to_come = 0;
    for (int i = 0; i < 660; ++i) world.tick();
    CHECK(member.current.epoch() == 1);

    member.failures_to_come = 1;
    world.put_next(member, world.at(0).current.rotated(world.admin.key, 0));
    for (int i = 0; i < 135; ++i) world.tick();
    CHECK(member.current.epoch() == 2);
  }

  TEST_CASE("a node of another admin is told of once, and nothing passes between the two") {
    SpreadWorld world(1);
    Admin other;
    other.swarm = world.admin.swarm;
    other.key = identity_of(201);
    auto& strange = *world.members.emplace_back(
        std::make_unique<SpreadMember>(static_cast<unsigned char>(9), other, world.secret));
    world.carry_out(strange, strange.read_files(world.now));
    world.connect(world.at(0), strange);
    world.put_list(world.at(0), world.admin.revoke(4, {identity_of(99).id()}));
    CHECK(strange.list.number == 0);
    CHECK(strange.ended.empty());
    CHECK(strange.warnings == std::vector<std::string>{"admin.differs"});
  }

  TEST_CASE("messages survive their bytes, and other lengths are refused") {
    AccessFacts facts{identity_of(1).id(), 3, {4, {std::byte{5}}}, true};
    CHECK(decode_facts(encode_facts(facts)).value() == facts);
    auto bytes = encode_facts(facts);
    bytes.back() = std::byte{2};
    CHECK_FALSE(decode_facts(bytes));
    CHECK_FALSE(decode_facts(ByteView(bytes).first(bytes.size() - 1)));
    const SecretHeld held{{4, {}}, {{identity_of(1).id(), {}}, {identity_of(2).id(), {}}}};
    CHECK(decode_held(encode_held(held)).value() == held);
    for (const std::size_t size : {0U, 15U, 16U, 17U, 111U, 113U})
      CHECK_FALSE(decode_held(Bytes(size)));
    CHECK(decode_held(Bytes(112)));
    CHECK_FALSE(decode_held(Bytes(16 + 96 * 65)));
  }

  // Reproduced without our code by tests/transport/certificate_vectors.py.
  TEST_CASE("what a holder signs never changes") {
    SecretMark mark{1, {}};
    mark.key.fill(std::byte{1});
    const Admin admin;
    const auto part = held_part(admin.swarm, mark);
    CHECK(to_hex(identity_of(2).sign(kHeldDomain, part).view()) ==
          "d470c23652cde5bda2cc69fd1504f9a5acdd0902e6a4f660d2f098fd85ad0c47"
          "ad1b21ad172b71fa851160cec502a3b537f78e0b3b45f616dcdfabaa5ada140f");
  }

  TEST_CASE("messages that cannot be read end their session") {
    SpreadWorld world(2);
    world.line_of_sessions();
    for (const auto type : {transport::kAccessFactsMessage, transport::kRevocationsMessage,
                            transport::kNextSecretMessage, transport::kSecretHeldMessage}) {
      world.connect(world.at(0), world.at(1));
      world.at(1).ended.clear();
      world.say(world.at(1), world.at(0).id(), type, Bytes(7));
      CHECK(world.at(1).ended.size() == 1);
    }
  }
}
