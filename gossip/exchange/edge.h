// One edge: the state machine of opening, exchanging, resuming, resetting and closing.
//
// States and events (lines: state; the job of an edge that is running holds back every message, in
// order, until its outcome is there; "void" forgets reference, offer and cached answer):
//
//   closed     open()                     -> opening    generation + 1; make the reference
//              EdgeOpen g > known         -> accepting  take over the reference
//              EdgeOpen g <= known        EdgeClose{known, stale_generation}
//              Resume, EdgeReset          EdgeClose{unknown_edge}
//   opening    reference made             send EdgeOpen
//              EdgeOpenAck, same hash     -> open
//              EdgeOpen that stands       -> accepting  (larger generation; equal: lower id's)
//              EdgeClose g >= own         -> closed
//              session down, time-out     -> closed     void
//   accepting  reference set              -> open       send EdgeOpenAck
//              it failed                  -> closed     EdgeClose
//              session down               -> closed     void
//   open       offer()                    encode; send Offer, which is then pending
//              Offer, none pending        encode and apply; send Answer, keep it     (or Busy)
//              Offer, own one pending     one exchange: apply theirs as the answer   (never Busy)
//              Offer seq - 1              send the kept answer again
//              Offer seq + 1, one pending wait for the answer, which the session could not take
//              Answer to the pending one  apply
//              Busy, hash of the pending  the pending offer is void
//              refused by the session     parked, and sent again in a second (a leave push: void)
//              anything that contradicts  reset
//              session down               -> lost
//              EdgeOpen g > known         -> accepting  (they lost it without a word: a reset)
//              EdgeReset g > known        void; lower id: -> opening (snapshot), else -> resetting
//   resetting  EdgeOpen g >= known        -> accepting
//              session down, time-out     -> closed
//   lost       session up, same process   -> resuming   send Resume
//              time-out                   -> closed     void
//   resuming   EdgeOpen g > known         -> accepting  (the other end gave the edge up meanwhile)
//              EdgeOpen g <= known        EdgeClose{known, stale_generation}
//              Resume, equal              -> open       the pending offer is forgotten, and another
//                                                       one follows (a leave push: sent again)
//              Resume, they one behind    -> open       the same, and send the kept answer
//              Resume, they one ahead     -> open       their answer will come
//              Resume, anything else      reset
//   any        session up, new process    -> closed     void, generation 0
//              EdgeClose g >= known       -> closed     void
//
// An offer that crosses ours is never refused: ours may have been applied already. A reset counts
// at both ends; the fourth within an hour closes the edge for ten minutes. After eight openings
// there is one a minute. A payload that does not decode is an offence as well: the third within an
// hour drops the peer, which is closed as `misbehaved` for a minute the first time and for twice as
// long each time after.
#pragma once

#include "gossip/delta/aggregation.h"
#include "gossip/delta/jobs.h"
#include "gossip/exchange/effects.h"
#include "gossip/exchange/messages.h"
#include "gossip/exchange/norm_guard.h"
#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/ids.h"
#include "node/base/rate.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::gossip {

enum class EdgeState : std::uint8_t {
  closed,
  opening,
  accepting,
  open,
  resetting,
  lost,
  resuming,
};
[[nodiscard]] std::string_view name_of(EdgeState state);

