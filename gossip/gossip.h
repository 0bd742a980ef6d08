// Gossip: the protocol of one node, as one state machine made of the three rooms.
//
// Sessions, messages, ticks and outcomes come in; Effects come out, in the order in which they are
// to be carried out. Without a model (a node that joins) only membership is at work;
// begin_averaging() adds edges and the final consensus.
//
//   phase      event                                  next phase   effect
//   --------   ------------------------------------   ----------   ----------------------------
//   joining    begin_averaging                        averaging    record alive, edges open
//   joining    the same, untrained, budget spent      averaging    pause_training, for good
//   averaging  end_averaging (other settings)         joining      edges void
//   averaging  consensus asks for the freeze          freezing     drain, pause_training
//   freezing   training paused, exchanges drained     frozen       take_contribution
//   averaging  the end of others is its own           frozen       pause_training, finished
//   the two    begin_leave                            the same     (until the end or the deadline)
//   any other  begin_leave                            leaving      leave push, then record left
#pragma once

#include "gossip/consensus/final_consensus.h"
#include "gossip/consensus/merge.h"
#include "gossip/exchange/mixer.h"
#include "gossip/membership/membership.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/random.h"
#include "node/base/signing.h"
#include "transport/message.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace starling::gossip {

struct GossipOptions {
  MembershipOptions membership;
  MixerOptions exchange;
  // How long exchanges under way may take to settle before the final consensus freezes the replica.
  // Raising it keeps more of a slow line's last exchange; lowering it ends runs sooner.
  Duration drain = std::chrono::seconds(5);
  // `finish.linger`.
  Duration linger = std::chrono::seconds(30);
};

// When the run is over: at so many samples of the swarm, or at an age.
struct Budget {
  std::uint64_t samples = 0;  // 0: by time
  Duration time{0};
};

// What the rooms need to know of the model, once the settings are known.
struct ModelFacts {
  std::string name;
  Hash fingerprint;  // of the settings
  Hash manifest;     // of the layout
  consensus::ModelShape shape;
  std::uint32_t blocks = 0;
  std::size_t max_payload = 0;  // bytes of the largest exchange payload or snapshot
  std::uint32_t degree = 0;     // neighbours wanted; 0: as TopologyOptions and MixerOptions say
  consensus::Rule rule = consensus::Rule::mean;  // of the final consensus and of merges
  Budget budget;
  // Whose order alone ends the run by command, as ConsensusOptions::admin. Zeros: an admin whom
  // this node does not know (yet), so that nobody's order counts.
  std::optional<NodeId> admin = std::nullopt;
};

// How this node came to its replica.
enum class Origin : std::uint8_t {
  genesis,      // drawn from the seed
  transferred,  // taken from a sponsor: a newcomer until it has had 32 exchanges
  restored,     // from an own checkpoint
};

// Where averaging begins.
struct Beginning {
  Origin origin = Origin::genesis;
  double age = 0;  // of the replica, in steps (rulings 7)
  // Own counters so far: what earlier processes did is not done again.
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
};

struct Outgoing {
  NodeId to;
  transport::Message message;
};

// A peer broke a rule: its session is ended with this error, and counted.
struct CloseSession {
  NodeId peer;
  Error why;
};

struct PersistIncarnation {
  Incarnation ceiling;
};

// Stop training at the next step boundary, then call on_training_paused().
struct PauseTraining {};
// Freeze a contribution (a copy of the replica, and a result of the same size), then call
// on_contribution(); it stays until the run is over.
struct TakeContribution {
  consensus::RunKind kind = consensus::RunKind::finish;
};
// This replica is too far behind to heal by averaging: join again by state transfer.
struct FarBehind {
  Lag lag;
};
// begin_leave() is done: everybody was told.
struct Left {};

struct ConsensusFailed {
  consensus::RunKind kind = consensus::RunKind::finish;
  Error error;
};
// The final consensus asks nothing of this process any more.
struct MayExit {};
using consensus::Awaiting;
using consensus::NotTaken;

using GossipEffect =
    std::variant<Outgoing, CodecJob, consensus::ConsensusJob, WantedSession, CloseSession,
                 PersistIncarnation, PauseTraining, TakeContribution, FarBehind, Left,
                 consensus::Finished, consensus::Merged, ConsensusFailed, NotTaken, Awaiting,
                 MayExit, MemberChange, ExchangeEvent, Notice, CountedShort>;

