// A swarm of memberships in one process: virtual time, sessions with delay, partitions, freezes,
// kills. Every message goes through the codec, so its bytes are counted and checked.
#pragma once

#include "gossip/membership/membership.h"
#include "gossip/membership/message_codec.h"
#include "node/base/hash.h"
#include "node/base/random.h"
#include "node/base/signing.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace starling::gossip::testing {

using std::chrono::milliseconds;

// When a test begins: no clock of a real machine is at zero.
inline const TimePoint kStart = TimePoint{} + std::chrono::hours(5);

[[nodiscard]] inline NodeId test_id(std::uint64_t number) {
  Hasher hasher;
  hasher.add("test node").add(number);
  return *NodeId::from(hasher.finish().view());
}

// Signs with a hash that everybody could make: enough to show what is checked.
class TestSigner final : public Signer {
 public:
  explicit TestSigner(const NodeId& id) : id_(id) {}
  [[nodiscard]] NodeId id() const override { return id_; }
  [[nodiscard]] Signature sign(std::string_view domain, ByteView message) const override {
    return make(id_, domain, message);
  }
  [[nodiscard]] static Signature make(const NodeId& id, std::string_view domain, ByteView message) {
    Hasher hasher;
    const Hash hash = hasher.add(id.view()).add(domain).add(message).finish();
    Signature signature;
    std::copy(hash.bytes.begin(), hash.bytes.end(), signature.bytes.begin());
    return signature;
  }

 private:
  NodeId id_;
};

class TestVerifier final : public Verifier {
 public:
  [[nodiscard]] Verdict verify(const NodeId& signer, std::string_view domain, ByteView message,
                               const Signature& signature) const override {
    return TestSigner::make(signer, domain, message) == signature ? Verdict::valid
                                                                  : Verdict::invalid;
  }
};

struct SwarmOptions {
  std::uint64_t seed = 1;
  Duration delay = milliseconds(1);
  Duration jitter{0};
  // TCP hides a lost segment behind a delay of this length.
  double loss = 0;
  Duration retransmit = milliseconds(220);
  Duration session_timeout = std::chrono::seconds(30);
  // How long a process looks for a sign of life of a session that it has, when another comes in.
  Duration duplicate_probe = std::chrono::seconds(1);
  Duration dial_timeout = std::chrono::seconds(3);
  MembershipOptions membership{};
};

struct Seen {
  TimePoint at;
  MemberChange change;
};

class TestSwarm {
 public:
  explicit TestSwarm(SwarmOptions options) : options_(options), rng_(options.seed) {}

  // Claims: has an address, at which another process answers, as at one behind a router. Refused:
  // has one at which a machine answers that nobody listens.
  enum class Reach { dialable, dials_only, claims, refused };
  // A node that starts now; index of it.
  std::size_t start(Reach reach = Reach::dialable);
  // The same identity in a new process.
  void restart(std::size_t node);
  void dial(std::size_t from, std::size_t to);
  void run(Duration time);
  // Runs until `done`, at most `limit`; how long it took, or nothing.
  std::optional<Duration> run_until(const std::function<bool()>& done, Duration limit);

