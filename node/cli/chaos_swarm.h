// ChaosSwarm: the nodes of `starling chaos`, what happens to them, and what is seen of them.
#pragma once

#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/cli/byte_proxies.h"
#include "node/cli/chaos_plan.h"
#include "node/cli/demo_nodes.h"
#include "node/cli/demo_report.h"
#include "node/observe/line_tail.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace starling::node {

// Real nodes on loopback, each behind a door of ByteProxies, numbered from 1; folder DIR/node-K.
//
// Owned by the verb; one thread. What a node does is read from its control socket every half second
// and from its events as they are written. Figures are of the time since mark().
// Errors of what waits: cancelled after one of the stop signals; io_failed where a node ended by
// itself.
class ChaosSwarm {
 public:
  using Numbers = std::vector<std::size_t>;

  // Room for `most` nodes; none is started. `words` are what every node is told. The signals must
  // outlive the swarm.
  [[nodiscard]] static Result<std::unique_ptr<ChaosSwarm>> make(std::filesystem::path dir,
                                                                std::vector<std::string> words,
                                                                std::size_t most,
                                                                StopSignals& signals);

  // A process in the node's folder: a new node, or one that was killed.
  [[nodiscard]] Result<void> start(std::size_t number);
  void kill(std::size_t number);
  void stop(std::size_t number);
  void resume(std::size_t number);
  void leave(std::size_t number);
  // These on one side, all others on the other.
  void split(const Numbers& side);
  void mend();

  // Looks on for so long.
  [[nodiscard]] Result<void> watch(Duration time);
  // Until every node that is here sees all of them alive; false if that took too long.
  [[nodiscard]] Result<bool> wait_whole(Duration limit);
  // Asks for the final consensus and waits for the ends.
  [[nodiscard]] Result<std::vector<DemoEnd>> finish(Duration limit);

  [[nodiscard]] Numbers here_without(const Numbers& some) const;

  void mark();
  // The sum over these nodes.
  [[nodiscard]] double steps_a_second(const Numbers& nodes) const;
  [[nodiscard]] double longest_pause(const Numbers& nodes) const;
  // What the nodes wrote down of each other.
  [[nodiscard]] std::vector<Sighting> sightings() const;

 private:
  struct Change {
    std::string member;
    std::string state;
    TimePoint at;
  };
  struct Seen {
    std::unique_ptr<DemoNode> process;
    bool here = false;     // it is meant to be a member
    bool stopped = false;  // by SIGSTOP
    bool ends = false;     // it may end
    std::string id;
    std::string status;
    std::string last_words;
    std::set<std::string> alive;  // in its view
    double step = 0;
    double uptime_s = 0;
    double marked_step = 0;
    double marked_uptime_s = 0;
    double moved_uptime_s = 0;  // when its step was last seen to change
    double pause_s = 0;
    std::unique_ptr<LineTail> events;
    std::vector<Change> changes;
  };

  ChaosSwarm(std::filesystem::path dir, std::vector<std::string> words, std::size_t most,
             StopSignals& signals)
      : dir_(std::move(dir)), words_(std::move(words)), nodes_(most), signals_(signals) {}

  [[nodiscard]] Seen& at(std::size_t number) { return nodes_[number - 1]; }
  [[nodiscard]] const Seen& at(std::size_t number) const { return nodes_[number - 1]; }
  [[nodiscard]] std::filesystem::path folder(std::size_t number) const;
  [[nodiscard]] Result<void> turn();
  void listen_to(std::size_t number);
  void ask(std::size_t number);
  void read_events(std::size_t number);
  [[nodiscard]] bool is_whole() const;

  std::filesystem::path dir_;
  std::vector<std::string> words_;
  std::vector<Seen> nodes_;
  std::unique_ptr<ByteProxies> proxies_;
  StopSignals& signals_;
  SteadyClock clock_;
  TimePoint ask_at_;
  TimePoint marked_at_;
};

}  // namespace starling::node
