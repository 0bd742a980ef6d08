// Who is in the swarm: the state machine behind members, neighbours and progress.
//
// What comes in: sessions that open and end, messages, outcomes of dials, ticks. What comes out:
// Effects, which the shell carries out. No socket, clock, thread or global randomness.
#pragma once

#include "gossip/membership/dial_plan.h"
#include "gossip/membership/fact_spreader.h"
#include "gossip/membership/failure_detector.h"
#include "gossip/membership/member_record.h"
#include "gossip/membership/member_table.h"
#include "gossip/membership/messages.h"
#include "gossip/membership/network.h"
#include "gossip/membership/progress.h"
#include "gossip/membership/topology.h"
#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/random.h"
#include "node/base/rate.h"
#include "node/base/signing.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::gossip {

// Who this node is and which incarnations it may use.
struct SelfDescription {
  std::string name;
  std::vector<std::string> addresses;
  Instance instance;
  std::uint32_t roles = role::kTrainer | role::kFinisher | role::kSponsor;
  std::uint32_t capabilities = capability::kDialable;
  Hash data_set;
  // Incarnations from `first` up to, not including, `ceiling` may be used. The caller has written
  // `ceiling` to disk before it makes the Membership; the next start begins there (rulings 28).
  Incarnation first{1};
  Incarnation ceiling{1001};
};

struct MembershipOptions {
  DetectorOptions detector;
  TopologyOptions topology;
  ProgressOptions progress;
  SpreadOptions spread;
  DialPlanOptions dial;
  TableOptions table;
  // Views are compared with two members this often. Raising it delays the repair of what a push
  // missed; lowering it costs a heartbeat a time, and 4 KiB where they differ.
  Duration digest_interval = std::chrono::seconds(30);
  // A session without use for this long (no neighbour on either side, nothing but membership went
  // over it) is closed, once both sides say so. Lowering it saves the heartbeats of a session that
  // topology gave up, and costs a handshake where topology changes its mind.
  Duration unneeded = std::chrono::seconds(30);
  // A session whose peer is no member for this long, because it never sent its record or renews it
  // no more, is closed. At least the time that a record takes over a bad line.
  Duration nameless = std::chrono::seconds(60);
  // Anybody may be a member (open mode): neighbours are taken from many networks, see
  // Topology::neighbours_among_strangers and guests().
  bool strangers = false;
  // Without any session for this long the node is isolated.
  Duration isolation = std::chrono::seconds(2);
  // A quorum of others is believed only after this long without a refutation, unless this node
  // has evidence of its own.
  Duration belief_delay = std::chrono::milliseconds(700);
  // A neighbour that cannot be dialled, has no session with this node and signs nothing new for
  // this long is asked for among the others, and accused if none of three vouches for it; doubled
  // each time, up to ten minutes. At least three intervals of progress reports. The same for
  // members that cannot be dialled where this node cannot either and nobody else is left.
  Duration missing = std::chrono::seconds(20);
  // A member that this node itself cannot reach and that refutes nothing for this long counts as
  // dead here even without a quorum (the other witnesses may be dead as well).
  Duration abandon = std::chrono::seconds(30);
};

// With what a membership starts. `signer` and `verifier` must outlive it.
struct MembershipParts {
  SwarmId swarm;
  SelfDescription self;
  MembershipOptions options;
  const Signer& signer;
  const Verifier& verifier;
};

// What happened to a member, and how it became known.
enum class Cause : std::uint8_t {
  own_word,       // its own record says so
  new_process,    // its own record has another instance: it restarted, edges with it are void
  own_evidence,   // this node got no answer
  accused,        // another member says so (`noticed_by`)
  quorum,         // enough members say so (`noticed_by` is the first of them)
  unreachable,    // this node cannot reach it and it refuted nothing for a long time
  refuted,        // it answered a suspicion with a higher incarnation
  session_lives,  // accused, but a direct session answers
  own_silence,    // this node had accused it while it heard nobody at all
  expired,        // its record was not refreshed within its time to live
  evicted,        // the table was full
};

struct MemberChange {
  NodeId id;
  std::optional<MemberState> before;  // nothing: was unknown
  std::optional<MemberState> after;   // nothing: no longer known
  Cause cause = Cause::own_word;
  NodeId noticed_by;                   // the accuser; the member itself where it spoke itself
  std::optional<Evidence> evidence;    // what the accuser met
  std::optional<Duration> silent_for;  // since this node last heard from it on a session
};

