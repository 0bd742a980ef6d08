// Which neighbour to average with, when, and at which level: all edges of one node.
#pragma once

#include "gossip/exchange/absent_peers.h"
#include "gossip/exchange/edge.h"
#include "gossip/exchange/effects.h"
#include "gossip/exchange/level_control.h"
#include "gossip/exchange/messages.h"
#include "gossip/exchange/neighbour_view.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/random.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace starling::gossip {

struct MixerOptions {
  EdgeOptions edge;  // `blocks` is set by the mixer
  LevelOptions levels;
  // Edges that this node wants; it accepts two more. Raising it mixes faster on large swarms and
  // costs one reference (4 bytes a parameter) an edge.
  std::uint32_t degree = 4;
  // Exchanges after which an edge outside the topology is closed. Lowering it makes openings (8
  // bits a parameter) a larger share of the traffic.
  std::uint64_t lease = 500;
  // Offers that may wait for their answer here; above, Busy.
  std::uint32_t answers_max = 8;
  // How long the higher id waits for the lower one to open an edge before it proposes itself.
  Duration open_grace = std::chrono::seconds(2);
  // First wait after a refused or failed opening, and the longest; it doubles in between.
  Duration retry_min = std::chrono::seconds(2);
  Duration retry_max = std::chrono::minutes(5);
  // Lag beyond which a replica does not heal by averaging (rulings 7): the larger of the two.
  double lag_share = 0.2;
  double lag_steps = 1000;
  // Openings of strangers, which are neither neighbours of the topology nor guests, that are
  // accepted at once, and how long until there is one more: all of them together, since identities
  // cost nothing, and degree + 2 at least. Each costs a reference, and often a snapshot. Fewer
  // would keep honest peers waiting whose view of the topology is some seconds ahead of this
  // node's.
  std::uint32_t strangers_max = 8;
  Duration stranger_rest = std::chrono::seconds(10);
  // How long a node that is far behind holds back its exchanges for a state transfer to begin.
  Duration lag_patience = std::chrono::seconds(60);
  // Exchanges in which a node counts as a newcomer.
  std::uint64_t newcomer_exchanges = 32;
};

// What training reports after a step or a batch of steps. Counters never decrease.
struct TrainingState {
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
  double progress = 0;  // share of the swarm's budget, 0 to 1
  Duration step_time{};
};

// How far behind this replica is.
struct Lag {
  double own_age = 0;
  double median_age = 0;    // of the neighbours, the lower one of two in the middle
  bool far_behind = false;  // join again by state transfer
  // Behind by no more than half of that, as far as anybody says: whoever is far behind after this
  // is so anew. In between nothing changes, or each exchange at the bound would be told.
  bool caught_up = false;
};

// All edges of one node and the choice between them.
//
// Owned by the gossip driver; born with the node, ends with it; not movable. Lives on the io
// thread. Holds this node's truth only. Costs one pending offer and one cached answer an edge, and
// O(edges) time an event; every model-sized piece of work is a job in the effects. Jobs are run in
// the order in which they are returned, each outcome is handed to on_job_done() in that order.
class Mixer {
 public:
  Mixer(NodeId self, const MixerOptions& options, std::uint32_t blocks, Rng rng);
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;

  // Edges wanted from now on, see MixerOptions: the topology of a large swarm has more of them.
  void set_degree(std::uint32_t degree) { options_.degree = degree; }

