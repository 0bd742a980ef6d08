// The admin's word and the next secret, from member to member, without a socket or a file.
#include "node/access/spread.h"

#include "tests/transport/certificates.h"
#include "transport/message.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;
using transport::Admin;
using transport::identity_of;
using transport::Revocations;
using transport::SwarmSecret;

namespace {

const transport::Ed25519Verifier kVerifier;

SwarmSecret clone(const SwarmSecret& secret) { return SwarmSecret::parse(secret.print()).value(); }

// One member: its spread and the files that its effects change.
struct Member {
  Member(unsigned char number, const Admin& admin, const SwarmSecret& secret)
      : identity(identity_of(number)),
        spread({admin.key.id(), admin.swarm, identity, kVerifier, 24h}),
        current(clone(secret)) {}

  [[nodiscard]] NodeId id() const { return identity.id(); }
  [[nodiscard]] SpreadEffects read_files(TimePoint now) {
    return spread.on_files(now, list,
                           {next ? *next : current, next.has_value(), previous.has_value()});
  }
  [[nodiscard]] std::vector<std::uint64_t> accepted() const {
    std::vector<std::uint64_t> epochs{current.epoch()};
    if (next) epochs.push_back(next->epoch());
    if (previous) epochs.push_back(previous->epoch());
    std::ranges::sort(epochs);
    return epochs;
  }

  transport::Identity identity;
  Spread spread;
  Revocations list;
  SwarmSecret current;
  std::optional<SwarmSecret> next;
  std::optional<SwarmSecret> previous;
  std::vector<std::string> warnings;
  std::vector<Error> ended;  // sessions that this member ended
  std::size_t told = 0;      // messages that it sent
};

// Members, sessions between them, and a disk that takes its time.
struct World {
  explicit World(unsigned char count) {
    admin.swarm = secret.swarm();
    for (unsigned char number = 1; number <= count; ++number) add(number);
  }
  Member& add(unsigned char number) {
    auto& member = *members.emplace_back(std::make_unique<Member>(number, admin, secret));
    carry_out(member, member.read_files(now));
    return member;
  }
  Member& at(std::size_t index) { return *members.at(index); }
  Member* find(const NodeId& id) {
    const auto found = std::ranges::find_if(members, [&](const auto& m) { return m->id() == id; });
    return found == members.end() ? nullptr : found->get();
  }
  void connect(Member& a, Member& b) {
    sessions.insert({a.id(), b.id()});
    sessions.insert({b.id(), a.id()});
    carry_out(a, a.spread.on_session_up(now, b.id()));
    carry_out(b, b.spread.on_session_up(now, a.id()));
    run();
  }
  void disconnect(const NodeId& a, const NodeId& b) {
    if (sessions.erase({a, b}) + sessions.erase({b, a}) == 0) return;
    if (auto* one = find(a)) one->spread.on_session_down(b);
    if (auto* two = find(b)) two->spread.on_session_down(a);
  }
  void carry_out(Member& member, SpreadEffects effects) {
    for (auto& effect : effects) {
      if (auto* send = std::get_if<SendAccess>(&effect)) {
        ++member.told;
        if (sessions.contains({member.id(), send->to}))
          line.push_back({member.id(), std::move(*send)});
      } else if (auto* use = std::get_if<UseRevocations>(&effect)) {
        member.list = use->list;
        for (const auto& revoked : use->list.nodes) disconnect(member.id(), revoked);
      } else if (auto* keep = std::get_if<KeepNextSecret>(&effect)) {
        writing.emplace_back(&member, SwarmSecret::parse(as_text(keep->text)).value());
      } else if (std::holds_alternative<PromoteSecret>(effect)) {
        member.previous = std::exchange(member.current, std::move(*member.next));
        member.next.reset();
        carry_out(member, member.read_files(now));
      } else if (std::holds_alternative<DropPreviousSecret>(effect)) {
        member.previous.reset();
        carry_out(member, member.read_files(now));
      } else if (auto* end = std::get_if<EndSession>(&effect)) {
        member.ended.push_back(end->why);
        disconnect(member.id(), end->peer);
      } else if (auto* warning = std::get_if<SpreadWarning>(&effect)) {
        member.warnings.push_back(warning->event);
      }
    }
  }
  // Delivers what is under way, and lets the disk finish.
  void run() {
    while (!line.empty() || !writing.empty()) {
      if (line.empty()) {
        auto [member, text] = std::move(writing.front());
        writing.pop_front();
        member->next = std::move(text);
        carry_out(*member, member->read_files(now));
        continue;
      }
      auto [from, sent] = std::move(line.front());
      line.pop_front();
      if (!sessions.contains({from, sent.to})) continue;
      auto* to = find(sent.to);
      carry_out(*to, to->spread.on_message(now, from, sent.type, sent.body));
    }
  }
  // A second passes; everybody takes those with `alive` for the swarm.
  void tick(const std::set<NodeId>& absent = {}) {
    now += 1s;
    for (const auto& member : members) {
      SpreadMembers others;
      for (const auto& other : members) {
        if (other == member) continue;
        others.known.insert(other->id());
        if (!absent.contains(other->id())) others.alive.insert(other->id());
      }
      carry_out(*member, member->spread.on_tick(now, others));
    }
    run();
  }
  void line_of_sessions() {
    for (std::size_t i = 1; i < members.size(); ++i) connect(at(i - 1), at(i));
  }
  void put_list(Member& member, Revocations list) {
    member.list = std::move(list);
    carry_out(member, member.read_files(now));
    for (const auto& revoked : member.list.nodes) disconnect(member.id(), revoked);
    run();
  }
  void put_next(Member& member, SwarmSecret next) {
    member.next = std::move(next);
    carry_out(member, member.read_files(now));
    run();
  }
  // What a node outside the machinery says to a member.
  void say(Member& to, const NodeId& from, std::uint16_t type, ByteView body) {
    carry_out(to, to.spread.on_message(now, from, type, body));
    run();
  }

