// Many nodes of one final consensus in one process: virtual time, sessions that keep the order of
// their messages, delays, breaks, deaths and jobs, all from one seed. Every message goes through
// the wire's encoding and back.
#pragma once

#include "gossip/consensus/contribution.h"
#include "gossip/consensus/final_consensus.h"
#include "gossip/consensus/message_codec.h"
#include "node/base/random.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <utility>
#include <vector>

namespace starling::gossip::consensus::testing {

struct SwarmOptions {
  std::size_t nodes = 4;
  std::uint64_t seed = 1;
  ModelShape shape{.parameters = 3 * 4096 + 100, .channels = 5, .counters = 2, .chunk_blocks = 1};
  Duration longest_delay = std::chrono::milliseconds(40);
  Duration longest_job = std::chrono::milliseconds(3);
  Duration longest_step = std::chrono::milliseconds(300);  // between freeze and on_frozen
  RunKind kind = RunKind::finish;
  std::uint32_t window = 2;
  Rule rule = Rule::mean;
  bool weighted = false;                               // node k has weight 1 + 7 k
  std::optional<std::size_t> newcomer = std::nullopt;  // this one has no replica: it follows
  std::optional<std::size_t> heavy = std::nullopt;     // this one states the largest weight
  bool admin = false;                                  // only the admin ends the run by command
};

struct SimNode {
  NodeId id;
  std::unique_ptr<FakeSigner> signer;
  std::unique_ptr<FinalConsensus> consensus;
  std::vector<float> y, mean, variance;
  std::vector<std::int64_t> counters;
  std::vector<float> x, result_mean, result_variance;
  std::vector<std::int64_t> result_counters;
  std::vector<TensorLimit> tensors;
  std::uint32_t weight = 1;
  bool alive = true;
  bool busy = false;  // a job is running
  std::uint64_t life = 0;
  std::deque<ConsensusJob> jobs;
  TimePoint tick_at = kNever;
  std::optional<Finished> finished;
  std::optional<Merged> merged;
  std::optional<Error> failed;
  std::vector<NotTaken> not_taken;
  std::vector<Awaiting> awaiting;
  bool may_exit = false;
  std::vector<Misbehaviour> misbehaved;
  std::vector<NodeId> dialled;
  TimePoint finished_at{};
  bool disk_hangs = false;  // what it certified is on its disk when store() says so
};

class Swarm {
 public:
  explicit Swarm(SwarmOptions options);

  void connect(std::size_t a, std::size_t b);
  void disconnect(std::size_t a, std::size_t b);
  void connect_ring();
  void connect_all();
  // A random spanning tree and `extra` more sessions.
  void connect_randomly(std::size_t extra);
  void kill(std::size_t node);
  // A new process with the same identity and nothing remembered.
  void restart(std::size_t node);
  // The same from a checkpoint: it knows who had a part in the run, and not who is there.
  void restart_from_checkpoint(std::size_t node);
  // As restart(), and half a second later it has a session with everybody.
  void restart_and_connect(std::size_t node);
  void at(Duration when, std::function<void()> action);

  void command(std::size_t node, const std::optional<Signature>& order = std::nullopt);
  // What the admin signs; of this run unless said otherwise.
  [[nodiscard]] Signature order() const { return order(base_.fingerprint, admin()); }
  [[nodiscard]] Signature order(const Hash& fingerprint, const FakeSigner& by) const;
  [[nodiscard]] static FakeSigner admin() { return FakeSigner(node_id(1'000'000)); }
  void progress(std::size_t node, std::uint64_t samples, std::uint64_t budget);
  void standing(std::size_t node, Role role);
  void store(std::size_t node);
  void presence(std::size_t node, std::size_t member, Presence presence);
  // What one node sent came to nothing at another one, which had no room for it, or was cut when
  // their session was renewed: the sender is told, and knows all but the attachment.
  void refuse(std::size_t from, std::size_t to, const ConsensusMessage& message);
  // Feeds a message to a node as if it came over a session from another one.
  void inject(std::size_t to, std::size_t from, const ConsensusMessage& message);

  // Until nothing is left to happen, or `limit` of virtual time has passed.
  void run(Duration limit);
  [[nodiscard]] bool idle() const { return events_.empty(); }
  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] Duration elapsed() const { return now_ - TimePoint{}; }
  [[nodiscard]] SimNode& node(std::size_t k) { return *nodes_[k]; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const ConsensusOptions& options() const { return base_; }
  [[nodiscard]] const FakeVerifier& verifier() const { return verifier_; }
  [[nodiscard]] std::size_t index_of(const NodeId& id) const;
  [[nodiscard]] bool connected(std::size_t a, std::size_t b) const;

  // Called before a message is delivered; false drops it (without breaking the session's order).
  std::function<bool(std::size_t from, std::size_t to, const ConsensusMessage&)> on_deliver;
  // Whether a dial between two nodes succeeds.
  std::function<bool(std::size_t, std::size_t)> can_dial;

 private:
  struct Event {
    TimePoint at;
    std::uint64_t order;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };
  void start_node(std::size_t k);
  void introduce(std::size_t k);
  void start_again(std::size_t node);
  void schedule(TimePoint at, std::function<void()> action);
  void carry_out(std::size_t k, ConsensusEffects effects);
  void deliver(std::size_t from, std::size_t to, const ConsensusMessage& message);
  void work(std::size_t k);
  void set_timer(std::size_t k);
  Duration draw(Duration longest);

  SwarmOptions options_;
  ConsensusOptions base_;
  Rng rng_;
  FakeVerifier verifier_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> sessions_;  // lower first: number
  std::map<std::pair<std::size_t, std::size_t>, TimePoint> last_delivery_;
  std::uint64_t next_session_ = 1;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_order_ = 0;
  TimePoint now_{};
};

// What the participants' result must be, computed the straightforward way with __int128.
struct Reference {
  std::vector<float> x, mean, variance;
  std::vector<std::int64_t> counters;
};
[[nodiscard]] Reference reference_of(Swarm& swarm, const std::vector<std::size_t>& participants,
                                     Rule rule = Rule::mean);

}  // namespace starling::gossip::consensus::testing