  // A session with `peer` is usable; a second call without a session_down in between replaces it.
  [[nodiscard]] ExchangeEffects on_session_up(TimePoint now, NodeId peer, Instance instance);
  [[nodiscard]] ExchangeEffects on_session_down(TimePoint now, NodeId peer);
  // The neighbours that the topology wants, sessions or not, and the guests: others that are let
  // in until `degree` edges more are taken than anybody may open.
  [[nodiscard]] ExchangeEffects on_neighbours(TimePoint now, const std::vector<NodeId>& wanted,
                                              const std::vector<NodeId>& guests = {});
  [[nodiscard]] ExchangeEffects on_message(TimePoint now, NodeId from, ExchangeMessage message);
  [[nodiscard]] ExchangeEffects on_job_done(TimePoint now, CodecOutcome outcome);
  [[nodiscard]] ExchangeEffects on_steps(TimePoint now, const TrainingState& training);
  // Counters from which on_steps() counts on without ageing the replica: after a checkpoint was
  // loaded or the trainer rebuilt. The age itself comes with adopt_replica().
  void continue_from(const TrainingState& training);
  // Goodput of bulk bursts to or from `peer`, the smaller of the two ways.
  void on_goodput(NodeId peer, double bytes_per_second);
  // `peer` had no room for the attachment of `message`, which it therefore never saw.
  [[nodiscard]] ExchangeEffects on_refused(TimePoint now, NodeId peer,
                                           const ExchangeMessage& message);
  [[nodiscard]] ExchangeEffects on_tick(TimePoint now);
  // When on_tick() is due at the latest; calling it earlier is harmless.
  [[nodiscard]] TimePoint next_deadline() const;

  // For the final consensus, after which nothing is exchanged any more: no new offers; those under
  // way are settled or, at `deadline`, given up. Then all edges are closed, and their references'
  // memory is free for what the consensus needs. Once drained() no job touches the master.
  [[nodiscard]] ExchangeEffects begin_drain(TimePoint now, TimePoint deadline);
  // Before leaving: one exchange at the highest level that fits half the time left, with the
  // fastest neighbour, then all edges are closed and drained() holds, at `deadline` at the latest.
  [[nodiscard]] ExchangeEffects begin_leave(TimePoint now, TimePoint deadline);
  [[nodiscard]] bool drained() const;

  // This node averages no more: all edges are closed at once, and nothing follows. Jobs under way
  // are of no use to anybody.
  [[nodiscard]] ExchangeEffects end(TimePoint now);

  // This replica is replaced by another one of that age: all edges are void, and the jobs that
  // follow work on the new one.
  [[nodiscard]] ExchangeEffects adopt_replica(TimePoint now, double age);

  // Own signed record, sent with openings (at most exchange_limits::kMaxRecord bytes).
  void set_record(Bytes record);

  [[nodiscard]] double age() const { return node_.replica.age; }
  [[nodiscard]] Lag lag() const;
  // Exchanges since the start or the last state transfer; a newcomer has had fewer than 32.
  [[nodiscard]] std::uint64_t exchanges() const { return exchanges_; }
  [[nodiscard]] bool newcomer() const { return exchanges_ < options_.newcomer_exchanges; }
  // The largest |q_their - q_own| of the last 100 exchanges, as far as it was taken, not clipped
  // (rulings 37 measures against it). 0: nothing was taken yet.
  [[nodiscard]] double largest_norm() const;
  [[nodiscard]] std::uint32_t tau() const { return period_.tau; }
  [[nodiscard]] PeriodDecision period() const { return period_; }
  // Peers with an edge or a session, and those of the topology.
  [[nodiscard]] std::vector<NeighbourView> neighbours() const;
  // Others of which something still counts: at most AbsentPeers::kMost.
  [[nodiscard]] std::vector<NeighbourView> absent() const { return absent_.views(last_event_); }
  [[nodiscard]] const Edge* find_edge(NodeId peer) const;

 private:
  struct Neighbour {
    Neighbour(NodeId self, NodeId peer, const EdgeOptions& edge_options,
              const LevelOptions& level_options)
        : edge(self, peer, edge_options), history(level_options) {}
    Edge edge;
    LevelHistory history;
    LevelDecision decision;
    std::optional<double> goodput;
    double goodput_heard = 0;             // the last one that the shell said
    std::uint32_t goodput_age = 0;        // exchanges that measured no other one
    TimePoint open_at{};                  // no own proposal before
    TimePoint offer_at{};                 // no own offer before (Busy)
    Duration retry{};                     // present wait between proposals; 0 after an exchange
    Duration busy_wait{};                 // present wait after Busy; 0 after an exchange
    std::optional<TimePoint> offered_at;  // the last own offer, answered or not
    double difference = 0;                // |x - r| of the last encode
    NeighbourView counters;
  };
  enum class Phase : std::uint8_t { mixing, draining, frozen, leaving, left };

  // One event: `happen` gets the turn, then everything that may follow from it is settled.
  template <class Happen>
  [[nodiscard]] ExchangeEffects turn_at(TimePoint now, Happen&& happen);