using GossipEffects = std::vector<GossipEffect>;

// What training reports to gossip.
struct TrainingFigures {
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;  // of this process, its checkpoint included
  Duration step_time{};
};

// With what one node's protocol starts. `signer` and `verifier` must outlive it.
struct GossipParts {
  SwarmId swarm;
  SelfDescription self;
  GossipOptions options;
  const Signer& signer;
  const Verifier& verifier;
};

// One node's protocol.
//
// Owned by the driver, one per process; io thread only. Does no I/O, reads no clock. Holds this
// node's view. Cost: O(sessions) an event; nothing of model size.
class Gossip {
 public:
  Gossip(TimePoint now, GossipParts parts, Rng rng);

  // `host` is the address of the other end.
  [[nodiscard]] GossipEffects on_session_up(TimePoint now, const NodeId& peer, Instance instance,
                                            std::string_view host = {});
  [[nodiscard]] GossipEffects on_session_down(TimePoint now, const NodeId& peer, SessionEnd end);
  // A message of the membership, exchange or consensus room.
  [[nodiscard]] GossipEffects on_message(TimePoint now, const NodeId& from,
                                         const transport::Message& message);
  // A message of another room came from `from`: it lives.
  [[nodiscard]] GossipEffects on_heard(TimePoint now, const NodeId& from, Traffic traffic);
  // Whether to reserve memory for an attachment that `from` wants to send.
  [[nodiscard]] bool admits(const NodeId& from, std::uint16_t type,
                            std::size_t attachment_bytes) const;
  // `peer` had no room for the attachment of a message, or it was cut with a renewed session. Only
  // the body is known.
  [[nodiscard]] GossipEffects on_refused(TimePoint now, const NodeId& peer,
                                         const transport::Message& message);
  [[nodiscard]] GossipEffects on_dial_refused(TimePoint now, const NodeId& peer);
  [[nodiscard]] GossipEffects on_dial_failed(TimePoint now, const NodeId& peer);
  [[nodiscard]] GossipEffects on_incarnations_persisted(TimePoint now, Incarnation ceiling);
  [[nodiscard]] GossipEffects on_tick(TimePoint now);
  // The machine was suspended for so long.
  [[nodiscard]] GossipEffects on_slept(TimePoint now, Duration slept);
  [[nodiscard]] TimePoint next_deadline() const;

  // The settings are known and the replica is there.
  [[nodiscard]] GossipEffects begin_averaging(TimePoint now, const ModelFacts& model,
                                              Beginning beginning);
  // Other settings were adopted, or the replica is about to be replaced: edges are void.
  [[nodiscard]] GossipEffects end_averaging(TimePoint now);
  // `peer` trains the same settings: edges with it may open. Forgotten when its session ends.
  [[nodiscard]] GossipEffects on_same_settings(TimePoint now, const NodeId& peer);
  // The replica is being replaced by a sponsor's: edges are void, and codec jobs that follow work
  // on the new one. The age is that of the new one, from now on.
  [[nodiscard]] GossipEffects on_adopted(TimePoint now, double age);

  [[nodiscard]] GossipEffects on_steps(TimePoint now, const TrainingFigures& figures);
  void on_goodput(const NodeId& peer, double bytes_per_second);
  [[nodiscard]] GossipEffects on_codec_done(TimePoint now, CodecOutcome outcome);
  [[nodiscard]] GossipEffects on_consensus_done(TimePoint now,
                                                const consensus::JobOutcome& outcome);

  // Ends the run. Where there is an admin nothing happens without its order.
  [[nodiscard]] GossipEffects finish(TimePoint now, std::optional<Signature> order = std::nullopt);
  // The certificate of this node names this admin from now on. Nothing where any member may end the
  // run.
  void set_admin(const NodeId& admin);
  // Brings all replicas to their exact mean without stopping the run (rulings 39). The end is
  // Merged or ConsensusFailed of kind merge.
  //
  // Errors:  not_found without a replica; already_exists while another merge runs.
  [[nodiscard]] Result<GossipEffects> merge(TimePoint now);
  [[nodiscard]] GossipEffects on_training_paused(TimePoint now);
  [[nodiscard]] GossipEffects on_contribution(TimePoint now, consensus::RunKind kind);
  // What Finished named is on the disk. Nobody who knows of this node ends before.
  [[nodiscard]] GossipEffects on_result_stored(TimePoint now);
  // The swarm has finished without this node: fetch the certified model from whoever shows a
  // certificate.
  [[nodiscard]] GossipEffects begin_following(TimePoint now, const ModelFacts& model);
  // A finished node starts again: an alive member that averages with nobody, shows the certificate
  // to whoever comes and serves the model, which the result buffer already holds (rulings 40).
  //
  // Errors:  corrupt for a certificate of another model; those of verify().
  [[nodiscard]] Result<GossipEffects> serve(TimePoint now, const ModelFacts& model,
                                            const consensus::CertificateMessage& held);
  [[nodiscard]] GossipEffects begin_leave(TimePoint now, TimePoint deadline);
  [[nodiscard]] Result<GossipEffects> set_addresses(TimePoint now,
                                                    std::vector<std::string> addresses);

