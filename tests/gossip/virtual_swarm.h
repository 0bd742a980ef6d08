// A swarm of whole protocol nodes in one process: real Gossip, real codec, real consensus
// arithmetic; virtual time, one seed. Training is a noisy quadratic of a small vector, or what a
// test makes of it. No socket, no thread, no clock.
#pragma once

#include "gossip/consensus/contribution.h"
#include "gossip/delta/replica.h"
#include "gossip/gossip.h"
#include "node/base/random.h"
#include "tests/gossip/order_of_arrival.h"
#include "transport/identity.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace starling::gossip::testing {

// A model of which every replica and every reference begins at the genesis.
struct SwarmModel {
  Layout layout;
  std::vector<float> genesis;  // Layout::size() values
};

struct SwarmOptions {
  std::uint64_t seed = 1;
  std::size_t nodes = 4;
  std::size_t parameters = 8'192;                  // of the vector, which begins at zero
  std::optional<SwarmModel> model = std::nullopt;  // instead of that vector
  std::uint64_t budget_samples = 4'000;
  std::optional<NodeId> admin = std::nullopt;  // whose order alone ends the run by command
  Duration budget_time{0};  // with a budget of 0 samples: the age at which the run ends
  std::uint64_t batch = 8;
  std::uint32_t degree = 0;
  std::set<std::size_t> strangers = {};  // nodes that train by settings of their own
  Aggregator aggregator = Aggregator::mean;
  std::optional<Level> level = std::nullopt;  // nothing: the controller's
  Duration step_time = std::chrono::milliseconds(20);
  // One-way delay of a message: between the two, drawn for each; order is as transport keeps it.
  Duration delay_min = std::chrono::microseconds(200);
  Duration delay_max = std::chrono::milliseconds(5);
};

// The master of one simulated node.
struct SimMaster final : MasterPort {
  std::vector<float> parameters;
  std::vector<float> mean;
  std::vector<float> variance;
  void with_master(const std::function<void(MasterView)>& job) override {
    job({parameters, mean, variance});
  }
};

// One node: its protocol, its replica, what it produced.
struct SimNode {
  SimNode(const SwarmOptions& options, const SwarmModel& model, std::uint64_t number,
          TimePoint now);

  transport::Identity identity;
  transport::Ed25519Verifier verifier;
  SimMaster master;
  Replica references;
  GossipOptions gossip_options;
  std::unique_ptr<Gossip> gossip;
  Rng rng;
  Instance instance;

  bool running = true;             // false: killed
  bool frozen_until_told = false;  // SIGSTOP: gets and does nothing
  bool training = false;
  std::uint64_t steps = 0;
  TimePoint next_step{};
  std::vector<float> contribution;
  std::vector<float> contribution_mean;
  std::vector<float> contribution_variance;
  std::vector<float> result;
  std::vector<float> result_mean;
  std::vector<float> result_variance;
  std::vector<std::int64_t> counters{1};
  std::vector<std::int64_t> result_counters{0};
  std::optional<consensus::Finished> finished;
  std::optional<Error> failed;
  std::optional<NotTaken> not_taken;
  bool may_exit = false;
  bool left = false;
  std::size_t far_behind_told = 0;         // times
  std::map<NodeId, std::uint64_t> halves;  // of exchanges that it added, by neighbour

  [[nodiscard]] NodeId id() const { return identity.id(); }
  // A process of this identity: the protocol from nothing.
  void begin(TimePoint now, std::uint64_t life);

 private:
  std::uint64_t number_;
};

class VirtualSwarm {
 public:
  explicit VirtualSwarm(SwarmOptions options);

  // Opens a session between two nodes, as if one had dialled the other.
  void connect(std::size_t a, std::size_t b);
  void connect_all();
  void disconnect(std::size_t a, std::size_t b, SessionEnd end);
  // The process is gone: sessions reset, dials are refused.
  void kill(std::size_t node);
  // The process gets no processor time until resume(); its sessions stay open.
  void freeze(std::size_t node);
  void resume(std::size_t node);
  // A new process with the same identity and result; it has no model and averages with nobody.
  void restart(std::size_t node);
  void begin(std::size_t node, const Beginning& beginning);
  void serve(std::size_t node, const consensus::CertificateMessage& held);
  void follow(std::size_t node);
  void finish(std::size_t node, const std::optional<Signature>& order = std::nullopt);
  void merge(std::size_t node);
  void leave(std::size_t node);

  // Called with every message that leaves a node, which it may change.
  std::function<void(std::size_t from, Outgoing& outgoing)> on_send;

  // Whether a node has no room for the attachment of a message: its sender is told, as transport
  // does.
  std::function<bool(std::size_t from, std::size_t to, const transport::Message& message)> refuses;

  // Called before a codec job of a node, whose replica it may change: for nodes that lie.
  std::function<void(std::size_t index, SimNode& node, const CodecJob& job)> before_job;

  // Trains the replica of a node by one step, `node.steps` including it; the quadratic where there
  // is none.
  std::function<void(std::size_t index, SimNode& node)> train;

  // Runs virtual time until the predicate holds; false if it did not within `limit`.
  bool run_until(Duration limit, const std::function<bool()>& predicate);
  void run_for(Duration time);

  [[nodiscard]] SimNode& node(std::size_t index) { return *nodes_.at(index); }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] TimePoint now() const { return now_; }
  // Mean over coordinates of the variance between the running replicas.
  [[nodiscard]] double disagreement() const;
  [[nodiscard]] double distance_to_optimum(std::size_t node) const;
  // Sessions that nodes ended for what their peers sent.
  [[nodiscard]] std::size_t closed() const { return closed_; }
  [[nodiscard]] const Layout& layout() const { return model_.layout; }
  [[nodiscard]] std::size_t index_of(const NodeId& id) const { return index_.at(id); }

 private:
  struct Event {
    std::size_t node;
    std::function<void(SimNode&)> happens;
  };
  struct Session {
    std::uint64_t number = 0;  // messages of an older session are lost
    OrderOfArrival to_low;
    OrderOfArrival to_high;
  };

  void at(TimePoint time, std::size_t node, std::function<void(SimNode&)> happens);
  void carry_out(std::size_t node, GossipEffects effects);
  void carry_out_one(std::size_t node, GossipEffect effect);
  void send(std::size_t from, Outgoing outgoing);
  void refuse(std::size_t from, std::size_t to, const transport::Message& message);
  void dial(std::size_t from, const WantedSession& wanted);
  void step(std::size_t node);
  void train_on_quadratic(SimNode& node);
  void run_job(std::size_t node, const consensus::ConsensusJob& job);
  bool next_event(TimePoint limit);

  SwarmOptions options_;
  SwarmModel model_;
  Rng rng_;
  TimePoint now_{std::chrono::seconds(1000)};
  std::vector<float> optimum_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::map<NodeId, std::size_t> index_;
  std::multimap<TimePoint, Event> events_;
  std::map<std::pair<std::size_t, std::size_t>, Session> sessions_;
  std::vector<std::vector<std::function<void(SimNode&)>>> held_;  // for a frozen node
  std::uint64_t session_numbers_ = 0;
  std::size_t closed_ = 0;
  std::uint64_t lives_ = 0;
};

[[nodiscard]] bool all_finished(VirtualSwarm& swarm, const std::vector<std::size_t>& nodes);
// The final models of these nodes, without repetition.
[[nodiscard]] std::set<std::vector<float>> results(VirtualSwarm& swarm,
                                                   const std::vector<std::size_t>& nodes);

}  // namespace starling::gossip::testing
