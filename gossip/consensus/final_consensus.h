// FinalConsensus: how the replicas of a swarm become bit-identical at the end (design section 8).
//
//   phase       event                                  next        effect
//   ---------   ------------------------------------   ---------   ---------------------------
//   idle        command, or P >= budget                collecting  Finish(1) to all sessions
//   idle        the same, restarted, and it has met    idle        counts when it meets one, or
//               nobody whom it knew in this run                    has waited for linger
//   idle        Finish(1) heard, may join              collecting  own Finish(1)
//   idle        Finish(E) heard, late or unfit         following   Finish(E) as a follower
//   idle        with an admin: a Finish by command     idle        none
//               without the order
//   idle        with an admin: a Finish(1) by budget,  idle        kept and passed on; it counts
//               which is not spent here                            when it is spent here, too
//   collecting  all named sessions answered (but those confirming  Participants(E)
//               that have nothing to say), settled
//   collecting  the participants are not connected     collecting  dial along a cycle of them
//   collecting  deadline 5 s x 2^(E-1), at most 60 s   confirming  with the largest part heard
//   confirming  all signed the same set and graph      freezing    freeze (once a run)
//   confirming  they differ, or the deadline passed    collecting  E+1
//   confirming  all others signed a set without us     following
//   freezing    on_frozen                              reducing    jobs and sums, by chunks
//   reducing    every chunk of the result is here      checking    CheckJob
//   checking    close to the own replica               certifying  HashSignature(E, h)
//   checking    too far from it                        collecting  Refusal; E+1, the median
//   any         half of those in it refused the median failed      nobody's model is certified
//   certifying  all signed the same h                  fetching    certificate
//   confirming  a neighbour's session is gone for the  collecting  E+1; the frozen contribution
//   .. to ..    grace, a member is gone or excluded,               stays as it is
//   certifying  a refusal, no progress for stall_limit
//   certifying  the session or a member is gone        certifying  for linger: who holds all
//                                                                  signatures shows them so long
//   reducing    a peer saw nothing of a bulk message   reducing    it is sent again in a second
//   any         a neighbour has its model now          the same    every statement, to it
//   freezing    nothing said here for stall_limit,     the same    the own Finish, again
//   .. to ..    while somebody follows
//   certifying
//   any         Finish(E' > E); while certifying one   collecting  Finish(E')
//               of a participant
//   any         a valid certificate                    fetching    ChunkRequests where needed
//   idle        one of fewer members than train on     idle        kept, until they are fewer; the
//                                                                  same in every later phase
//   fetching    every chunk has its certified hash     lingering   finished
//   lingering   certificate and model are on the disk  lingering   Acknowledge
//   fetching    nobody has the model, nothing came     fetching    another certificate is taken,
//               for stall_limit                                    the own one shown to nobody
//   fetching    nothing came for three minutes         fetching    a certificate that this one
//                                                                  outranks is taken
//   following   in epoch 1 all are followers           collecting  all take part (a short run) but
//                                                                  who was left out
//   following   a merge whose set others closed        failed      failed: nobody shows its result
//   following   nothing came for three minutes         collecting  E+1 where already frozen, with
//                                                                  whoever is still there
//   following,  the same, or two minutes where a       idle        failed without a replica, or
//   fetching    neighbour begins anew, or another one              frozen and fetching; a command
//               goes on in a later epoch                           that was given counts now
//   lingering   all acknowledged, or the time is up    done        may_exit
//   any         E would exceed max_epoch               failed      failed
//
// Reading of rulings 35: a node may take part in E+1 if it stated in an earlier epoch that it takes
// part (its Finish counts like its Participants), so a node that was heard by some and not by
// others in E costs one epoch and not its contribution; a first statement in E >= 2 makes a
// follower. Whoever has frozen has stated so: it follows in an epoch that goes on without it, and
// takes part in the next. For who gave a dead run up it is not too late: it takes part with those
// that had frozen, and states so in epoch 1 first.
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
#include "node/base/rate.h"
#include "node/base/signing.h"