struct EdgeOptions {
  // Blocks of the model: the spot goes round over them.
  std::uint32_t blocks = 1;
  // Bytes of payloads that wait for a running job; more are a fault of the peer. A well-behaved one
  // has an answer, an offer and, where it gave the edge up meanwhile, an opening under way, so
  // Gossip sets three times the largest payload of the model.
  std::size_t inbox_bytes = exchange_limits::kMaxAttachment;
  // Age up to which a replica is near enough to the genesis that an edge opens there for free.
  // Raising it saves 8 bits a parameter an opening; the first exchanges then move more.
  double genesis_age = 100;
  // How long an opening may take, snapshot included. Transport gives up a stalled transfer earlier.
  Duration open_timeout = std::chrono::minutes(5);
  // How long a reference is kept for a session that is gone.
  Duration lost_timeout = std::chrono::seconds(60);
  // How long the other end may take for its half of a resumption.
  Duration resume_timeout = std::chrono::seconds(30);
  // Openings of the peer that are accepted at once, and how long until there is one more. Each
  // costs a reference, and often a snapshot, for a message of a hundred bytes. A process that joins
  // makes two; fewer keep out who restarts a few times in a row.
  std::uint32_t openings_max = 8;
  Duration opening_rest = std::chrono::minutes(1);
  // Resets within reset_window; one more closes the edge for `cooling`.
  std::uint32_t resets_max = 3;
  Duration reset_window = std::chrono::hours(1);
  Duration cooling = std::chrono::minutes(10);
  // What the increments of this node's edges become. `clip` costs honest neighbours a part of what
  // they send whenever they send more than is usual; median and trimmed need three neighbours.
  Aggregator aggregator = Aggregator::mean;
  // Payloads of one peer that do not decode within offence_window; with the last of them it is
  // dropped for drop_min, doubling up to drop_max with every time. A broken machine costs the
  // others that many resets, a liar no more.
  std::uint32_t offences_max = 3;
  Duration offence_window = std::chrono::hours(1);
  Duration drop_min = std::chrono::minutes(1);
  Duration drop_max = std::chrono::hours(1);
  // Floor of the parking time, and its factor on the average answer time (rulings 5).
  Duration park_min = std::chrono::seconds(1);
  double park_factor = 4;
};

// What a peer did that still counts against it. It outlives the edge and every session: what ended
// with one of them would be an amnesty.
struct Conduct {
  explicit Conduct(const EdgeOptions& options);

  [[nodiscard]] bool counts(TimePoint now, const EdgeOptions& options) const;
  // Offences that still count.
  [[nodiscard]] std::uint32_t recent_offences(TimePoint now, const EdgeOptions& options) const;

  TimePoint closed_until{};  // no opening before, either way
  TokenBucket openings;      // of the peer, that may still be accepted
  std::vector<TimePoint> resets;
  std::vector<TimePoint> offences;
  std::uint32_t drops = 0;
};

// This node's own training, as edges state it to others. Owned by the mixer.
struct NodeFigures {
  ReplicaFigures replica;
  double batch = 1;  // samples of a step, on average
  // Norm per square root of samples that is usual on most edges; 0: not known, or not asked for.
  double usual_norm = 0;
  Duration usual_answer{};  // from offer to answer, the median of the edges; 0: not known
  Bytes record;             // own signed member record, sent with openings
};

// What one event of an edge works with.
struct Turn {
  TimePoint now;
  NodeFigures& node;
  ExchangeEffects& out;
};

// What the mixer allows an incoming message.
struct Admission {
  std::optional<CloseReason> refuse_open;  // set: an opening is refused with it
  enum class Answering : std::uint8_t { yes, busy } answering = Answering::yes;
  // Where set, an opening that is accepted takes one: the ration of all strangers together.
  TokenBucket* openings = nullptr;
};

// How an own offer is made.
struct OfferPlan {
  Level level = Level::l2;
  Purpose purpose = Purpose::regular;
};

// The weight of an exchange whose initiator waits `age_steps` for the answer (rulings 6).
[[nodiscard]] Weight weight_for(double age_steps);

// One end of one edge.
//
// Owned by the mixer, one per peer that it ever had to do with, for as long as the peer is
// interesting. Lives on the io thread. Holds this node's truth about the edge; what the peer holds
// is compared in every message. At most one job is out; memory is one pending offer and one cached
// answer as bytes, and eight waiting messages.
class Edge {
 public:
  Edge(NodeId self, NodeId peer, const EdgeOptions& options);

  // Sessions.
  void session_up(Turn& turn, Instance instance);
  void session_down(Turn& turn);

  // Proposes the edge. Rule: only when may_open().
  void open(Turn& turn);
  // Ends the edge and tells the peer where a session allows it.
  void close(Turn& turn, CloseReason reason);
  // Makes an own offer. Rule: only when may_offer().
  void offer(Turn& turn, OfferPlan plan);

  void receive(Turn& turn, ExchangeMessage message, const Admission& admission);
  void job_done(Turn& turn, CodecOutcome outcome);
  // The session did not take this message of ours: the peer had no room for its attachment.
  void refused(Turn& turn, const ExchangeMessage& message);
  void tick(Turn& turn);
  [[nodiscard]] TimePoint next_deadline() const;