  SwarmSecret secret = SwarmSecret::generate();
  Admin admin;
  TimePoint now{};
  std::vector<std::unique_ptr<Member>> members;
  std::set<std::pair<NodeId, NodeId>> sessions;
  std::deque<std::pair<NodeId, SendAccess>> line;
  std::deque<std::pair<Member*, SwarmSecret>> writing;
};

}  // namespace

TEST_SUITE("node/spread") {
  TEST_CASE(
      "a list that one member was given reaches all, and ends the sessions of whom it names") {
    World world(6);
    world.line_of_sessions();
    const auto victim = world.at(5).id();
    world.put_list(world.at(0), world.admin.revoke(1, {victim}));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(world.at(i).list.number == 1);
      CHECK_FALSE(world.sessions.contains({world.at(i).id(), victim}));
    }
  }

  TEST_CASE("who meets the swarm later is given the list, and what it missed") {
    World world(3);
    world.connect(world.at(0), world.at(1));
    world.put_list(world.at(0), world.admin.revoke(7, {identity_of(99).id()}));
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 7));
    CHECK(world.at(2).list.number == 0);
    world.connect(world.at(1), world.at(2));
    CHECK(world.at(2).list.number == 7);
    CHECK(world.at(2).accepted() == std::vector<std::uint64_t>{0, 1});
  }

  TEST_CASE("an older list changes nothing, from a peer or from a file") {
    World world(2);
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

  TEST_CASE(
      "a list that the admin did not sign, or that is no list, ends the session that brought it") {
    World world(3);
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
    World world(2);
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
    World world(7);
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
    World world(4);
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
    World world(3);
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
    World world(4);
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
    World world(2);
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
    World world(4);
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
    World world(3);
    world.line_of_sessions();
    world.tick();
    const auto first = world.secret.rotated(world.admin.key, 0);
    const auto second = first.rotated(world.admin.key, 0);
    for (const auto* next : {&first, &second}) {
      world.put_next(world.at(0), clone(*next));
      for (int i = 0; i < 30; ++i) world.tick();
    }
    CHECK(world.at(2).accepted() == std::vector<std::uint64_t>{2});
    world.say(world.at(2), world.at(1).id(), transport::kNextSecretMessage,
              to_bytes(as_bytes(first.print())));
    CHECK(world.at(2).accepted() == std::vector<std::uint64_t>{2});
    CHECK(world.at(2).ended.empty());
  }

  TEST_CASE("two orders of one epoch stop the rotation and are told, a third heals them") {
    World world(3);
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
    World world(3);
    world.line_of_sessions();
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    auto& member = world.at(1);
    const SecretMark mark{1, transport::SwarmKey::of(*member.next).current()->id};
    World fresh(2);
    const SecretHeld lie{mark, {{identity_of(77).id(), Signature{}}}};
    // Nobody knows 77: not even looked at.
    world.say(member, world.at(0).id(), transport::kSecretHeldMessage, encode_held(lie));
    CHECK(member.ended.empty());
    World late(4);
    late.connect(late.at(0), late.at(1));
    late.tick();
    late.put_next(late.at(0), late.secret.rotated(late.admin.key, 0));
    const SecretMark next{1, transport::SwarmKey::of(*late.at(1).next).current()->id};
    const SecretHeld forged{next, {{late.at(3).id(), Signature{}}}};
    late.say(late.at(1), late.at(0).id(), transport::kSecretHeldMessage, encode_held(forged));
    REQUIRE(late.at(1).ended.size() == 1);
    CHECK(late.at(1).ended[0].code == Errc::bad_signature);
  }

  TEST_CASE("after its time a rotation goes on without those who do not answer") {
    World world(2);
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    world.now += 24h;
    world.tick();
    CHECK(world.at(0).current.epoch() == 1);
  }

  TEST_CASE("a disk that failed is tried again when the secret is told again") {
    World world(2);
    world.tick();
    world.put_next(world.at(0), world.secret.rotated(world.admin.key, 0));
    world.connect(world.at(0), world.at(1));
    world.at(1).next.reset();  // as if it had not been written
    auto& member = world.at(1);
    Member unlucky(2, world.admin, world.secret);
    CHECK(unlucky.read_files(world.now).empty());
    (void)unlucky.spread.on_session_up(world.now, world.at(0).id());
    const auto text = to_bytes(as_bytes(world.at(0).next->print()));
    const auto keeps = [&] {
      const auto effects = unlucky.spread.on_message(world.now, world.at(0).id(),
                                                     transport::kNextSecretMessage, text);
      return std::ranges::any_of(effects, [](const auto& effect) {
        return std::holds_alternative<KeepNextSecret>(effect);
      });
    };
    CHECK(keeps());
    CHECK_FALSE(keeps());
    unlucky.spread.on_files_failed();
    CHECK(keeps());
    CHECK(member.ended.empty());
  }

  TEST_CASE("a node of another admin is told of once, and nothing passes between the two") {
    World world(1);
    Admin other;
    other.swarm = world.admin.swarm;
    other.key = identity_of(201);
    auto& strange = *world.members.emplace_back(
        std::make_unique<Member>(static_cast<unsigned char>(9), other, world.secret));
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
    World world(2);
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