#include <algorithm>
#include <cstdint>
#include <deque>
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
  // Weight of the own contribution, 1 to most_weight.
  std::uint32_t weight = 1;
  // The largest weight with which a participant counts, up to kMaxWeight; the same at every
  // participant. Who states more is left out: a weight is its signer's word alone, and with 2^20
  // the mean would be the signer's replica.
  std::uint32_t most_weight = 1;
  // Without a replica a node follows to the end, whoever else takes part.
  bool contributes = true;
  // How contributions become one, from the first epoch on; the same at every participant. Median
  // and trimmed mean bring every contribution to one node for each chunk, and hold for up to
  // kMaxMedianParticipants: above, the first epoch takes the mean.
  Rule rule = Rule::mean;
  // Whose order alone ends the run by command (`finish.by = admin`), and what such an order signs;
  // without an admin any member's word ends it. With one, a Finish by budget counts only where the
  // budget is as good as spent, as far as is known here. A merge needs no order.
  std::optional<NodeId> admin = std::nullopt;
  Statement order{};
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
  // `finish.linger`: how long to go on serving after the end when somebody did not acknowledge, and
  // how long who has signed the hash waits for somebody who serves. Raising it covers longer
  // outages; a death in that moment costs as much.
  Duration linger = std::chrono::seconds(30);
  // When a certificate that its receiver had no room for is shown again.
  Duration show_again = std::chrono::seconds(5);
  // When a bulk message that came to nothing is sent again. Raising it stretches the
  // pause that a renewed session makes; lowering it sends more in vain to a peer without memory,
  // up to 256 KiB of each message before the refusal is here.
  Duration send_again = std::chrono::seconds(1);
  // Chunks that this node works on at a time; memory is about 2 MiB each and 1 MiB a child, for
  // all children together no more than 64 MiB or what one chunk takes.
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

// What membership says of another member.
enum class Presence : std::uint8_t {
  trains,     // has a model of this run and trains it
  present,    // has none to lose
  gone,       // dead or left: nobody waits for its acknowledgement
  forgotten,  // no longer known at all
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
// A certificate of other participants over another hash, and this node goes its own way: it holds
// one itself (rulings 36: both stay), or so many members train on.
struct NotTaken {
  Certificate certificate;
  std::size_t others = 0;  // members, this one included, that train on; 0: it has its own
};
// The run is to end, and this node has met none of those who had a part in it.
struct Awaiting {
  std::size_t members = 0;  // that it knew, any of whom will do
  Duration longest{0};
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
  // The same one is told once, however often it is shown.
  std::optional<NotTaken> not_taken;
  std::optional<Awaiting> awaiting;
  std::optional<Finished> finished;
  std::optional<Merged> merged;
  // The run is over without a result. A merge: aborted, training goes on untouched.
  std::optional<Error> failed;
  // Everybody has the result, or had the time to get it: the process may end.
  bool may_exit = false;

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

  // Others who had a part in this run, by what this node saved before it was restarted: they may be
  // ending it. Before it ends the run by itself it waits a while for one of them.
  void expect(TimePoint now, std::set<NodeId> members);
  // A person wants the run to end now, with the admin's order where there has to be one; without it
  // nothing happens. Who has no replica only follows, and needs none.
  ConsensusEffects on_finish_command(TimePoint now, std::optional<Signature> order = std::nullopt);
  // Another admin's orders count from now on; only where there is an admin.
  void set_admin(const NodeId& admin);
  // How much of the budget is spent, in samples or in time. A budget of 0 never ends a run.
  ConsensusEffects on_progress(TimePoint now, std::uint64_t done, std::uint64_t budget);
  // P, which the next statement names.
  void on_samples(std::uint64_t samples) { samples_ = std::max(samples_, samples); }
  // Newcomers and lagging nodes are followers (rulings 7, 35). Counts until this node signed.
  ConsensusEffects on_standing(TimePoint now, Role role);
  ConsensusEffects on_session_up(TimePoint now, const NodeId& peer);
  ConsensusEffects on_session_down(TimePoint now, const NodeId& peer);
  // Of every member that membership knows at the beginning, and of every change.
  ConsensusEffects on_member(TimePoint now, const NodeId& member, Presence presence);
  ConsensusEffects on_message(TimePoint now, const NodeId& from, const ConsensusMessage& message);
  // `peer` saw none of a certificate that was sent to it: it had no room, or no model yet. It is
  // shown again when the peer asks, and from time to time as long as it does not have it.
  ConsensusEffects on_certificate_refused(TimePoint now, const NodeId& peer);
  // `peer` saw none of another message that was sent to it, of which all but the attachment is
  // given: it had no room for it, or its session was renewed meanwhile. It is sent again a little
  // later, as long as the epoch lasts and it matters; so is a chunk of the certified model.
  ConsensusEffects on_refused(TimePoint now, const NodeId& peer, const ConsensusMessage& message);
  ConsensusEffects on_frozen(TimePoint now);
  ConsensusEffects on_job_done(TimePoint now, const JobOutcome& outcome);
  // Certificate and model are where a power cut cannot take them: the others, who wait for the word
  // of it, may go. Whoever loses its power before finds somebody who has both when it is back.
  ConsensusEffects on_stored(TimePoint now);
  ConsensusEffects on_tick(TimePoint now);
  // Ends a run that has no certificate yet (leaving, or a merge that a Finish overtakes).
  ConsensusEffects stop(TimePoint now, std::string reason);
  // Starts as the holder of a certificate whose model the result buffer already holds, to serve it
  // (rulings 40). Only on an idle object. `chunks` must hash to the certificate's hash.
  Result<void> restore(const CertificateMessage& held);