  Neighbour& neighbour(NodeId peer);
  [[nodiscard]] Neighbour* find(NodeId peer);
  [[nodiscard]] NeighbourView view_of(const Neighbour& neighbour) const;
  [[nodiscard]] Admission admit(Turn& turn, const Neighbour& from, const ExchangeMessage& message);
  [[nodiscard]] std::optional<CloseReason> refuse_open(Turn& turn, const Neighbour& from);
  [[nodiscard]] std::size_t edges_taken() const;
  void settle(Turn& turn);
  void put_strangers_away(TimePoint now);

  // What events mean for counters, levels and retries.
  void learn(const CodecOutcome& outcome, Neighbour& neighbour);
  void learn_step_time(Duration reported, std::uint64_t steps);
  void count(Turn& turn, const ExchangeEvent& event);
  void count_exchange(Turn& turn, const Exchanged& event);
  void remember_norm(const Exchanged& event);
  void count_close(TimePoint now, const EdgeWasClosed& event);
  void count_sends(const ExchangeEffects& out);

  // Choice: mixer_choice.cc.
  void close_unwanted(Turn& turn);
  void open_wanted(Turn& turn);
  [[nodiscard]] TimePoint earliest_open(TimePoint now, const Neighbour& neighbour) const;
  void maybe_offer(Turn& turn);
  [[nodiscard]] bool offer_is_out() const;
  [[nodiscard]] Neighbour* choose(TimePoint now);
  [[nodiscard]] Duration median_answer_time() const;
  [[nodiscard]] Line line_of(const Neighbour& neighbour) const;
  // The (k / 2 + 1)-th smallest of what is usual on k edges (algorithm 5.8, strict): with fewer
  // than half of them lying it is no larger than an honest one. 0 before three have spoken.
  [[nodiscard]] double usual_norm() const;
  void control_level(Turn& turn, Neighbour& neighbour);
  void control_period(Turn& turn);
  template <class Fit>
  [[nodiscard]] bool fails_on_most(const Fit& fit) const;
  [[nodiscard]] bool holding_back(TimePoint now) const;
  void watch_lag(TimePoint now);

  // Draining and leaving: mixer_phase.cc.
  void advance_phase(Turn& turn);
  void advance_leave(Turn& turn);
  void leave_now(Turn& turn, CloseReason reason);
  [[nodiscard]] Neighbour* choose_for_leave();
  [[nodiscard]] bool settled() const;
  [[nodiscard]] bool jobs_running() const;
  void close_all(Turn& turn, CloseReason reason);

  NodeId self_;
  MixerOptions options_;
  Rng rng_;
  NodeFigures node_;
  TrainingState training_;
  Duration step_time_{};  // the usual one
  std::map<NodeId, Neighbour> neighbours_;
  AbsentPeers absent_;
  TokenBucket stranger_openings_;  // of strangers, that may still be accepted
  std::set<NodeId> wanted_;
  std::set<NodeId> guests_;
  Phase phase_ = Phase::mixing;
  TimePoint phase_deadline_ = kNever;
  bool phase_overdue_ = false;        // the deadline has passed
  std::optional<NodeId> leave_push_;  // the neighbour that gets it
  std::uint64_t last_offer_step_ = 0;
  std::uint64_t exchanges_ = 0;
  std::deque<double> norms_;  // of the last 100 exchanges
  PeriodDecision period_;
  std::uint32_t exchanges_with_room_ = 0;
  std::map<std::uint32_t, std::uint64_t> tau_left_at_;  // in exchanges
  Duration job_cost_{};          // mean of the codec's last offers and exchanges
  std::uint32_t job_costs_ = 0;  // that it is the mean of
  PerLevel message_bytes_{};
  std::optional<TimePoint> lag_since_;  // far behind, and not caught up since
  TimePoint last_event_{};
};

template <class Happen>
ExchangeEffects Mixer::turn_at(TimePoint now, Happen&& happen) {
  ExchangeEffects out;
  Turn turn{now, node_, out};
  last_event_ = now;
  happen(turn);
  settle(turn);
  return out;
}

}  // namespace starling::gossip
