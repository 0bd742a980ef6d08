// Several mixers with real codec jobs on small vectors, on a virtual network whose faults one seed
// decides. Facts are checked after every event; the first broken one stops the run.
#pragma once

#include "gossip/delta/layout.h"
#include "gossip/delta/replica.h"
#include "gossip/exchange/mixer.h"
#include "node/base/random.h"
#include "tests/gossip/order_of_arrival.h"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

namespace starling::gossip::sim {

// Faults as plain data. Rates are per second of virtual time.
struct LinkOptions {
  std::uint64_t seed = 1;
  std::size_t nodes = 4;
  double session_losses = 0;  // of each pair
  double restarts = 0;        // of each node
  double refusals = 0;        // probability that a receiver has no room for an attachment
  double lost_words = 0;      // that an attachment came and its sender is told that it did not
  double bytes_per_second = 50e6;
  Duration latency = std::chrono::milliseconds(2);  // and up to twice as much
  Duration job_time = std::chrono::milliseconds(2);
  Duration step_time = std::chrono::milliseconds(25);
  double noise = 0.05;      // of a gradient
  double rate = 0.02;       // learning rate on the quadratic
  double start_spread = 0;  // distance between the first replicas
  MixerOptions mixer = {};
};

inline TimePoint at(Duration since_start) {
  return TimePoint{} + since_start + std::chrono::hours(1);
}

class LinkSim {
 public:
  explicit LinkSim(const LinkOptions& options);

  // Runs for this long; ends early when a fact is broken.
  void run(Duration duration);

  // The broken fact, with the time and the nodes; empty: none.
  [[nodiscard]] const std::string& broken() const { return broken_; }
  [[nodiscard]] std::string replay() const;

  // Faults by hand.
  void stop(std::size_t node, Duration duration);  // SIGSTOP: sessions stay up, nothing happens
  void kill(std::size_t node);                     // sessions end; no restart
  // For as long as is given, or up to two seconds.
  void lose_session(std::size_t a, std::size_t b, std::optional<Duration> away = {});
  void set_latency(std::size_t node, Duration latency) { nodes_[node]->latency = latency; }
  void set_step_time(std::size_t node, Duration step) { nodes_[node]->step_time = step; }
  void call(std::size_t node, const std::function<ExchangeEffects(Mixer&)>& event);
  void corrupt_reference(std::size_t node, std::size_t peer);
  // While references are apart by a corruption, the facts would be all that notices.
  void check_facts(bool on) { checks_ = on; }
  void adopt(std::size_t node, std::size_t sponsor);
  void set_training(bool on) { training_ = on; }

  [[nodiscard]] Mixer& mixer(std::size_t node) { return *nodes_[node]->mixer; }
  [[nodiscard]] NodeId id(std::size_t node) const { return nodes_[node]->id; }
  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] const std::vector<float>& parameters(std::size_t node) const {
    return nodes_[node]->master.parameters;
  }
  // |x_i - mean| / sqrt(floats), the largest over the live nodes.
  [[nodiscard]] double disagreement() const;
  // |mean of x| distance to the common optimum over sqrt(floats).
  [[nodiscard]] double distance_to_optimum() const;

  // What happened so far.
  struct Totals {
    std::uint64_t exchanges = 0;  // halves: one for each end
    std::uint64_t complete = 0;   // both halves seen and compared
    std::uint64_t crossings = 0;
    std::uint64_t clipped = 0;
    std::uint64_t resumes = 0;
    std::uint64_t resets = 0;
    std::uint64_t closes = 0;
    std::uint64_t opens = 0;
    std::uint64_t parked = 0;
    std::uint64_t voided = 0;
    std::uint64_t torn = 0;
    std::uint64_t references_compared = 0;
    std::uint64_t late_weights = 0;  // below 1/2
  };
  [[nodiscard]] const Totals& totals() const { return totals_; }
  // Exchanges of one node, with the time of each.
  [[nodiscard]] const std::vector<TimePoint>& exchange_times(std::size_t node) const {
    return nodes_[node]->exchange_times;
  }
  [[nodiscard]] const std::vector<std::string>& trace() const { return trace_; }
  // Jobs that ran on a node after it said that it was drained.
  [[nodiscard]] std::uint64_t master_jobs(std::size_t node) const {
    return nodes_[node]->master_jobs;
  }
  [[nodiscard]] bool has_reference(std::size_t node, std::size_t peer) const {
    return !nodes_[node]->replica->reference(EdgeEnds::of(id(node), id(peer))).empty();
  }