  // When to call on_tick() at the latest.
  [[nodiscard]] TimePoint next_deadline() const;
  [[nodiscard]] ConsensusState state() const;
  [[nodiscard]] bool idle() const { return phase_ == Phase::idle; }
  [[nodiscard]] const std::optional<Certificate>& certificate() const { return certificate_; }
  // The certificate with its chunk hashes, to be stored beside the model for restore().
  [[nodiscard]] std::optional<CertificateMessage> certificate_message() const;

 private:
  enum class Missing : std::uint8_t { anybody, members };  // whose silence leaves a set open
  struct HeldBack {
    CertificateMessage message;
    NodeId from;
  };
  struct Returned {
    NodeId peer;
    TimePoint since;
    ConsensusMessage message;  // without the values
  };

  // final_consensus.cc: events in.
  void handle(const Participants& message);
  void handle(const Exponents& message);
  void handle(const Sum& message);
  void handle(const Contribution& message);
  void handle(const ResultChunk& message);
  void handle(const HashSignature& message);
  void handle(const Refusal& message);
  void handle(const Equivocation& message);
  void handle(const CertificateMessage& message);
  void handle(const ChunkRequest& message);
  void handle(const Chunk& message);
  void handle(const Acknowledge& message);
  void handle(const MergeRequest&) {}
  void handle(const MergeAbort&) {}
  template <class Event>
  ConsensusEffects on_event(TimePoint now, Event&& event);
  template <class Message>
  bool admit(const Message& message);
  void advance();
  void flood(const ConsensusMessage& message, const std::optional<NodeId>& except);
  void send(const NodeId& to, ConsensusMessage message);
  [[nodiscard]] bool over() const;
  [[nodiscard]] bool under_way() const { return phase_ != Phase::idle && !over(); }

  // agreeing.cc: collecting and confirming.
  void handle(const Finish& message);
  bool follow_into_epoch(const Finish& message);
  void tell_everything(const NodeId& peer);
  [[nodiscard]] bool is_of_this_run(const Hash& fingerprint);
  [[nodiscard]] bool is_ordered(const std::optional<Signature>& order) const;
  [[nodiscard]] bool may_end(const Finish& message) const;
  [[nodiscard]] bool is_spent() const;
  void keep_order(const std::optional<Signature>& order);
  [[nodiscard]] bool counts(FinishReason reason) const;
  [[nodiscard]] bool may_join(const Finish& message) const;
  [[nodiscard]] bool is_expecting() const;
  void begin(FinishReason reason);
  void join(Epoch epoch, FinishReason reason, Role role);
  [[nodiscard]] bool nobody_takes_part() const;
  void reconsider_role();
  void enter_epoch(Epoch epoch, std::string why);
  void state_finish();
  void say(Finish finish);
  void restate();
  [[nodiscard]] TimePoint say_again_at() const;
  void say_again();
  void follow(std::string why);
  void leave_out(std::string why);
  [[nodiscard]] bool is_member(const NodeId& id) const;
  [[nodiscard]] bool has_ended(const NodeId& id) const;
  [[nodiscard]] bool says_nothing(const NodeId& id) const;
  [[nodiscard]] bool is_closed(Missing counted) const;
  [[nodiscard]] bool misses_anybody() const;
  [[nodiscard]] std::vector<const Finish*> candidates() const;
  [[nodiscard]] Duration agree_deadline() const;
  [[nodiscard]] TimePoint collecting_deadline() const;
  void advance_collecting();
  void close_set(Agreed agreed);
  void advance_confirming();
  [[nodiscard]] TimePoint patience() const;
  void check_members();

  // certifying.cc: from the reduced chunks to the certificate, and the end.
  void take(ReductionEffects effects);
  void take(FetchEffects effects);
  void advance_reducing();
  [[nodiscard]] Certificate draft() const;
  void on_checked(const ReplicaChecked& checked);
  void refuse(RefusalReason reason, std::uint32_t chunk, const NodeId& accused);
  void apply(const Refusal& refusal);
  bool end_where_median_is_refused();
  void advance_certifying();
  void show_certificate(const NodeId& peer);
  void show_refused();
  void keep_returned(const NodeId& peer, const ConsensusMessage& message);
  void send_returned();
  void forget_returned(const NodeId& peer);
  void forget_returned(const NodeId& peer, std::uint32_t chunk);
  void load(const NodeId& to, std::uint32_t chunk, const Hash& hash);
  void acknowledge();
  void finish();
  [[nodiscard]] bool is_awaited(const NodeId& id) const;
  [[nodiscard]] bool is_fetched_from() const;
  [[nodiscard]] bool everybody_acknowledged() const;
  void advance_lingering();
  [[nodiscard]] TimePoint linger_deadline() const;
  void end_failed(Error error);