  // The level of the next own payload; a change starts the guard anew (rulings 10).
  void set_level(Level level);
  void forget_norms() { guard_.clear(); }
  [[nodiscard]] double usual_norm() const { return guard_.usual(); }

  [[nodiscard]] EdgeState state() const { return state_; }
  [[nodiscard]] bool may_open(TimePoint now) const;
  [[nodiscard]] bool may_offer() const;
  [[nodiscard]] bool has_session() const { return session_; }
  [[nodiscard]] bool cooling(TimePoint now) const { return now < conduct_.closed_until; }
  [[nodiscard]] const Conduct& conduct() const { return conduct_; }
  // What the peer did on an edge before this one.
  void recall(Conduct conduct) { conduct_ = std::move(conduct); }
  // Offences that still count.
  [[nodiscard]] std::uint32_t offences(TimePoint now) const {
    return conduct_.recent_offences(now, options_);
  }
  // How often the peer was dropped.
  [[nodiscard]] std::uint32_t drops() const { return conduct_.drops; }
  [[nodiscard]] bool job_running() const { return running_.has_value(); }
  // An AnswerJob of this edge is under way.
  [[nodiscard]] bool answering() const;
  // An own offer is being encoded or out.
  [[nodiscard]] bool offering() const;
  [[nodiscard]] bool parked() const { return out_ && out_->parked; }
  // The peer has left an offer unanswered for as long as a reference is kept for a lost session.
  [[nodiscard]] bool silent(TimePoint now) const;
  // Whether an own offer keeps the node from making another one.
  [[nodiscard]] bool blocks_node() const;

  [[nodiscard]] NodeId peer() const { return peer_; }
  [[nodiscard]] EdgeEnds ends() const { return EdgeEnds::of(self_, peer_); }
  [[nodiscard]] Generation generation() const { return generation_; }
  [[nodiscard]] Seq seq() const { return seq_; }
  [[nodiscard]] const Hash& chain() const { return chain_; }
  [[nodiscard]] Level level() const { return level_; }
  // Exchanges since the edge was opened first (not since a reset), for its lease.
  [[nodiscard]] std::uint64_t lease_exchanges() const { return lease_exchanges_; }
  // The age that the peer stated last, while the edge is not closed.
  [[nodiscard]] std::optional<double> peer_age() const { return peer_age_; }
  // Average time and own steps from an own offer to its answer.
  [[nodiscard]] Duration answer_time() const { return answer_time_; }
  [[nodiscard]] double answer_steps() const { return answer_steps_; }
  [[nodiscard]] std::optional<TimePoint> last_exchange() const { return last_exchange_; }

 private:
  enum class JobKind : std::uint8_t { reference, install, offer, answer, apply, drop };
  struct Running {
    JobKind kind = JobKind::drop;
    bool is_void = false;  // the edge has moved on: the outcome says nothing any more
  };
  struct Waiting {
    ExchangeMessage message;
    Admission admission;
  };
  struct Out {
    Offer offer;
    TimePoint sent_at;
    std::uint64_t sent_step = 0;
    TimePoint park_at;  // until then it blocks the node
    bool parked = false;
    TimePoint send_again_at = kNever;  // the peer had no room for it
  };
  // An exchange that is being applied.
  struct Applying {
    Role role = Role::responder;
    Weight weight;
    ReplicaFigures theirs;
    Purpose purpose = Purpose::regular;
    double samples = 1;  // at both ends since the last exchange
    std::size_t bytes_received = 0;
  };

  [[nodiscard]] bool is_lower() const { return self_ < peer_; }
  [[nodiscard]] Side side() const { return is_lower() ? Side::lower : Side::higher; }
  [[nodiscard]] std::uint64_t chain8() const { return first_u64(chain_); }

  void send(Turn& turn, ExchangeMessage message) const;
  void start_job(Turn& turn, JobKind kind, CodecJob job);
  void emit_job(Turn& turn, JobKind kind, CodecJob job);
  void void_edge(Turn& turn);
  void enter(EdgeState state, TimePoint deadline);
  void drain_inbox(Turn& turn);
  [[nodiscard]] bool has_room_for(const ExchangeMessage& message) const;

