#include "tests/sim/eclipse.h"

#include "bootstrap/address_book.h"
#include "gossip/exchange/mixer.h"
#include "gossip/membership/membership.h"
#include "tests/gossip/membership/test_swarm.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace starling::sim {
namespace {

using gossip::Membership;
using gossip::MembershipEffects;
using gossip::MembershipMessage;
using gossip::testing::test_id;
using gossip::testing::TestSigner;
using gossip::testing::TestVerifier;
using std::chrono::milliseconds;

constexpr std::size_t kTargets = 2;    // honest nodes that a Sybil dials
constexpr std::size_t kDialAgain = 4;  // one in so many dials a node that restarted
constexpr std::size_t kRecordsAMessage = 25;

// Everybody by number: the honest first, then the Sybils.
class Siege {
 public:
  explicit Siege(const EclipsePlan& plan);
  EclipseOutcome run();

 private:
  struct Node {
    NodeId id;
    std::string host;
    std::unique_ptr<TestSigner> signer;
    std::unique_ptr<Membership> membership;  // honest ones that run
    gossip::SelfDescription self;
    bootstrap::AddressBook book;
    TimePoint tick = kNever;
    bool knows_sybils = false;
  };
  struct Event {
    TimePoint at;
    std::uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };
  using Pair = std::pair<std::size_t, std::size_t>;
  static Pair pair_of(std::size_t a, std::size_t b) { return {std::min(a, b), std::max(a, b)}; }

  [[nodiscard]] bool honest(std::size_t node) const { return node < plan_.honest; }
  [[nodiscard]] Duration delay(std::size_t a, std::size_t b) const;
  void post(Duration wait, std::function<void()> run);
  void settle_hosts();
  void enlist_sybils();
  void start(std::size_t node);
  void kill(std::size_t node);
  void restart(std::size_t node);
  void dial(std::size_t from, std::size_t to);
  void connect(std::size_t from, std::size_t to);
  void disconnect(std::size_t a, std::size_t b, gossip::SessionEnd end);
  void send(std::size_t from, std::size_t to, const MembershipMessage& message);
  void greet_as_sybil(std::size_t sybil, std::size_t victim);
  void carry_out(std::size_t node, MembershipEffects effects);
  void arm(std::size_t node);
  void sample();
  [[nodiscard]] std::set<std::size_t> admitted(std::size_t node) const;

  EclipsePlan plan_;
  Rng rng_;
  TestVerifier verifier_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1000);
  TimePoint end_;
  std::vector<Node> nodes_;
  std::vector<gossip::AgedRecord> sybil_records_;
  std::map<NodeId, std::size_t> index_;
  std::map<std::string, std::size_t> at_;  // who listens where
  std::map<Pair, std::uint64_t> sessions_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  EclipseOutcome outcome_;
};

Siege::Siege(const EclipsePlan& plan) : plan_(plan), rng_(plan.seed), end_(now_ + plan.length) {
  nodes_.resize(plan_.honest + plan_.sybils);
  settle_hosts();
  for (std::size_t node = 0; node < plan_.honest; ++node) {
    post(milliseconds(100) * node, [this, node] {
      start(node);
      if (node > 0) dial(node, 0);
    });
  }
  enlist_sybils();
  for (const auto minute : {10, 15, 20}) {
    const auto node = static_cast<std::size_t>(rng_.below(plan_.honest));
    if (std::chrono::minutes(minute) < plan_.length)
      post(std::chrono::minutes(minute), [this, node] { restart(node); });
  }
  post(std::chrono::seconds(60), [this] { sample(); });
}

void Siege::settle_hosts() {
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    Node& each = nodes_[node];
    const std::size_t sybil = node - plan_.honest;
    each.id = test_id(node + plan_.seed * 1000);
    each.signer = std::make_unique<TestSigner>(each.id);
    each.host = honest(node) ? "5." + std::to_string(10 + node) + ".1.1"
                             : "9." + std::to_string(sybil % plan_.networks) + "." +
                                   std::to_string(sybil / 250) + "." + std::to_string(sybil % 250);
    each.self.name = "node-" + std::to_string(node);
    each.self.instance = {rng_()};
    each.self.addresses = {each.host + ":7700"};
    index_[each.id] = node;
    at_[each.host] = node;
  }
}

