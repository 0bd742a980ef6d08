// SwarmNodes: the processes that `starling bench swarm` measures.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/bench/bench.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace starling::node::bench {

// One look at a node: what its status says, which it makes once a second, and what the kernel says
// of its process at the time of the look. So there are three clocks, and rates of one window are
// differences over the differences of the clock they belong to.
struct NodeReading {
  double step = 0;
  double step_at_s = 0;    // when that step ended, since the node's start
  double status_at_s = 0;  // when the status was made, since the node's start
  TimePoint at{};          // of the look
  double cpu_s = 0;        // all threads since the node's start, at the look
  double bytes_sent = 0;
  double exchanges = 0;
  double rss_bytes = 0;
  double batch = 0;
};

// What one window shows: rates and costs of the nodes that were read at both its ends.
struct Window {
  double images_per_s = 0;      // of all together
  std::vector<double> step_ms;  // of each node
  double cpu_ms = 0;            // of a step, the mean of the nodes
  double bytes = 0;             // sent by a node in a step
  double exchanges = 0;
  double rss_mib = 0;  // of the largest

  // Of the first `count` nodes, or of as many as there are; 0 for none.
  [[nodiscard]] double slowest_step_ms(std::size_t count) const;
};
// `begin` and `end` are readings of the same nodes; each trained a step between, and made a status.
[[nodiscard]] Window window_of(const std::vector<NodeReading>& begin,
                               const std::vector<NodeReading>& end);

// The keys that the bench hands to its nodes, by their short names: what `words` say, the default
// otherwise; and where that leaves it to the node, what this status of it says.
[[nodiscard]] Json settings_of(const std::vector<std::string>& words, const nlohmann::json& status);

// Real nodes on loopback, numbered from 0, in folders DIR/node-K with K from 1.
//
// Owned by the bench; one thread. The destructor kills what still runs. Errors of what waits:
// io_failed where a node ended by itself, with its last words; timed_out; cancelled after a stop.
class SwarmNodes {
 public:
  struct Options {
    std::filesystem::path dir;
    std::vector<std::string> words;  // what every node is told
    std::size_t count = 0;
    bool gossip = true;   // false: every node is a swarm of its own
    bool pinned = false;  // node k stays on the (k mod n)-th of the n usable cores
  };

  SwarmNodes(Options options, StopSignals& stop)
      : options_(std::move(options)), stop_(stop), nodes_(options_.count) {}
  ~SwarmNodes() { resume(); }
  SwarmNodes(const SwarmNodes&) = delete;
  SwarmNodes& operator=(const SwarmNodes&) = delete;

  // Starts all, and waits until every one has trained `steps` and, with gossip, taken part in an
  // exchange.
  [[nodiscard]] Result<void> start(std::uint64_t steps);
  // What the first node needed, from its start to its address being known and to its first step.
  [[nodiscard]] double listening_s() const { return listening_s_; }
  [[nodiscard]] double first_step_s() const { return first_step_s_; }

  // What the first node said last, when it was looked at.
  [[nodiscard]] const nlohmann::json& first_status() const { return first_status_; }

  // A reading of each of the first `count` nodes, which have trained a step.
  [[nodiscard]] Result<std::vector<NodeReading>> read(std::size_t count);
  // Until each of these has trained `steps` more than its reading says.
  [[nodiscard]] Result<void> wait_steps(const std::vector<NodeReading>& since, std::uint64_t steps);
  // The longest time in which the node's training thread did not run, as a look each few
  // milliseconds sees it, while it trains for so long. Other work for the same cores counts.
  [[nodiscard]] Result<double> longest_pause_s(std::size_t number, Duration time);

  // What happens to a node. A slow one is stopped for three quarters of the time.
  void slow(std::size_t number);
  void stop(std::size_t number);
  void kill(std::size_t number);
  // Ends slowness and stops.
  void resume();

  // Asks for the final consensus and waits for the ends: seconds from the request until the last
  // node had its certificate and the model on disk.
  // Errors:  also replicas_differ, if the nodes did not end with one hash.
  [[nodiscard]] Result<double> finish();

 private:
  struct Process {
    std::unique_ptr<DemoNode> node;
    std::string last_words;
    bool ends = false;  // it may end
    bool stopped = false;
  };

  [[nodiscard]] Result<void> start_one(std::size_t number);
  [[nodiscard]] Result<void> wait_for(const std::filesystem::path& file, std::size_t number);
  // Listens to all, and complains about one that ended.
  [[nodiscard]] Result<void> turn(Duration wait);
  [[nodiscard]] std::optional<nlohmann::json> status(std::size_t number);
  [[nodiscard]] std::optional<NodeReading> look(std::size_t number);
  struct Waiting {
    TimePoint limit;
    Duration between;            // two looks
    std::string_view complaint;  // what the node did not do by then
  };
  // The first look at a node that `done` is content with.
  [[nodiscard]] Result<NodeReading> look_until(std::size_t number, const Waiting& waiting,
                                               const std::function<bool(const NodeReading&)>& done);
  void pin(std::size_t number) const;

  Options options_;
  StopSignals& stop_;
  std::vector<Process> nodes_;
  nlohmann::json first_status_;
  std::jthread slowness_;
  SteadyClock clock_;
  double listening_s_ = 0;
  double first_step_s_ = 0;
};

}  // namespace starling::node::bench
