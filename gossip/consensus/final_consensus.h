// FinalConsensus: how the replicas of a swarm become bit-identical at the end (design section 8).
//
//   phase        event                                  next phase     effect
//   ----------   ------------------------------------   ------------
//   -------------------------------- idle         command, P >= budget                   collecting
//   Finish(1) to all sessions idle         Finish(E) heard, may join              collecting
//   Finish(E), or following where not collecting   all named sessions answered, settled confirming
//   Participants(E) collecting   the graph on them is not connected     collecting     dial along a
//   Hamiltonian cycle collecting   deadline 5 s x 2^(E-1), at most 60 s   confirming     with those
//   heard; else following confirming   all signed the same set and graph      freezing       freeze
//   (once per run) confirming   they differ, or the deadline passed    collecting     E+1 freezing
//   on_frozen                              reducing       jobs and sums, chunk by chunk reducing
//   every chunk of the result is here      checking       CheckJob checking     close to the own
//   replica               certifying     HashSignature(E, h) checking     too far from it
//   collecting     Refusal, E+1 with the median certifying   all signed the same h lingering
//   certificate, finished, Acknowledge any of E     a graph neighbour's session is gone collecting
//   E+1; the frozen contribution stays
//                for reconnect_grace; no progress for
//                stall_limit; a refusal
//   any          Finish(E' > E)                         collecting     Finish(E')
//   any          a valid certificate                    fetching       ChunkRequests for what is
//   missing fetching     every chunk has its certified hash     lingering      finished
//   (participant or adopted) following    a valid certificate                    fetching lingering
//   all acknowledged, or linger            done           may_exit any          E would exceed
//   kMaxEpoch               failed         failed
#pragma once

#include "gossip/consensus/certificate.h"
#include "gossip/consensus/chunk_fetch.h"
#include "gossip/consensus/jobs.h"
#include "gossip/consensus/ledger.h"
#include "gossip/consensus/messages.h"
#include "gossip/consensus/reduction.h"
#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/signing.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace starling::gossip::consensus {

struct ConsensusOptions {
  RunId run;          // the final consensus, or one merge
  Hash fingerprint;   // of the swarm's settings
  Hash manifest;      // of the tensor manifest: names, shapes, canonical order
  std::string model;  // name in the certificate, <= kMaxModelName bytes
  ModelShape shape;
  // Weight of the own contribution, 1 to kMaxWeight.
  std::uint32_t weight = 1;
  // Ids that may order a finish by command; empty: any member (`finish.by`).
  std::vector<NodeId> commanders;
  // First deadline of AGREE; doubles with every epoch up to the second. Raising it lets slower
  // nodes in and delays every retry by as much.
  Duration first_deadline = std::chrono::seconds(5);
  Duration longest_deadline = std::chrono::seconds(60);
  // How long nothing new must have been heard before a complete set is closed early. Raising it
  // delays every run; lowering it lets two nodes close over different session lists.
  Duration settle = std::chrono::milliseconds(250);
  // How long a session may be away before its peer counts as dead for this epoch.
  Duration reconnect_grace = std::chrono::seconds(3);
  // How long an epoch may go without any progress here. Covers the longest training step of any
  // participant, because the first sums wait for every node's freeze.
  Duration stall_limit = std::chrono::seconds(60);
  // `finish.linger`: how long to go on serving after the end when somebody did not acknowledge.
  Duration linger = std::chrono::seconds(30);
  // Chunks that this node works on at a time; memory is about 2 MiB each and 1 MiB a child.
  std::uint32_t window = 8;
  // Tries before the run fails, at most kMaxEpoch.
  std::uint64_t max_epoch = kMaxEpoch;
};

enum class Phase : std::uint8_t {
  idle,
  collecting,
  confirming,
  freezing,
  reducing,
  checking,
  certifying,
  following,
  fetching,
  lingering,
  done,
  failed,
};
[[nodiscard]] std::string_view name_of(Phase phase);