// Other things that the rest of the node reacts to.
enum class Notice : std::uint8_t {
  isolated,            // no session is left: bootstrap starts again
  connected,           // ends `isolated`
  neighbours_changed,  // ask neighbours() again
  accused_here,        // this node was accused and refuted
  clone_seen,          // another process uses this node's identity
  incarnations_spent,  // a refutation waits for on_incarnations_persisted()
};

// A peer broke a rule: the shell counts it and may end the session.
struct Offence {
  NodeId peer;
  Error error;
};

struct MembershipOutgoing {
  NodeId to;
  MembershipMessage message;
};

struct MembershipEffects {
  std::vector<MembershipOutgoing> send;
  std::vector<MemberChange> changes;
  std::vector<Notice> notices;
  // One dial each: the shell reports on_session_up, on_dial_refused or on_dial_failed.
  std::vector<WantedSession> wanted_sessions;
  std::vector<Offence> offences;
  // Close the sessions with these: nothing came over them for so long that a new one is needed.
  // TCP itself doubles its waits, and would be silent for as long again when the line is back.
  std::vector<NodeId> given_up;
  // End the sessions with these with a goodbye: neither side needs them.
  std::vector<NodeId> unneeded;
  // A member's word is not believed in full: P, and with it the schedule, lags behind.
  std::optional<CountedShort> counted_short;
  // Write this ceiling to disk, then call on_incarnations_persisted with it.
  std::optional<Incarnation> persist_incarnation;
};

// What another room's message says about the use of its session.
enum class Traffic : std::uint8_t { use, upkeep };

// How a session ended, as transport knows it.
enum class SessionEnd : std::uint8_t { bye, reset, timed_out, local };

// A member as people and the other rooms see it.
struct MemberView {
  MemberRecord record;
  MemberState state = MemberState::joining;
  std::optional<Duration> round_trip;  // where there is a session
  std::uint64_t samples = 0;
};

// The view of one node: members, their states, its neighbours, P.
//
// Owned by the gossip driver; one per process, from start to exit; io thread only. It holds this
// node's belief, which other nodes need not share at any moment. Cost per event is O(sessions) plus
// O(log n); at most 16,384 members of about 1 KiB.
//
// State of a member m in this view (a row wins over those below it):
//
// | m's record | accusations of m's incarnation     | session with m | state             |
// |------------|------------------------------------|----------------|-------------------|
// | left       | any                                | any            | left              |
// | any        | any                                | answering      | record's state    |
// | any        | quorum of dead, believed           | silent or none | dead              |
// | any        | own evidence, unrefuted for 30 s   | silent or none | dead              |
// | any        | at least one                       | silent or none | suspect           |
// | any        | none                               | any            | record's state    |
//
// | event                     | own reaction                                                     |
// |---------------------------|------------------------------------------------------------------|
// | session up                | heartbeats, digest both ways                                     |
// | the first word of anybody | what it said of others since the last one is void                |
// | session ends without bye  | dial again at once, not twice a second: refused -> `dead`        |
// |                           | signed; else -> `suspect`                                        |
// | heartbeat unanswered      | three others probe; no success -> `suspect`, later `dead` signed |
// | the same, also accused    | `suspect` at once: another one has asked already                 |
// | a dial for a session fails | three others probe; made to answer a question, it only answers   |
// | a probe for another       | heartbeat over our session, or a dial that makes one             |
// | dead, here or in the view | a silent session is closed, and the member dialled like any other |
// | no use of a session       | said with heartbeats; closed once both sides say it              |
// | no record of its peer     | closed after a minute, unless held                               |
// | undialable m is silent    | if its neighbour (or nobody can be one), and without session:    |
// |                           | three others probe                                               |
// | first suspect about m     | if witness of m on cycle 0 and without session: dial or probe m  |
// | accused, whoever says it  | next incarnation, record pushed to all sessions                  |
// | our record, not by us     | outbid, ever more rarely; a clone if signed since we began       |
// | higher incarnation of m   | accusations of the old one are forgotten                         |
class Membership {
 public:
  // Sends nothing before the first session.
  Membership(TimePoint now, MembershipParts parts, Rng rng);