  void kill(std::size_t node);     // the process ends: connections break, dials are refused
  void silence(std::size_t node);  // the host is off: nothing answers
  void freeze(std::size_t node);   // SIGSTOP
  void thaw(std::size_t node);
  void leave(std::size_t node);
  // Nodes of different groups cannot exchange anything.
  void partition(std::set<std::size_t> group);
  void heal();
  // Between these two nothing gets through any more; others reach both.
  void cut_line(std::size_t a, std::size_t b) { cut_lines_.insert(pair_of(a, b)); }
  // A starved node runs its timers only this often; 0: normal.
  void starve(std::size_t node, Duration every) { nodes_[node].starved = every; }
  void carry_out(std::size_t node, MembershipEffects effects);
  void inject(std::size_t from, std::size_t to, const MembershipMessage& message);

  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] Membership& at(std::size_t node) { return *nodes_[node].membership; }
  [[nodiscard]] const TestSigner& signer(std::size_t node) { return *nodes_[node].signer; }
  [[nodiscard]] NodeId id(std::size_t node) const { return nodes_[node].id; }
  [[nodiscard]] std::size_t index_of(const NodeId& id) const { return index_.at(id); }
  [[nodiscard]] const std::vector<Seen>& seen(std::size_t node) const { return nodes_[node].seen; }
  [[nodiscard]] const std::vector<Notice>& notices(std::size_t node) const {
    return nodes_[node].notices;
  }
  [[nodiscard]] std::size_t offences(std::size_t node) const { return nodes_[node].offences; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t messages() const { return messages_; }
  [[nodiscard]] std::size_t session_count() const { return sessions_.size(); }
  // Different ones, told by whoever made them.
  [[nodiscard]] std::size_t accusations() const { return accusations_.size(); }
  // To nodes that nobody can dial though they have an address.
  [[nodiscard]] std::size_t vain_dials() const { return vain_dials_; }
  [[nodiscard]] std::uint64_t sessions_made() const { return sessions_made_; }
  [[nodiscard]] bool running(std::size_t node) const { return nodes_[node].life == Life::running; }
  [[nodiscard]] SwarmId swarm() const { return {}; }
  // Whether every running node sees `subject` in `state`.
  [[nodiscard]] bool all_see(std::size_t subject, MemberState state);
  // Whether every running node sees exactly the running nodes as alive.
  [[nodiscard]] bool settled();
  // Changes to `state` about a node of `about`, seen by running nodes.
  [[nodiscard]] std::size_t count(MemberState state, const std::set<std::size_t>& about) const;

 private:
  enum class Life { running, frozen, killed, silent };
  struct Node {
    NodeId id;
    std::unique_ptr<TestSigner> signer;
    std::unique_ptr<Membership> membership;
    SelfDescription self;
    Life life = Life::running;
    Reach reach = Reach::dialable;
    Duration starved{0};
    TimePoint tick = kNever;
    std::vector<std::function<void()>> held;  // while frozen
    std::vector<Seen> seen;
    std::vector<Notice> notices;
    std::size_t offences = 0;
  };
  struct Event {
    TimePoint at;
    std::uint64_t order;
    std::size_t node;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };
  using Pair = std::pair<std::size_t, std::size_t>;
  struct Session {
    std::uint64_t number = 0;
    TimePoint next_arrival[2] = {};
    std::optional<TimePoint> stalled;         // since nothing gets through
    std::vector<std::function<void()>> kept;  // what TCP sends again until it gets through
  };

  static Pair pair_of(std::size_t a, std::size_t b) { return {std::min(a, b), std::max(a, b)}; }
  void post(TimePoint at, std::size_t node, std::function<void()> run);
  void make(std::size_t node);
  void connect(std::size_t a, std::size_t b);
  void disconnect(std::size_t a, std::size_t b, SessionEnd end);
  void give_up(std::size_t node, std::size_t peer);
  void deliver(std::size_t from, std::size_t to, std::uint64_t number, MembershipMessage content);
  void arm(std::size_t node);
  [[nodiscard]] Membership* at_ptr(std::size_t node) { return nodes_[node].membership.get(); }
  [[nodiscard]] bool separated(std::size_t a, std::size_t b) const;
  [[nodiscard]] bool answers(std::size_t node) const {
    return nodes_[node].life == Life::running || nodes_[node].life == Life::frozen;
  }

  SwarmOptions options_;
  Rng rng_;
  TestVerifier verifier_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1000);
  std::vector<Node> nodes_;
  std::map<NodeId, std::size_t> index_;
  std::map<Pair, Session> sessions_;
  std::set<Pair> stale_;  // the first has not heard that the second gave up their session
  std::set<std::size_t> island_;
  bool divided_ = false;
  std::set<Pair> cut_lines_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  std::uint64_t sessions_made_ = 0;
  std::size_t vain_dials_ = 0;
  std::set<std::tuple<NodeId, NodeId, Incarnation, AccusationKind>> accusations_;
  std::uint64_t bytes_ = 0;
  std::uint64_t messages_ = 0;
};

}  // namespace starling::gossip::testing