struct ConsensusSend {
  NodeId to;
  ConsensusMessage message;
};

// A peer sent what no correct node sends: the session ends and the peer is counted.
struct Misbehaviour {
  NodeId peer;
  std::string detail;
};

// The result buffer holds the final model: save it, and the certificate with it.
struct Finished {
  Certificate certificate;
  Role role = Role::participant;  // follower: "adopted"
};
// The result buffer holds x*: master += x* - y (rulings 39).
struct Merged {
  std::vector<NodeId> participants;
  std::uint64_t samples = 0;
};

// What the caller has to do, in this order.
struct ConsensusEffects {
  std::vector<ConsensusSend> send;
  std::vector<ConsensusJob> jobs;
  // Stop training, drain exchanges, freeze a contribution and call on_frozen(); a merge only takes
  // a snapshot. Asked once per run; the contribution must stay until the run is over.
  std::optional<RunKind> freeze;
  std::vector<NodeId> dial;
  std::vector<Misbehaviour> misbehaved;
  // A certificate of other participants over another hash was shown: both stay (rulings 36).
  std::optional<Certificate> conflicting;
  std::optional<Finished> finished;
  std::optional<Merged> merged;
  // The run is over without a result. A merge: aborted, training goes on untouched.
  std::optional<Error> failed;
  // Everybody has the result, or had the time to get it: the process may end.
  std::optional<Epoch> may_exit;

  void append(ConsensusEffects other);
};

// For status, page and logs.
struct ConsensusState {
  Phase phase = Phase::idle;
  Epoch epoch;
  Role role = Role::participant;
  Rule rule = Rule::mean;
  std::vector<NodeId> participants;  // once agreed
  std::optional<Hash> hash;          // once known
  std::uint64_t bytes_left = 0;      // of the result
  std::uint64_t bytes_total = 0;
  std::string reason;  // why the last epoch was given up
};

// The final consensus (or one merge) as one node sees it.
//
// Owned by the gossip shell, one per process (one per merge); lives on the io thread. Does no I/O,
// reads no clock, walks no model. Holds this node's view; only the certificate is a truth of the
// swarm. Every event may be repeated harmlessly, and messages of different peers may come in any
// order; those of one session come in the order in which they were sent.
//
// Limit:   `window` chunks in flight; statements of at most kMaxStatements ids. Per node about one
//          model up and one model down.
class FinalConsensus {
 public:
  // `signer` and `verifier` must outlive this object.
  FinalConsensus(ConsensusOptions options, const Signer& signer, const Verifier& verifier);

  // A person (or a time limit) wants the run to end now.
  ConsensusEffects on_finish_command(TimePoint now);
  // What this node knows about the swarm's samples. A budget of 0 never ends a run.
  ConsensusEffects on_progress(TimePoint now, std::uint64_t samples, std::uint64_t budget);
  // Newcomers and lagging nodes are followers (rulings 7, 35). Counts until this node signed.
  ConsensusEffects on_standing(TimePoint now, Role role);
  ConsensusEffects on_session_up(TimePoint now, const NodeId& peer);
  ConsensusEffects on_session_down(TimePoint now, const NodeId& peer);
  // Membership holds this member for dead or left: nobody waits for its acknowledgement.
  ConsensusEffects on_member_gone(TimePoint now, const NodeId& member);
  ConsensusEffects on_message(TimePoint now, const NodeId& from, const ConsensusMessage& message);
  ConsensusEffects on_frozen(TimePoint now);
  ConsensusEffects on_job_done(TimePoint now, const JobOutcome& outcome);
  ConsensusEffects on_tick(TimePoint now);
  // Ends a run that has no certificate yet (leaving, or a merge that a Finish overtakes).
  ConsensusEffects stop(TimePoint now, std::string reason);
  // Starts as the holder of a certificate whose model the result buffer already holds, to serve it
  // (rulings 40). Only on an idle object. `chunks` must hash to the certificate's hash.
  Result<void> restore(const CertificateMessage& held);