  // A session with `peer` carries messages from now on. At most one per peer: when transport
  // replaces one, it reports the end of the old one first, or only this again. `host` is the
  // address of the other end as this machine sees it; what a record says may be invented.
  MembershipEffects on_session_up(TimePoint now, const NodeId& peer, std::string_view host = {});
  MembershipEffects on_session_down(TimePoint now, const NodeId& peer, SessionEnd end);
  MembershipEffects on_message(TimePoint now, const NodeId& from, const MembershipMessage& message);
  // A message for another room came from `from`: it lives, and its session is of use unless such
  // messages come on every session from time to time.
  MembershipEffects on_heard(TimePoint now, const NodeId& from, Traffic traffic);
  // Call at next_deadline(); calling early is harmless, calling late is noticed.
  MembershipEffects on_tick(TimePoint now);
  // The machine was suspended for so long, of which `now` knows nothing: what this node holds is
  // older by that, and who expired meanwhile is forgotten before anybody is told of them.
  MembershipEffects on_slept(TimePoint now, Duration slept);
  [[nodiscard]] TimePoint next_deadline() const;

  // While held every session is needed: something runs over those that are there.
  void hold_sessions(bool held) { held_ = held; }
  // Another room has a use for the session with `peer`, if there is one, though nothing came.
  void use_session(TimePoint now, const NodeId& peer) {
    if (const auto at = sessions_.find(peer); at != sessions_.end()) at->second.used = now;
  }

  // Outcomes of WantedSession. Refused: the machine answered that nobody listens there. Failed:
  // anything else, timed out or wrong identity.
  MembershipEffects on_dial_refused(TimePoint now, const NodeId& peer);
  MembershipEffects on_dial_failed(TimePoint now, const NodeId& peer);

  MembershipEffects on_incarnations_persisted(TimePoint now, Incarnation ceiling);

  // Own record: each makes a new incarnation and spreads it.
  MembershipEffects set_state(TimePoint now, RecordState state);
  // Errors:  bad_argument if there are too many or too long ones; nothing changes then.
  Result<MembershipEffects> set_addresses(TimePoint now, std::vector<std::string> addresses,
                                          std::uint32_t capabilities);
  // The fingerprint of what this node trains: members that train something else are no neighbours.
  MembershipEffects set_settings(TimePoint now, const Hash& settings);
  // Neighbours that the topology gives each node, as TopologyOptions::degree; all nodes of a swarm
  // need the same, or their graphs differ.
  MembershipEffects set_degree(TimePoint now, std::uint32_t degree);
  // Says goodbye to everybody; afterwards nothing is dialled and nobody is accused.
  MembershipEffects leave(TimePoint now) { return set_state(now, RecordState::left); }

  // Progress.
  void on_local_samples(TimePoint now, std::uint64_t samples);
  [[nodiscard]] Progress& progress() { return progress_; }
  [[nodiscard]] const Progress& progress() const { return progress_; }

  // Queries about this node's view.
  [[nodiscard]] const MemberRecord& self() const { return self_; }
  // Members that the topology makes neighbours, with or without a session. Edges are opened with
  // those that have one.
  [[nodiscard]] const std::vector<NodeId>& neighbours() const { return neighbours_; }
  // Where strangers may be members: those that are no neighbours of this node and may make it
  // theirs though its edges are taken, one of each network that no neighbour is of. Of two nodes
  // that choose by what each has reached only one may have chosen the other.
  [[nodiscard]] std::vector<NodeId> guests() const;
  [[nodiscard]] std::vector<NodeId> sessions() const;
  [[nodiscard]] bool has_session(const NodeId& id) const { return sessions_.contains(id); }
  [[nodiscard]] std::optional<MemberState> state_of(const NodeId& id) const;
  [[nodiscard]] std::optional<MemberView> find(const NodeId& id) const;
  // All members but this node, ascending by id.
  [[nodiscard]] std::vector<MemberView> members() const;
  // This node included, if it has not left: those that are alive or suspected.
  [[nodiscard]] std::size_t alive_count() const;
  // Alive or suspected members whose records name these settings, this node not included.
  [[nodiscard]] std::size_t alive_count_with(const Hash& settings) const;
  // Whether a message from `id` may open an edge: alive (or suspected), and no joiner.
  [[nodiscard]] bool may_average_with(const NodeId& id) const;
  [[nodiscard]] std::int32_t local_health() const { return health_.score(); }