 private:
  struct Master final : MasterPort {
    std::vector<float> parameters;
    std::array<float, 4> mean{};
    std::array<float, 4> variance{1, 1, 1, 1};
    void with_master(const std::function<void(MasterView)>& job) override {
      job({parameters, mean, variance});
    }
  };
  struct Node {
    NodeId id;
    Instance instance;
    bool alive = false;
    TimePoint stopped_until{};
    Master master;
    std::unique_ptr<Replica> replica;
    std::unique_ptr<Mixer> mixer;
    std::deque<CodecJob> jobs;
    bool lane_busy = false;
    std::uint64_t life = 0;  // guards events of a process that is gone
    std::uint64_t steps = 0;
    std::uint64_t samples = 0;
    Duration latency{};
    Duration step_time{};
    std::uint64_t tick_asked = 0;
    std::vector<TimePoint> exchange_times;
    std::uint64_t master_jobs = 0;
  };
  struct Session {
    bool up = false;
    std::uint64_t epoch = 0;
    std::array<testing::OrderOfArrival, 2> order{};  // in each direction
  };
  struct Event {
    TimePoint when;
    std::uint64_t order = 0;
    std::function<void()> happen;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };
  // One end's half of an exchange.
  struct Half {
    std::vector<float> moved;  // x after - x before
    double scale = 1;
    double age_moved = 0;
  };
  struct ExchangeKey {
    EdgeEnds ends;
    std::uint64_t life_lower = 0;
    std::uint64_t life_higher = 0;
    Generation generation;
    Seq seq;
    auto operator<=>(const ExchangeKey&) const = default;
  };

  void in(Duration delay, std::function<void()> happen);
  void for_node(std::size_t node, std::function<void()> happen);  // waits while it is stopped
  void start(std::size_t node);
  void connect(std::size_t a, std::size_t b);
  void session_up(std::size_t node, std::size_t peer);
  void session_down(std::size_t node, std::size_t peer);
  void schedule_faults();
  void step(std::size_t node);
  void carry_out(std::size_t node, ExchangeEffects effects);
  void deliver(std::size_t from, std::size_t to, ExchangeMessage message);
  void note(std::size_t node, const ExchangeEvent& event);
  void next_job(std::size_t node);
  void run_job(std::size_t node);
  void ask_tick(std::size_t node);
  void check_half(std::size_t node, const CodecJob& job, const CodecOutcome& outcome,
                  const std::vector<float>& x_before, const std::vector<float>& r_before);
  void check_residual(std::size_t node, const Payload& own, const EdgeEnds& ends,
                      const std::vector<float>& x_before, const std::vector<float>& r_before);
  void check_references(std::size_t node);
  void say(const std::string& line);
  void fact_broken(const std::string& what);
  [[nodiscard]] std::size_t index_of(NodeId id) const;
  [[nodiscard]] Session& session(std::size_t a, std::size_t b);

  LinkOptions options_;
  Rng rng_;
  Layout layout_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<float> optimum_;
  std::map<std::pair<std::size_t, std::size_t>, Session> sessions_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  TimePoint now_ = at(Duration{});
  bool training_ = true;
  bool checks_ = true;
  std::string broken_;
  Totals totals_;
  std::map<ExchangeKey, Half> halves_;
  std::vector<std::string> trace_;
};

}  // namespace starling::gossip::sim