  // following.cc: the end that others make, and a run that nobody brings to its end.
  void accept(const CertificateMessage& message);
  [[nodiscard]] std::size_t count_signers(const Certificate& certificate) const;
  [[nodiscard]] std::size_t count_others(const Certificate& certificate) const;
  // Whether this peer may have us verify so many signatures; if so, they count as verified.
  [[nodiscard]] bool may_verify(std::size_t signatures);
  [[nodiscard]] bool is_outnumbered(const Certificate& certificate) const;
  void tell_not_taken(const Certificate& certificate, std::size_t others);
  [[nodiscard]] bool is_held_back(const Hash& hash) const;
  void hold_back(const CertificateMessage& message);
  void keep(HeldBack shown);
  void reconsider_held_back();
  void take_held_back();
  void advance_fetching();
  [[nodiscard]] bool is_stranded() const;
  void advance_following();
  [[nodiscard]] bool trains_on() const;
  [[nodiscard]] bool may_end_without() const;
  void start_over();
  [[nodiscard]] bool is_deserted() const;
  [[nodiscard]] bool begins_anew(const Finish& message) const;
  [[nodiscard]] Duration following_limit() const;

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
  std::uint64_t done_ = 0;  // of the budget
  std::uint64_t budget_ = 0;
  std::uint32_t revision_ = 0;
  bool frozen_ = false;
  bool freeze_asked_ = false;
  bool left_out_ = false;      // in this epoch it is a follower whatever its standing is
  bool was_left_out_ = false;  // in this epoch, and tried again since
  bool withdrawn_ = false;     // the own replica is lost or unfit: follower in this run
  bool ordered_ = false;  // a command was given here: it outlasts one run that comes to nothing
  std::optional<Signature> order_;  // the admin's, once seen: it is good for the whole run
  bool dialled_ = false;            // in this epoch
  bool considered_ = false;         // nothing changed since the set was last looked at
  std::set<NodeId> expected_;
  TimePoint expected_until_{};
  std::optional<FinishReason> wanted_;  // why it ends as soon as it expects nobody any more

  std::set<NodeId> sessions_;
  std::map<NodeId, TimePoint> away_;  // sessions that went down in this epoch
  std::map<NodeId, bool> members_;    // known to membership: whether they train
  // Dead or left, says membership; whom it forgot meanwhile as long as this run is under way.
  std::set<NodeId> gone_;
  std::set<NodeId> lost_;         // of them those of whom it said so in this epoch
  std::set<NodeId> parted_;       // members whose sessions went down since they were last up
  std::set<NodeId> foreign_;      // sessions whose peer ends a run of other settings
  std::set<NodeId> took_median_;  // participants of this run's epochs under the median
  Ledger ledger_;
  TimePoint entered_{};     // this epoch
  TimePoint closed_{};      // the set of this epoch
  TimePoint last_heard_{};  // the last fresh Finish of this epoch
  TimePoint said_{};        // the own one
  std::optional<TimePoint> started_over_;
  TimePoint last_progress_{};  // anything new at all

  std::optional<Agreed> agreed_;
  std::optional<Reduction> reduction_;
  std::uint64_t progress_seen_ = 0;
  ChunkStore store_;
  ChunkFetch fetch_;
  std::deque<NodeId> loads_;  // for whom chunks are being read, in the order of the jobs
  std::optional<Hash> own_hash_;
  Hash claim_;
  std::optional<Certificate> certificate_;
  std::vector<Hash> certified_;             // chunk hashes behind the certificate
  NodeId shown_by_;                         // who showed it, where it was not made here
  std::map<NodeId, TokenBucket> verified_;  // signatures, by who showed certificates lately
  // A certificate that more members than signed it outlast, or that the one in work outranks.
  std::optional<HeldBack> held_back_;
  std::optional<Hash> told_not_taken_;   // the latest
  std::set<NodeId> shown_;               // sessions over which it was shown
  std::map<NodeId, TimePoint> refused_;  // of them those that could not take it then
  std::deque<Returned> returned_;        // bulk messages that came to nothing, oldest first
  TimePoint finished_at_{};
  bool stored_ = false;
  std::optional<TimePoint> settled_at_;  // nobody is waited for any more
};

}  // namespace starling::gossip::consensus

namespace starling::gossip {
using consensus::ConsensusEffects;
using consensus::ConsensusOptions;
using consensus::FinalConsensus;
}  // namespace starling::gossip
