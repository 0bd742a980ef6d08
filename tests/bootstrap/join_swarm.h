// Several Joins in one process: virtual time, a toy shell around each.
#pragma once

#include "bootstrap/join.h"
#include "bootstrap/message_codec.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace starling::bootstrap::testing {

struct NodePlan {
  std::map<std::string, std::string> settings = {{"lr", "1.7"}, {"model", "toy"}};
  std::set<std::string> forced = {};
  Start start = Start::genesis;
  double age = 0;         // of the checkpoint
  Hash certificate = {};  // of an earlier process that finished
  JoinOptions options = {};
  std::set<std::string> unusable_lr = {};  // settings with one of these cannot be used here
  std::function<void(BootstrapMessage&)> lie = {};  // what leaves this node is changed by it
};

class JoinSwarm {
 public:
  explicit JoinSwarm(std::uint64_t seed) : rng_(seed) {}

  // A node that starts now and knows the given seeds (by number of the node).
  std::size_t start(NodePlan plan, const std::vector<std::size_t>& seeds);
  // `starling join` at a node that runs.
  void add_seed(std::size_t node, std::size_t seed);
  // Membership shows this node one that it has no session with.
  void show(std::size_t node, std::size_t other) { nodes_[node].shown.insert(other); }
  void run(Duration time);
  void tick(std::size_t node) { carry_out(node, at(node).on_tick(now_)); }
  void kill(std::size_t node);
  void begin_finish(std::size_t node) { nodes_[node].phase = RunPhase::finishing; }
  void leave(std::size_t node) { nodes_[node].phase = RunPhase::leaving; }
  void finish(std::size_t node, const Hash& certificate);
  // Dials to this node close after the first message.
  void deafen(std::size_t node) { nodes_[node].turns_away = Errc::wrong_swarm; }
  // Dials to this node are refused by name.
  void refuse_all(std::size_t node) { nodes_[node].turns_away = Errc::refused; }

  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] Join& at(std::size_t node) { return *nodes_[node].join; }
  [[nodiscard]] bool trains(std::size_t node) const { return nodes_[node].trains; }
  [[nodiscard]] double age(std::size_t node) const { return nodes_[node].age; }
  void set_age(std::size_t node, double age) { nodes_[node].age = age; }
  // What stands for the parameters: equal texts are equal models.
  [[nodiscard]] const std::string& model(std::size_t node) const { return nodes_[node].model; }
  [[nodiscard]] bool same(std::size_t a, std::size_t b) {
    return at(a).same_settings(id(b)) && at(b).same_settings(id(a));
  }
  template <class T>
  [[nodiscard]] std::vector<T> told(std::size_t node) const {
    std::vector<T> found;
    for (const auto& effect : nodes_[node].told)
      if (const auto* wanted = std::get_if<T>(&effect)) found.push_back(*wanted);
    return found;
  }
  [[nodiscard]] NodeId id(std::size_t node) const { return nodes_[node].id; }
  [[nodiscard]] transport::Endpoint endpoint(std::size_t node) const {
    return {"10.0.0." + std::to_string(node), 7700};
  }
  Duration chunk_delay = std::chrono::milliseconds(5);
  std::size_t model_bytes = 6 * kChunkBytes + 100;

 private:
  struct Node {
    NodeId id;
    NodePlan plan;
    std::unique_ptr<Join> join;
    RunPhase phase = RunPhase::starting;
    bool running = true;
    bool trains = false;
    std::optional<Errc> turns_away;
    double age = 0;
    std::string model;
    Hash certificate;
    std::set<std::size_t> shown;
    std::vector<JoinEffect> told;
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

  void post(Duration delay, std::size_t node, std::function<void()> run);
  void carry_out(std::size_t node, JoinEffects effects);
  void carry_out_one(std::size_t node, const JoinEffect& effect);
  void dial(std::size_t node, const transport::Endpoint& endpoint);
  void rebuild(std::size_t node, const Settings& settings);
  void send(std::size_t from, const BootstrapOutgoing& outgoing);
  void every_second(std::size_t node);
  [[nodiscard]] LocalFacts facts(std::size_t node) const;
  [[nodiscard]] Result<SharedSnapshot> snapshot(std::size_t node) const;

  Rng rng_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(500);
  std::vector<Node> nodes_;
  std::map<NodeId, std::size_t> index_;
  std::set<std::pair<std::size_t, std::size_t>> sessions_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
};

}  // namespace starling::bootstrap::testing