  // Opening, closing, resetting, resuming: edge.cc.
  void handle(Turn& turn, EdgeOpen& message, const Admission& admission);
  void handle(Turn& turn, EdgeOpenAck& message, const Admission& admission);
  void handle(Turn& turn, Resume& message, const Admission& admission);
  void handle(Turn& turn, EdgeReset& message, const Admission& admission);
  void handle(Turn& turn, EdgeClose& message, const Admission& admission);
  void propose(Turn& turn, OpenMode mode);
  void accept(Turn& turn, EdgeOpen& message);
  void become_open(Turn& turn, const Hash& reference);
  void became_reference(Turn& turn, Result<CodecDone> result);
  void became_installed(Turn& turn, Result<CodecDone> result);
  void close_with(Turn& turn, CloseReason reason);
  void reset(Turn& turn, ResetReason reason);
  void start_over(Turn& turn);
  [[nodiscard]] bool count_reset(Turn& turn);
  // Notes that the peer opens the edge. False if that is once too often: the edge is closed then.
  [[nodiscard]] bool count_opening(Turn& turn, Generation generation, TokenBucket* strangers);
  // Notes an offence and tells of it. False if it was one too many.
  [[nodiscard]] bool count_offence(Turn& turn, const Error& error);
  void send_resume(Turn& turn);
  [[nodiscard]] bool stands_against_ours(const EdgeOpen& message) const;

  // Exchanging: edge_exchange.cc.
  void handle(Turn& turn, Offer& message, const Admission& admission);
  void handle(Turn& turn, Answer& message, const Admission& admission);
  void handle(Turn& turn, Busy& message, const Admission& admission);
  void answer(Turn& turn, Offer& offer);
  void cross(Turn& turn, Offer& offer);
  void became_offer(Turn& turn, Result<CodecDone> result);
  void became_exchange(Turn& turn, JobKind kind, Result<CodecDone> result);
  void finish_exchange(Turn& turn, JobKind kind, ExchangeDone done);
  void exchange_failed(Turn& turn, const Error& error);
  void send_pending(Turn& turn);
  void void_offer(Turn& turn, Duration retry_after);
  void keep_refused(Turn& turn, Duration retry);
  void park(Turn& turn);
  void learn_answer_time(const Turn& turn);
  // How long an answer may take that takes `usual`.
  [[nodiscard]] Duration patience(Duration usual) const;
  // Until when an offer that is sent now may block the node.
  [[nodiscard]] TimePoint park_at(const Turn& turn) const;
  void send_answer(Turn& turn);
  [[nodiscard]] ExchangeTerms terms(const Turn& turn, const Applying& applying) const;
  [[nodiscard]] float norm_limit(const Turn& turn, const Applying& applying) const;
  [[nodiscard]] double samples_since(const Turn& turn, const ReplicaFigures& theirs) const;

  NodeId self_;
  NodeId peer_;
  EdgeOptions options_;

  EdgeState state_ = EdgeState::closed;
  bool session_ = false;
  std::optional<Instance> instance_;
  TimePoint deadline_ = kNever;          // of the present state
  TimePoint resend_answer_at_ = kNever;  // the peer had no room for it
  Conduct conduct_;

  Generation generation_;  // the largest that was used or seen
  OpenMode mode_ = OpenMode::genesis;
  bool has_reference_ = false;
  Hash reference_;
  Seq seq_;
  Hash chain_;
  std::optional<Out> out_;
  std::optional<Answer> last_answer_;  // of seq_ - 1
  std::optional<OfferPlan> plan_;
  std::optional<Applying> applying_;
  std::uint64_t attempt_ = 0;
  bool resume_sent_ = false;
  bool push_taken_ = false;  // the peer's one unclipped leave push
  std::uint32_t spot_block_ = 0;

  std::optional<Running> running_;
  std::optional<std::pair<JobKind, CodecJob>> next_job_;
  std::deque<Waiting> inbox_;
  std::optional<Waiting> early_offer_;  // came before the answer that the session is to send again

  Level level_ = Level::l2;
  NormGuard guard_;
  std::uint64_t lease_exchanges_ = 0;
  std::uint64_t own_samples_at_exchange_ = 0;
  std::optional<std::uint64_t> their_samples_at_exchange_;
  std::optional<double> peer_age_;
  Duration answer_time_{};
  double answer_steps_ = 0;
  bool first_wait_forgiven_ = false;
  std::optional<TimePoint> last_exchange_;
};

}  // namespace starling::gossip