 private:
  enum class SessionState : std::uint8_t { answering, silent };
  struct Session {
    HeartbeatWatch watch;
    SessionState state = SessionState::answering;
    TokenBucket requests;                  // BucketRequests of the peer
    std::optional<Network> network;        // of the other end
    std::optional<TimePoint> last_digest;  // when it sent one
    std::optional<TimePoint> last_view;    // when its view was last compared with ours
    TimePoint doubt_after{};               // others reached it: no case before then
    TimePoint used{};                      // the last time that this node had a use for it
    TimePoint known{};                     // the last time that the peer's record was held
    TimePoint up{};                        // when it began
    bool unneeded = false;                 // not for long now
    bool unneeded_there = false;           // the peer says the same
    bool given_up = false;                 // the shell was told to close it
  };
  // Our own judgement of a member that does not answer.
  struct Case {
    enum class Stage : std::uint8_t { asking, suspected, condemned };
    Stage stage = Stage::asking;
    Incarnation incarnation;
    Evidence evidence = Evidence::no_answer;
    TimePoint opened{};       // when this stage began
    TimePoint deadline{};     // of the stage `asking`
    std::uint64_t nonce = 0;  // of our probe requests
    bool abandoned = false;   // condemned for long, never refuted
  };
  // A probe that we make for somebody else.
  struct Errand {
    NodeId asker;
    std::uint64_t nonce = 0;
    NodeId subject;
    TimePoint deadline{};
  };
  // Where a statement came from.
  struct Origin {
    enum class Kind : std::uint8_t { pushed, asked_for };
    NodeId peer;
    Kind kind = Kind::pushed;
  };
  struct Why {
    Cause cause;
    NodeId by;
    std::optional<Evidence> evidence;
  };
  // Between two refutations of ours, so that a liar cannot make us flood the swarm.
  static constexpr Duration kRefutationGap = std::chrono::milliseconds(200);
  static constexpr std::size_t kMaxErrands = 64;
  static constexpr std::ptrdiff_t kMaxErrandsOfOne = kMaxErrands / 4;
  static constexpr double kBucketRequestsPerSecond = 50;
  static constexpr double kBucketRequestBurst = 512;

  // membership.cc: our own record, sessions, time
  void renew_self(TimePoint now, MembershipEffects& effects,
                  FactSpreader::Haste haste = FactSpreader::Haste::at_once);
  [[nodiscard]] Duration lifetime() const;
  void refute(TimePoint now, Incarnation at_least, Duration gap, MembershipEffects& effects);
  void forgive_all(TimePoint now);
  void tick_sessions(TimePoint now, MembershipEffects& effects);
  void keep_house(TimePoint now, MembershipEffects& effects);
  void compare_views(TimePoint now, MembershipEffects& effects);
  void forget(TimePoint now, const NodeId& id, Cause cause, MembershipEffects& effects);
  void notice_isolation(TimePoint now, MembershipEffects& effects);
  void flush(TimePoint now, FactSpreader::Urgency urgency, MembershipEffects& effects);
  void finish_event(TimePoint now, MembershipEffects& effects);
  // A tick that is owed stays owed: a starved node gets messages too.
  void promise_tick(TimePoint now) {
    if (promised_tick_ > now) promised_tick_ = std::max(next_deadline(), now);
  }
  void place_in_topology(const MemberEntry& member);
  [[nodiscard]] bool answering(const NodeId& id) const;
  [[nodiscard]] bool doubtful(TimePoint now, const MemberEntry& member) const;
  [[nodiscard]] static std::uint32_t seconds_since(TimePoint then, TimePoint now);

  // neighbourhood.cc: whom to connect with
  void refresh_neighbours(TimePoint now, MembershipEffects& effects);
  void refresh_wanted(TimePoint now, MembershipEffects& effects);
  void close_unneeded(TimePoint now, MembershipEffects& effects);
  [[nodiscard]] bool has_use(const NodeId& peer, const Session& session) const;

  // verdicts.cc: from silence to a verdict
  void open_case(TimePoint now, const NodeId& subject, Evidence evidence,
                 MembershipEffects& effects);
  void close_case(const NodeId& subject);
  [[nodiscard]] bool accused_by_another(TimePoint now, const MemberEntry& member) const;
  void corroborate(TimePoint now, const NodeId& subject);
  void hear_again(TimePoint now, MembershipEffects& effects);
  void give_up_session(const NodeId& subject, MembershipEffects& effects);
  void ask_others(const NodeId& subject, std::uint64_t nonce, MembershipEffects& effects);
  [[nodiscard]] TimePoint deadline_of(const NodeId& subject, const Case& open) const;
  void tick_cases(TimePoint now, MembershipEffects& effects);
  void accuse(TimePoint now, const NodeId& subject, AccusationKind kind, Evidence evidence,
              MembershipEffects& effects);
  void miss_neighbours(TimePoint now, MembershipEffects& effects);
  void consider_witnessing(TimePoint now, const NodeId& subject, MembershipEffects& effects);
  void on_probe(TimePoint now, const NodeId& from, const ProbeRequest& probe,
                MembershipEffects& effects);
  void on_probe_reply(TimePoint now, const ProbeReply& reply);
  [[nodiscard]] bool dial_for_another(TimePoint now, const NodeId& subject,
                                      MembershipEffects& effects);
  void tick_errands(TimePoint now, MembershipEffects& effects);
  void finish_errands(const NodeId& subject, MembershipEffects& effects);
  [[nodiscard]] std::size_t quorum_about(const NodeId& subject) const;
  [[nodiscard]] bool believed(TimePoint now, const NodeId& accuser) const;
  [[nodiscard]] MemberState judge(TimePoint now, MemberEntry& member);
  void reassess(TimePoint now, const NodeId& id, Why why, MembershipEffects& effects);

