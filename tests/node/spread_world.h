// Members of a swarm with an admin, their files and the sessions between them, without a socket or
// a disk.
#pragma once

#include "node/access/spread.h"
#include "tests/transport/certificates.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace starling::node {

inline const transport::Ed25519Verifier kSpreadVerifier;

inline transport::SwarmSecret copy_of_secret(const transport::SwarmSecret& secret) {
  return transport::SwarmSecret::parse(secret.print()).value();
}

// One member: its spread and the files that its effects change.
struct SpreadMember {
  SpreadMember(unsigned char number, const transport::Admin& admin,
               const transport::SwarmSecret& secret)
      : identity(transport::identity_of(number)),
        spread({admin.key.id(), admin.swarm, identity, kSpreadVerifier, std::chrono::hours(24)}),
        current(copy_of_secret(secret)) {}

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
  transport::Revocations list;
  transport::SwarmSecret current;
  std::optional<transport::SwarmSecret> next;
  std::optional<transport::SwarmSecret> previous;
  std::vector<std::string> warnings;
  std::vector<Error> ended;  // sessions that this member ended
  std::size_t told = 0;      // messages that it sent
  int failures_to_come = 0;  // of its disk
  int failures = 0;
};

// Members, sessions between them, and a disk that takes its time.
struct SpreadWorld {
  explicit SpreadWorld(unsigned char count) {
    admin.swarm = secret.swarm();
    for (unsigned char number = 1; number <= count; ++number) add(number);
  }
  SpreadMember& add(unsigned char number) {
    auto& member = *members.emplace_back(std::make_unique<SpreadMember>(number, admin, secret));
    carry_out(member, member.read_files(now));
    return member;
  }
  SpreadMember& at(std::size_t index) { return *members.at(index); }
  SpreadMember* find(const NodeId& id) {
    const auto found = std::ranges::find_if(members, [&](const auto& m) { return m->id() == id; });
    return found == members.end() ? nullptr : found->get();
  }
  void connect(SpreadMember& a, SpreadMember& b) {
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
  void carry_out(SpreadMember& member, SpreadEffects effects) {
    for (auto& effect : effects) {
      if (auto* send = std::get_if<SendAccess>(&effect)) {
        ++member.told;
        if (sessions.contains({member.id(), send->to}))
          line.push_back({member.id(), std::move(*send)});
      } else if (auto* use = std::get_if<UseRevocations>(&effect)) {
        member.list = use->list;
        for (const auto& revoked : use->list.nodes) disconnect(member.id(), revoked);
      } else if (auto* keep = std::get_if<KeepNextSecret>(&effect)) {
        writing.emplace_back(&member, transport::SwarmSecret::parse(as_text(keep->text)).value());
      } else if (std::holds_alternative<PromoteSecret>(effect)) {
        if (disk_fails(member)) continue;
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
  bool disk_fails(SpreadMember& member) {
    if (member.failures_to_come == 0) return false;
    --member.failures_to_come;
    ++member.failures;
    (void)member.spread.on_files_failed(now);
    return true;
  }
  // Delivers what is under way, and lets the disk finish.
  void run() {
    while (!line.empty() || !writing.empty()) {
      if (line.empty()) {
        auto [member, text] = std::move(writing.front());
        writing.pop_front();
        if (disk_fails(*member)) continue;
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
    now += std::chrono::seconds(1);
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
  void put_list(SpreadMember& member, transport::Revocations list) {
    member.list = std::move(list);
    carry_out(member, member.read_files(now));
    for (const auto& revoked : member.list.nodes) disconnect(member.id(), revoked);
    run();
  }
  void put_next(SpreadMember& member, transport::SwarmSecret next) {
    member.next = std::move(next);
    carry_out(member, member.read_files(now));
    run();
  }
  // What a node outside the machinery says to a member.
  void say(SpreadMember& to, const NodeId& from, std::uint16_t type, ByteView body) {
    carry_out(to, to.spread.on_message(now, from, type, body));
    run();
  }

  transport::SwarmSecret secret = transport::SwarmSecret::generate();
  transport::Admin admin;
  TimePoint now{};
  std::vector<std::unique_ptr<SpreadMember>> members;
  std::set<std::pair<NodeId, NodeId>> sessions;
  std::deque<std::pair<NodeId, SendAccess>> line;
  std::deque<std::pair<SpreadMember*, transport::SwarmSecret>> writing;
};

}  // namespace starling::node