  // When to call on_tick() at the latest.
  [[nodiscard]] TimePoint next_deadline() const;
  [[nodiscard]] ConsensusState state() const;
  [[nodiscard]] const std::optional<Certificate>& certificate() const { return certificate_; }
  // The certificate with its chunk hashes, to be stored beside the model for restore().
  [[nodiscard]] std::optional<CertificateMessage> certificate_message() const;

 private:
  // final_consensus.cc: events in.
  void handle(const Finish& message);
  void handle(const Participants& message);
  void handle(const Exponents& message);
  void handle(const Sum& message);
  void handle(const Contribution& message);
  void handle(const ResultChunk& message);
  void handle(const HashSignature& message);
  void handle(const Refusal& message);
  void handle(const CertificateMessage& message);
  void handle(const ChunkRequest& message);
  void handle(const Chunk& message);
  void handle(const Acknowledge& message);
  void handle(const MergeRequest&) {}
  void handle(const MergeAbort&) {}
  template <class Event>
  ConsensusEffects on_event(TimePoint now, Event&& event);
  void advance();

  // agreeing.cc: collecting and confirming.
  [[nodiscard]] bool may_join(const Finish& message) const;
  void join(Epoch epoch, FinishReason reason);
  void enter_epoch(Epoch epoch, std::string why);
  void state_finish();
  void advance_collecting();
  void advance_confirming();
  void close_set(std::vector<NodeId> members);
  void follow(std::string why);
  [[nodiscard]] Duration agree_deadline() const;

  // certifying.cc: from the reduced chunks to the end.
  void advance_reducing();
  void on_checked(const ReplicaChecked& checked);
  void refuse(RefusalReason reason, std::uint32_t chunk, const NodeId& accused);
  void advance_certifying();
  void accept(CertificateMessage held);
  void finish();
  void advance_lingering();
  void take(ReductionEffects effects);
  void take(FetchEffects effects);
  void end_failed(Error error);

  template <class Message>
  void flood(const Message& message, const std::optional<NodeId>& except);
  void send(const NodeId& to, ConsensusMessage message);
  [[nodiscard]] bool over() const;
  [[nodiscard]] bool has_contributed() const;

  ConsensusOptions options_;
  const Signer& signer_;
  const Verifier& verifier_;
  NodeId self_;
  ChunkPlan plan_;

  // What is going on at the moment of an event; empty between events.
  TimePoint now_{};
  NodeId from_;
  ConsensusEffects out_;

  Phase phase_ = Phase::idle;
  Epoch epoch_;
  Role standing_ = Role::participant;
  Role role_ = Role::participant;
  Rule rule_ = Rule::mean;
  FinishReason reason_ = FinishReason::budget;
  std::string why_;
  std::uint64_t samples_ = 0;
  std::uint64_t budget_ = 0;
  std::uint32_t revision_ = 0;
  bool frozen_ = false;
  bool freeze_asked_ = false;
  bool dialled_ = false;

  std::set<NodeId> sessions_;
  std::map<NodeId, TimePoint> away_;  // sessions that went down in this epoch
  std::set<NodeId> gone_;
  Ledger ledger_;
  TimePoint entered_{};     // this epoch
  TimePoint closed_{};      // the set of this epoch
  TimePoint last_heard_{};  // last fresh Finish of this epoch
  TimePoint last_progress_{};

  std::optional<Agreed> agreed_;
  std::optional<Reduction> reduction_;
  ChunkStore store_;
  ChunkFetch fetch_;
  std::optional<Hash> own_hash_;
  std::optional<Certificate> certificate_;
  std::vector<Hash> certified_;  // chunk hashes behind the certificate
  TimePoint finished_at_{};
  std::uint64_t agreed_samples_ = 0;
};

}  // namespace starling::gossip::consensus

namespace starling::gossip {
using consensus::ConsensusEffects;
using consensus::ConsensusOptions;
using consensus::FinalConsensus;
}  // namespace starling::gossip
