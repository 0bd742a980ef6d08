// What must never happen in a swarm, looked at while it runs.
#pragma once

#include "tests/sim/process.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace starling::sim {

struct Violation {
  TimePoint at;
  std::string_view checker;  // the promise that was broken, in a few words that live for ever
  std::string what;
};

// Figures that are no verdict but worth seeing.
struct Tally {
  std::uint64_t exchanges = 0;
  std::uint64_t torn = 0;
  std::uint64_t resets = 0;
  std::uint64_t references_compared = 0;
  std::uint64_t pairs_compared = 0;
  std::uint64_t finished = 0;
  std::uint64_t failed = 0;
  std::uint64_t merged = 0;
  std::uint64_t deaths = 0;
  std::uint64_t offences = 0;
};

// How the checkers see the world.
class Census {
 public:
  virtual ~Census() = default;
  [[nodiscard]] virtual std::vector<Process*> processes() const = 0;
  // Since when no fault has touched this machine or a link of it; nothing: one does now.
  [[nodiscard]] virtual std::optional<TimePoint> untouched_since(const NodeId& id) const = 0;
  // Nobody starts over in this run: what everybody's steps did is still there at the end.
  [[nodiscard]] virtual bool is_steady() const = 0;
  // What all machines together process where none is slowed down.
  [[nodiscard]] virtual double samples_per_second() const = 0;
};

// The invariants. One per world, told everything that happens; reports, and changes nothing.
class Checkers final : public Watch {
 public:
  Checkers(const Schedule& schedule, const Census& census, const Quadratic& problem,
           const Verifier& verifier)
      : schedule_(schedule), census_(census), problem_(problem), verifier_(verifier) {}

  void report(std::string_view checker, std::string what);
  [[nodiscard]] const std::vector<Violation>& violations() const { return violations_; }
  [[nodiscard]] const Tally& tally() const { return tally_; }
  // Looks at a process that has just begun.
  void look_at_start(const Process& process);
  // Looks at every process and every pair of ends; about once a second.
  void look();
  // Whose P is not what was counted, where all are in one view; empty: nobody's.
  [[nodiscard]] std::string look_at_progress();
  // From now on nothing excuses a failure.
  void begin_liveness() { liveness_ = true; }

  void on_codec_run(const Process& who, const CodecRun& run) override;
  void on_exchange_event(const Process& who, const gossip::ExchangeEvent& event) override;
  void on_member_change(const Process& who, const gossip::MemberChange& change) override;
  void on_close(const Process& who, const NodeId& peer, const Error& why) override;
  void on_contribution(const Process& who, const Weights& weights, std::uint64_t steps) override;
  void on_finished(const Process& who, const gossip::consensus::Finished& finished,
                   const Weights& result) override;
  void on_final_written(const Process& who) override;
  void on_chunk_fetched(const Process& who, std::uint32_t chunk, const Hash& hash) override;
  void on_merged(const Process& who, const gossip::consensus::Merged& merged) override;
  void on_consensus_failed(const Process& who, const gossip::ConsensusFailed& failed) override;
  void on_exit(const Process& who, Exit how, const std::string& why) override;

 private:
  // One half of an exchange: what it added to one replica, seen from a fixed direction.
  struct Half {
    NodeId who;
    double moved = 0;
    double largest = 0;  // of a single coordinate
    bool whole = true;   // not clipped
    gossip::Weight weight;
    Hash chain_after;
  };
  struct Result {
    gossip::consensus::Certificate certificate;
    Weights weights;
    bool written = false;  // on the disk of a machine: what only memories held may get lost
  };
  struct Seen {
    Incarnation incarnation;
    std::optional<Incarnation> gone_at;  // dead or left in this view at that incarnation
    bool left = false;
  };

  void check_finite(const Process& who, const char* after);
  void check_residual(const Process& who, const CodecRun& run, const gossip::ExchangeTerms& terms,
                      const gossip::Payload& own, const gossip::ExchangeDone& done);
  void note_delay(const Process& who, const NodeId& peer, Duration took);
  void check_halves(const Process& who, const gossip::ExchangeTerms& terms, const Half& half);
  [[nodiscard]] Result* find_result(const Hash& hash);
  void check_mean(const Process& who, const gossip::consensus::Certificate& certificate,
                  const Weights& result);
  void check_owner(const Process& who, const gossip::MemberRecord& record);
  void look_at_process(Process& process);
  void look_at_edges(const std::vector<Process*>& processes);
  void look_at_edge(const Process& a, const Process& b);

  const Schedule& schedule_;
  const Census& census_;
  const Quadratic& problem_;
  const Verifier& verifier_;
  std::vector<Violation> violations_;
  Tally tally_;
  bool liveness_ = false;
  std::map<Hash, Half> halves_;                            // by the hash chain before the exchange
  std::map<std::pair<std::uint64_t, NodeId>, Seen> seen_;  // by process and subject
  // By process: what it trains, and P of that.
  std::map<std::uint64_t, std::pair<Hash, std::uint64_t>> progress_;
  std::map<NodeId, std::uint64_t> counters_;  // the most that a node has counted itself
  std::map<std::uint64_t, std::uint64_t> ticks_;
  std::map<NodeId, Incarnation> own_incarnations_;
  std::map<std::pair<NodeId, Incarnation>, Instance> owners_;
  struct Contribution {
    Weights weights;
    std::uint64_t steps = 0;  // since an old exchange last took the replica back
  };
  std::map<NodeId, Contribution> contributions_;
  std::map<std::uint64_t, std::uint64_t> taken_back_;  // by process: its steps at that moment
  std::vector<Result> results_;
  std::set<std::tuple<std::uint64_t, std::uint32_t, Hash>> fetched_;  // by process
};

}  // namespace starling::sim