  // intake.cc: messages
  [[nodiscard]] bool note_life(TimePoint now, const NodeId& from, MembershipEffects& effects);
  void greet_accused(const NodeId& peer, MembershipEffects& effects);
  void take(TimePoint now, const NodeId& from, const Heartbeat&, MembershipEffects& effects);
  void compare_view(TimePoint now, const NodeId& with, std::uint64_t view,
                    MembershipEffects& effects);
  void take(TimePoint now, const NodeId& from, const HeartbeatAck&, MembershipEffects&);
  void take(TimePoint now, const NodeId& from, const ProbeRequest&, MembershipEffects& effects);
  void take(TimePoint now, const NodeId&, const ProbeReply&, MembershipEffects&);
  void take(TimePoint now, const NodeId& from, const Facts&, MembershipEffects& effects);
  void take(TimePoint now, const NodeId& from, const Digest&, MembershipEffects& effects);
  void take(TimePoint now, const NodeId& from, const BucketRequest&, MembershipEffects& effects);
  void send_wanted(TimePoint now, const NodeId& to, std::span<const FactName> names,
                   MembershipEffects& effects);
  void consider_announced(TimePoint now, const NodeId& from, std::span<const FactName> names,
                          MembershipEffects& effects);
  [[nodiscard]] bool misses(const FactName& name) const;
  void take_own_record(TimePoint now, const AgedRecord& aged, MembershipEffects& effects);
  void take_record(TimePoint now, const Origin& origin, const AgedRecord& aged,
                   MembershipEffects& effects);
  [[nodiscard]] bool store_record(TimePoint now, const MemberRecord& record, TimePoint signed_at,
                                  MembershipEffects& effects);
  [[nodiscard]] bool has_place(const NodeId& id) const;
  void make_room(TimePoint now, const NodeId& id, MembershipEffects& effects);
  [[nodiscard]] bool may_say(TimePoint now, const NodeId& peer, bool asked);
  void count_false_alarms(TimePoint now, const MemberEntry& subject);
  static void count_false_alarm(TimePoint now, MemberEntry& accuser);
  void take_own_accusation(TimePoint now, MemberEntry* credible, MembershipEffects& effects);
  void take_accusation(TimePoint now, const Origin& origin, const Accusation& accusation,
                       MembershipEffects& effects);
  void take_report(TimePoint now, const Origin& origin, const ProgressReport& report,
                   MembershipEffects& effects);

  SwarmId swarm_;
  MembershipOptions options_;
  const Signer& signer_;
  const Verifier& verifier_;
  Rng rng_;

  MemberRecord self_;
  Incarnation next_incarnation_;
  Incarnation ceiling_;
  TimePoint persist_again_{};   // until then a ceiling that was asked for may be under way
  bool renewal_waits_ = false;  // for a higher ceiling
  TimePoint self_signed_;
  TimePoint renewal_due_ = kNever;
  TimePoint began_;         // this process
  Duration outbid_gap_{0};  // since the last answer to a record that we did not sign

  MemberTable table_;
  Topology topology_;
  Progress progress_;
  FactSpreader spreader_;
  DialPlan dials_;
  LocalHealth health_;
  std::map<NodeId, Session> sessions_;
  std::map<NodeId, Case> cases_;
  std::vector<Errand> errands_;
  std::set<NodeId> awaiting_belief_;  // a quorum accuses them, belief_delay is not over
  std::vector<NodeId> neighbours_;
  TimePoint looked_around_{};    // when keep_house() last ran
  TimePoint listening_since_{};  // without a pause
  TimePoint next_digest_;
  TimePoint next_housekeeping_;
  TimePoint next_good_{};
  TimePoint promised_tick_ = kNever;
  TimePoint heard_anybody_{};
  std::optional<TimePoint> alone_since_;
  bool isolated_ = false;
  bool held_ = false;
};

[[nodiscard]] std::string_view name_of(Cause cause);
// One line for the log: who noticed, how, last heard when.
[[nodiscard]] std::string describe(const MemberChange& change);

}  // namespace starling::gossip