void Siege::enlist_sybils() {
  const auto begin = milliseconds(rng_.below(120'000));
  for (std::size_t node = plan_.honest; node < nodes_.size(); ++node) {
    const Node& each = nodes_[node];
    gossip::MemberRecord record;
    record.id = each.id;
    record.name = each.self.name;
    record.addresses = each.self.addresses;
    if (plan_.invented)
      record.addresses = {"7." + std::to_string(node % 250) + "." + std::to_string(node / 250) +
                          ".1:7700"};
    record.incarnation = {1};
    record.instance = each.self.instance;
    record.state = gossip::RecordState::alive;
    record.roles = each.self.roles;
    record.capabilities = each.self.capabilities;
    gossip::sign_record(record, {}, *each.signer);
    sybil_records_.push_back({record, 0});
    for (std::size_t target = 0; target < kTargets; ++target)
      post(begin + milliseconds(rng_.below(20'000)),
           [this, node, victim = static_cast<std::size_t>(rng_.below(plan_.honest))] {
             dial(node, victim);
           });
  }
}

Duration Siege::delay(std::size_t a, std::size_t b) const {
  const auto [low, high] = pair_of(a, b);
  return milliseconds(5 + (low * 7919 + high * 104729 + plan_.seed) % 45);
}

void Siege::post(Duration wait, std::function<void()> run) {
  events_.push({now_ + wait, order_++, std::move(run)});
}

void Siege::start(std::size_t index) {
  Node& node = nodes_[index];
  gossip::MembershipOptions options;
  options.strangers = plan_.strangers;
  node.knows_sybils = false;
  node.membership = std::make_unique<Membership>(
      now_, gossip::MembershipParts{{}, node.self, options, *node.signer, verifier_}, Rng(rng_()));
  carry_out(index, node.membership->set_state(now_, gossip::RecordState::alive));
}

void Siege::kill(std::size_t node) {
  nodes_[node].membership.reset();
  nodes_[node].tick = kNever;
  for (std::size_t other = 0; other < nodes_.size(); ++other)
    disconnect(node, other, gossip::SessionEnd::reset);
}

void Siege::restart(std::size_t node) {
  kill(node);
  gossip::SelfDescription& self = nodes_[node].self;
  self.instance = {rng_()};
  self.first = self.ceiling;
  self.ceiling = {self.first.value + 1000};
  post(std::chrono::seconds(2), [this, node] {
    start(node);
    std::size_t tried = 0;
    for (const auto& peer : nodes_[node].book.peers())
      if (const auto at = at_.find(peer.endpoint.host); at != at_.end())
        post(milliseconds(50) * tried++, [this, node, to = at->second] { dial(node, to); });
  });
  for (std::size_t sybil = plan_.honest; sybil < nodes_.size(); sybil += kDialAgain)
    post(std::chrono::seconds(2) + milliseconds(rng_.below(5'000)),
         [this, sybil, node] { dial(sybil, node); });
}

void Siege::dial(std::size_t from, std::size_t to) {
  post(3 * delay(from, to), [this, from, to] {
    if (honest(from) && !nodes_[from].membership) return;
    if (!honest(to) || nodes_[to].membership) return connect(from, to);
    if (honest(from))
      carry_out(from, nodes_[from].membership->on_dial_refused(now_, nodes_[to].id));
  });
}

void Siege::connect(std::size_t from, std::size_t to) {
  if (!sessions_.try_emplace(pair_of(from, to), ++order_).second) return;
  if (honest(from)) nodes_[from].book.on_worked(nodes_[to].id, {nodes_[to].host, 7700});
  for (const auto& [here, there] : {Pair{from, to}, Pair{to, from}}) {
    if (honest(here))
      carry_out(here,
                nodes_[here].membership->on_session_up(now_, nodes_[there].id, nodes_[there].host));
    else
      greet_as_sybil(here, there);
  }
}

void Siege::disconnect(std::size_t a, std::size_t b, gossip::SessionEnd end) {
  if (sessions_.erase(pair_of(a, b)) == 0) return;
  for (const auto& [here, there] : {Pair{a, b}, Pair{b, a}})
    post(delay(a, b), [this, here, there, end] {
      if (honest(here) && nodes_[here].membership && !sessions_.contains(pair_of(here, there)))
        carry_out(here, nodes_[here].membership->on_session_down(now_, nodes_[there].id, end));
    });
}

// The first one introduces all of them; the others only themselves.
void Siege::greet_as_sybil(std::size_t sybil, std::size_t victim) {
  gossip::Facts facts;
  if (std::exchange(nodes_[victim].knows_sybils, true)) {
    facts.records.push_back(sybil_records_[sybil - plan_.honest]);
    return send(sybil, victim, facts);
  }
  for (const auto& record : sybil_records_) {
    facts.records.push_back(record);
    if (facts.records.size() < kRecordsAMessage) continue;
    send(sybil, victim, std::exchange(facts, {}));
  }
  if (!facts.records.empty()) send(sybil, victim, facts);
}

void Siege::send(std::size_t from, std::size_t to, const MembershipMessage& message) {
  const auto at = sessions_.find(pair_of(from, to));
  if (at == sessions_.end()) return;
  if (!honest(to)) {
    if (const auto* beat = std::get_if<gossip::Heartbeat>(&message))
      post(delay(from, to),
           [this, from, to, seq = beat->seq] { send(to, from, gossip::HeartbeatAck{seq, false}); });
    return;
  }
  post(delay(from, to), [this, from, to, number = at->second, message] {
    const auto still = sessions_.find(pair_of(from, to));
    if (still == sessions_.end() || still->second != number) return;
    carry_out(to, nodes_[to].membership->on_message(now_, nodes_[from].id, message));
  });
}

void Siege::carry_out(std::size_t index, MembershipEffects effects) {
  Node& node = nodes_[index];
  for (const auto& outgoing : effects.send) send(index, index_.at(outgoing.to), outgoing.message);
  for (const auto& wanted : effects.wanted_sessions) {
    const std::string host = wanted.addresses.front().substr(0, wanted.addresses.front().find(':'));
    if (const auto to = at_.find(host); to != at_.end()) {
      dial(index, to->second);
    } else {
      post(std::chrono::seconds(3), [this, index, id = wanted.id] {
        if (auto* membership = nodes_[index].membership.get())
          carry_out(index, membership->on_dial_failed(now_, id));
      });
    }
  }
  for (const auto& peer : effects.given_up)
    disconnect(index, index_.at(peer), gossip::SessionEnd::timed_out);
  for (const auto& peer : effects.unneeded)
    disconnect(index, index_.at(peer), gossip::SessionEnd::bye);
  for (const auto& change : effects.changes)
    if (change.after == gossip::MemberState::alive)
      if (const auto member = node.membership->find(change.id)) node.book.on_told(member->record);
  if (effects.persist_incarnation) {
    node.self.ceiling = *effects.persist_incarnation;
    post(milliseconds(5), [this, index, ceiling = *effects.persist_incarnation] {
      if (auto* membership = nodes_[index].membership.get())
        carry_out(index, membership->on_incarnations_persisted(now_, ceiling));
    });
  }
  arm(index);
}

void Siege::arm(std::size_t index) {
  Node& node = nodes_[index];
  const TimePoint due = std::max(node.membership->next_deadline(), now_);
  if (node.tick <= due && node.tick > now_) return;
  node.tick = due;
  post(due - now_, [this, index, due] {
    if (nodes_[index].tick != due || !nodes_[index].membership) return;
    nodes_[index].tick = kNever;
    carry_out(index, nodes_[index].membership->on_tick(now_));
  });
}

// Who has an edge with this node, or gets one on asking: its neighbours, and guests while there is
// room, Sybils before the honest.
std::set<std::size_t> Siege::admitted(std::size_t index) const {
  const Membership& membership = *nodes_[index].membership;
  std::set<std::size_t> found;
  for (const auto& id : membership.neighbours())
    if (membership.has_session(id)) found.insert(index_.at(id));
  const gossip::MixerOptions options;
  auto guests = membership.guests();
  std::ranges::sort(guests, {},
                    [&](const NodeId& id) { return std::pair(honest(index_.at(id)), id); });
  for (const auto& id : guests)
    if (found.size() < 2 * options.degree + 2) found.insert(index_.at(id));
  return found;
}

void Siege::sample() {
  std::vector<std::set<std::size_t>> open(plan_.honest);
  for (std::size_t node = 0; node < plan_.honest; ++node)
    if (nodes_[node].membership) open[node] = admitted(node);
  outcome_.least = now_ + std::chrono::minutes(1) < end_ ? nodes_.size() : outcome_.least;
  for (std::size_t node = 0; node < plan_.honest; ++node) {
    if (!nodes_[node].membership) continue;
    const auto wants = [&](std::size_t from, std::size_t to) {
      const auto& list = nodes_[from].membership->neighbours();
      return std::ranges::find(list, nodes_[to].id) != list.end();
    };
    std::size_t good = 0;
    for (const auto other : open[node])
      good +=
          honest(other) && open[other].contains(node) && (wants(node, other) || wants(other, node))
              ? 1
              : 0;
    ++outcome_.samples;
    outcome_.bearable += good >= 2 ? 1 : 0;
    outcome_.sum += good;
    outcome_.least = std::min(outcome_.least, good);
  }
  post(std::chrono::seconds(1), [this] { sample(); });
}

EclipseOutcome Siege::run() {
  while (!events_.empty() && events_.top().at <= end_) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    ++outcome_.events;
    event.run();
  }
  return outcome_;
}

}  // namespace

EclipseOutcome run_eclipse(const EclipsePlan& plan) { return Siege(plan).run(); }

}  // namespace starling::sim