  // Views, for status and for bootstrap.
  [[nodiscard]] Membership& membership() { return membership_; }
  [[nodiscard]] const Membership& membership() const { return membership_; }
  [[nodiscard]] const Mixer* mixer() const { return mixer_.get(); }
  [[nodiscard]] const FinalConsensus* final_consensus() const { return consensus_.get(); }
  [[nodiscard]] const ModelFacts& model() const { return model_; }
  // P, and its share of the budget in [0, 1].
  [[nodiscard]] std::uint64_t swarm_samples(TimePoint now);
  [[nodiscard]] double progress_share(TimePoint now) { return share_of(now, model_.budget); }
  // The same of another budget: before begin_averaging() there is none.
  [[nodiscard]] double share_of(TimePoint now, const Budget& budget);

 private:
  enum class Phase : std::uint8_t { joining, averaging, freezing, frozen, leaving, left };
  enum class Contributes : std::uint8_t { no, yes };  // a replica of its own to the consensus

  void take(TimePoint now, MembershipEffects effects, GossipEffects& out);
  void take(TimePoint now, ExchangeEffects effects, GossipEffects& out);
  void take(TimePoint now, ConsensusEffects effects, GossipEffects& out);
  void take_merge(ConsensusEffects effects, GossipEffects& out);
  // What both kinds of run have in common.
  void take_common(ConsensusEffects& effects, GossipEffects& out);
  void on_exchange(TimePoint now, const NodeId& from, ExchangeMessage message, GossipEffects& out);
  void on_bulk_refused(TimePoint now, const NodeId& peer, const transport::Message& message,
                       GossipEffects& out);
  [[nodiscard]] consensus::Presence presence_of(const std::optional<MemberView>& member) const;
  void react(TimePoint now, const MemberChange& change, GossipEffects& out);
  void update_record();
  void update_neighbours(TimePoint now, GossipEffects& out);
  void update_progress(TimePoint now, GossipEffects& out);
  void update_standing(TimePoint now, GossipEffects& out);
  void advance(TimePoint now, GossipEffects& out);
  [[nodiscard]] bool waits_for_end(TimePoint now) const;
  void start_leaving(TimePoint now, GossipEffects& out);
  [[nodiscard]] consensus::ConsensusOptions consensus_options(Contributes contributes) const;
  [[nodiscard]] bool may_be_here(const NodeId& id) const;
  [[nodiscard]] std::set<NodeId> known_company() const;
  [[nodiscard]] bool comes_untrained(TimePoint now, const Beginning& beginning);
  void connect(TimePoint now, const NodeId& peer, GossipEffects& out);
  template <class Decoded, class Handle>
  void deliver(const NodeId& from, Decoded decoded, Handle handle, GossipEffects& out);

  NodeId self_;
  SwarmId swarm_;
  GossipOptions options_;
  const Signer& signer_;
  const Verifier& verifier_;
  Rng rng_;
  Membership membership_;

  Phase phase_ = Phase::joining;
  ModelFacts model_;
  Origin origin_ = Origin::genesis;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<FinalConsensus> consensus_;
  std::unique_ptr<Merge> merge_;
  std::map<NodeId, Instance> sessions_;
  std::set<NodeId> same_settings_;
  TimePoint next_progress_{};
  TimePoint leave_deadline_ = kNever;
  bool leave_wanted_ = false;
  bool ended_ = false;       // the final consensus asks nothing of this process any more
  Incarnation record_told_;  // of the own record that the mixer has
  bool training_paused_ = false;
  bool far_behind_told_ = false;
};

}  // namespace starling::gossip
