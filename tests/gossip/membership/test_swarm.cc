#include "tests/gossip/membership/test_swarm.h"

#include "node/base/check.h"

#include <algorithm>

namespace starling::gossip::testing {

void TestSwarm::post(TimePoint at, std::size_t node, std::function<void()> run) {
  events_.push({at, order_++, node, std::move(run)});
}

std::size_t TestSwarm::start(Reach reach) {
  const std::size_t node = nodes_.size();
  Node fresh;
  fresh.id = test_id(node + options_.seed * 1000);
  fresh.signer = std::make_unique<TestSigner>(fresh.id);
  fresh.self.name = "node-" + std::to_string(node);
  fresh.self.instance = {rng_()};
  fresh.reach = reach;
  if (reach != Reach::dials_only)
    fresh.self.addresses = {"10.0.0." + std::to_string(node) + ":7700"};
  else
    fresh.self.capabilities = 0;
  index_[fresh.id] = node;
  nodes_.push_back(std::move(fresh));
  make(node);
  return node;
}

void TestSwarm::make(std::size_t index) {
  Node& node = nodes_[index];
  node.life = Life::running;
  MembershipParts parts{swarm(), node.self, options_.membership, *node.signer, verifier_};
  node.membership = std::make_unique<Membership>(now_, std::move(parts), Rng(rng_()));
  carry_out(index, node.membership->set_state(now_, RecordState::alive));
}

void TestSwarm::restart(std::size_t index) {
  Node& node = nodes_[index];
  STARLING_CHECK(!answers(index));
  node.self.instance = {rng_()};
  node.self.first = node.self.ceiling;
  node.self.ceiling = {node.self.first.value + 1000};
  make(index);
}

bool TestSwarm::separated(std::size_t a, std::size_t b) const {
  return (divided_ && island_.contains(a) != island_.contains(b)) ||
         cut_lines_.contains(pair_of(a, b));
}

void TestSwarm::dial(std::size_t from, std::size_t to) {
  const auto outcome = [this, from, to](TimePoint at, auto report) {
    post(at, from, [this, from, to, report] {
      carry_out(from, (nodes_[from].membership.get()->*report)(now_, nodes_[to].id));
    });
  };
  if (separated(from, to) || nodes_[to].life == Life::silent ||
      (nodes_[to].self.capabilities & capability::kDialable) == 0)
    return outcome(now_ + options_.dial_timeout, &Membership::on_dial_failed);
  if (nodes_[to].reach == Reach::claims || nodes_[to].reach == Reach::refused) {
    ++vain_dials_;
    return outcome(now_ + 3 * options_.delay, nodes_[to].reach == Reach::claims
                                                  ? &Membership::on_dial_failed
                                                  : &Membership::on_dial_refused);
  }
  if (nodes_[to].life == Life::killed)
    return outcome(now_ + 2 * options_.delay, &Membership::on_dial_refused);
  if (nodes_[to].life == Life::frozen)  // the kernel accepts, nobody shakes hands
    return outcome(now_ + options_.dial_timeout, &Membership::on_dial_failed);
  post(now_ + 3 * options_.delay, from, [this, from, to] { connect(from, to); });
}

void TestSwarm::connect(std::size_t a, std::size_t b) {
  if (!running(a) || !answers(b) || separated(a, b) || stale_.contains({a, b})) return;
  if (stale_.erase({b, a}) > 0)
    return post(now_ + options_.duplicate_probe, a, [this, a, b] { connect(a, b); });
  auto [at, fresh] = sessions_.try_emplace(pair_of(a, b));
  if (!fresh) return;
  at->second.number = ++order_;
  ++sessions_made_;
  at->second.next_arrival[0] = at->second.next_arrival[1] = now_;
  carry_out(a, at_ptr(a)->on_session_up(now_, nodes_[b].id));
  post(now_, b, [this, a, b] {
    if (sessions_.contains(pair_of(a, b)))
      carry_out(b, at_ptr(b)->on_session_up(now_, nodes_[a].id));
  });
}

void TestSwarm::disconnect(std::size_t a, std::size_t b, SessionEnd end) {
  if (sessions_.erase(pair_of(a, b)) == 0) return;
  const auto tell = [&](std::size_t here, std::size_t there) {
    post(now_ + options_.delay, here, [this, here, there, end] {
      if (!sessions_.contains(pair_of(here, there)))
        carry_out(here, at_ptr(here)->on_session_down(now_, nodes_[there].id, end));
    });
  };
  tell(a, b);
  tell(b, a);
}

// Whether the other one hears of it depends on the line; if not, it has a session with nobody.
void TestSwarm::give_up(std::size_t node, std::size_t peer) {
  if (!separated(node, peer) && nodes_[peer].life != Life::silent)
    return disconnect(node, peer, SessionEnd::timed_out);
  const bool was_stale = stale_.erase({node, peer}) > 0;
  if (!was_stale && sessions_.erase(pair_of(node, peer)) == 0) return;
  post(now_ + options_.delay, node, [this, node, peer] {
    carry_out(node, at_ptr(node)->on_session_down(now_, nodes_[peer].id, SessionEnd::timed_out));
  });
  if (was_stale) return;
  stale_.insert({peer, node});
  post(now_ + options_.session_timeout, peer, [this, node, peer] {
    if (stale_.erase({peer, node}) == 0) return;
    carry_out(peer, at_ptr(peer)->on_session_down(now_, nodes_[node].id, SessionEnd::timed_out));
  });
}

void TestSwarm::inject(std::size_t from, std::size_t to, const MembershipMessage& message) {
  const auto at = sessions_.find(pair_of(from, to));
  if (at == sessions_.end()) return;
  const auto wire = encode(message);
  bytes_ += wire.body.size();
  ++messages_;
  auto decoded = decode_membership(wire);
  STARLING_CHECK_OP(decoded ? "" : to_string(decoded.error()), ==, "");
  STARLING_CHECK(*decoded == message);
  Session& session = at->second;
  const bool cut = separated(from, to) || nodes_[to].life == Life::silent;
  if (cut && !session.stalled) {
    // TCP keeps sending until it gives up.
    session.stalled = now_;
    post(now_ + options_.session_timeout, from,
         [this, from, to, number = session.number, since = now_] {
           const auto still = sessions_.find(pair_of(from, to));
           if (still != sessions_.end() && still->second.number == number &&
               still->second.stalled == since)
             disconnect(from, to, SessionEnd::timed_out);
         });
  }
  if (session.stalled) {
    session.kept.push_back([this, from, to, number = session.number, content = *decoded] {
      deliver(from, to, number, content);
    });
    return;
  }
  deliver(from, to, session.number, std::move(*decoded));
}

void TestSwarm::deliver(std::size_t from, std::size_t to, std::uint64_t number,
                        MembershipMessage content) {
  const auto found = sessions_.find(pair_of(from, to));
  if (found == sessions_.end() || found->second.number != number) return;
  Duration delay = options_.delay + Duration(static_cast<std::int64_t>(rng_.below(
                                        static_cast<std::uint64_t>(options_.jitter.count()) + 1)));
  while (rng_.chance(options_.loss)) delay += options_.retransmit;
  auto& arrival = found->second.next_arrival[from < to ? 0 : 1];
  arrival = std::max(arrival, now_ + delay);
  post(arrival, to, [this, from, to, number, message = std::move(content)] {
    const auto still = sessions_.find(pair_of(from, to));
    if (still == sessions_.end() || still->second.number != number) return;
    carry_out(to, at_ptr(to)->on_message(now_, nodes_[from].id, message));
  });
}

void TestSwarm::carry_out(std::size_t index, MembershipEffects effects) {
  for (const auto& outgoing : effects.send)
    if (const auto* facts = std::get_if<Facts>(&outgoing.message))
      for (const auto& made : facts->accusations)
        if (made.accuser == nodes_[index].id)
          accusations_.emplace(made.accuser, made.subject, made.incarnation, made.kind);
  for (const auto& outgoing : effects.send) inject(index, index_of(outgoing.to), outgoing.message);
  for (const auto& wanted : effects.wanted_sessions) dial(index, index_of(wanted.id));
  for (const auto& peer : effects.given_up) give_up(index, index_of(peer));
  for (const auto& peer : effects.unneeded) disconnect(index, index_of(peer), SessionEnd::reset);
  Node& node = nodes_[index];
  for (const auto& change : effects.changes) node.seen.push_back({now_, change});
  for (const auto notice : effects.notices) node.notices.push_back(notice);
  node.offences += effects.offences.size();
  if (effects.persist_incarnation) {
    node.self.ceiling = *effects.persist_incarnation;
    post(now_ + milliseconds(5), index, [this, index, ceiling = *effects.persist_incarnation] {
      carry_out(index, at_ptr(index)->on_incarnations_persisted(now_, ceiling));
    });
  }
  arm(index);
}

void TestSwarm::arm(std::size_t index) {
  Node& node = nodes_[index];
  TimePoint due = std::max(node.membership->next_deadline(), now_);
  if (node.starved > Duration{0}) {
    const auto since = now_.time_since_epoch().count();
    const auto every = node.starved.count();
    due = TimePoint(Duration((since / every + 1) * every));
  }
  if (node.tick <= due && node.tick > now_) return;
  node.tick = due;
  post(due, index, [this, index, due] {
    if (nodes_[index].tick != due) return;
    nodes_[index].tick = kNever;
    carry_out(index, at_ptr(index)->on_tick(now_));
  });
}

void TestSwarm::run(Duration time) {
  (void)run_until([] { return false; }, time);
}

std::optional<Duration> TestSwarm::run_until(const std::function<bool()>& done, Duration limit) {
  const TimePoint start = now_;
  const TimePoint end = now_ + limit;
  TimePoint next_look = now_;
  while (true) {
    if (now_ >= next_look) {
      if (done()) return now_ - start;
      next_look = now_ + milliseconds(10);
    }
    if (events_.empty() || events_.top().at > end) break;
    Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    Node& node = nodes_[event.node];
    if (node.life == Life::frozen)
      node.held.push_back(std::move(event.run));
    else if (node.life == Life::running)
      event.run();
  }
  now_ = end;
  return done() ? std::optional(now_ - start) : std::nullopt;
}

void TestSwarm::kill(std::size_t node) {
  nodes_[node].life = Life::killed;
  for (std::size_t other = 0; other < nodes_.size(); ++other)
    disconnect(node, other, SessionEnd::reset);
  nodes_[node].tick = kNever;
}

void TestSwarm::silence(std::size_t node) {
  nodes_[node].life = Life::silent;
  nodes_[node].tick = kNever;
}

void TestSwarm::freeze(std::size_t node) { nodes_[node].life = Life::frozen; }

void TestSwarm::thaw(std::size_t node) {
  nodes_[node].life = Life::running;
  // Its timers are long due; then comes what the kernel kept.
  nodes_[node].tick = kNever;
  carry_out(node, at(node).on_tick(now_));
  for (auto& run : std::exchange(nodes_[node].held, {})) post(now_, node, std::move(run));
}

void TestSwarm::leave(std::size_t node) {
  carry_out(node, at(node).leave(now_));
  post(now_ + 5 * options_.delay, node, [this, node] {
    nodes_[node].life = Life::killed;
    for (std::size_t other = 0; other < nodes_.size(); ++other)
      disconnect(node, other, SessionEnd::bye);
  });
}

void TestSwarm::partition(std::set<std::size_t> group) {
  island_ = std::move(group);
  divided_ = true;
}

void TestSwarm::heal() {
  divided_ = false;
  // TCP finds out when it tries again, after twice the time of its last wait.
  for (auto& [pair, session] : sessions_) {
    if (!session.stalled) continue;
    Duration wait = options_.retransmit;
    while (*session.stalled + wait < now_) wait = 2 * wait + options_.retransmit;
    post(*session.stalled + wait, pair.first, [this, ends = pair, number = session.number] {
      const auto still = sessions_.find(ends);
      if (still == sessions_.end() || still->second.number != number) return;
      still->second.stalled.reset();
      for (const auto& deliver_one : std::exchange(still->second.kept, {})) deliver_one();
    });
  }
}

bool TestSwarm::all_see(std::size_t subject, MemberState state) {
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    if (node != subject && running(node) && at(node).state_of(nodes_[subject].id) != state)
      return false;
  return true;
}

bool TestSwarm::settled() {
  for (std::size_t subject = 0; subject < nodes_.size(); ++subject)
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      if (node == subject || !running(node)) continue;
      const bool alive = at(node).state_of(nodes_[subject].id) == MemberState::alive;
      if (alive != running(subject)) return false;
    }
  return true;
}

std::size_t TestSwarm::count(MemberState state, const std::set<std::size_t>& about) const {
  std::size_t found = 0;
  for (const auto& node : nodes_)
    for (const auto& seen : node.seen)
      found += seen.change.after == state && about.contains(index_of(seen.change.id)) ? 1 : 0;
  return found;
}

}  // namespace starling::gossip::testing
