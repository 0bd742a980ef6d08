// From a list of addresses to a member with a model, and back again when need be.
//
// Join compares settings with every peer, decides how this node comes to its first model (genesis,
// its checkpoint, or a sponsor's state), keeps looking for peers while it trains, serves those who
// come later, and says when there is no point in going on.
#pragma once

#include "bootstrap/address_book.h"
#include "bootstrap/dialler.h"
#include "bootstrap/messages.h"
#include "bootstrap/reachability.h"
#include "bootstrap/settings.h"
#include "bootstrap/state_transfer.h"
#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/random.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace starling::bootstrap {

struct JoinOptions {
  // A node that has peers to try spends this long on them before it trains alone. Raising it avoids
  // islands that must merge; lowering it starts lonely nodes sooner.
  Duration grace = std::chrono::seconds(10);
  // Below this age (steps) a replica is near enough to genesis that edges open there for free.
  double genesis_age = 100;
  // `--require-peers`: compatible peers to meet before anything starts; 0: none.
  std::uint32_t require_peers = 0;
  // `--join-timeout`: when the requirement is given up.
  Duration join_timeout = std::chrono::minutes(5);
  // Silent closes of every address that make "refused" of "not enough".
  std::uint32_t silent_closes = 3;
  // A session that says no Hello for this long is not waited for, and none is once the grace has
  // been over for so long: or two that come in turn would hold the start for ever.
  Duration hello_patience = std::chrono::seconds(5);
  // After the first suitable sponsor others may still say hello: the least loaded one is taken.
  Duration sponsor_choice = std::chrono::milliseconds(300);
  // After the first member that says that it has finished, those that still train may say hello.
  Duration finished_choice = std::chrono::seconds(1);
  // A node without a model waits so long for the end of a swarm that is finishing, from the first
  // peer that says so: longer than a final consensus can take (gossip/consensus, kMaxEpoch).
  Duration finish_patience = std::chrono::minutes(10);
  Duration hello_refresh = std::chrono::seconds(30);
  DiallerOptions dialler;
  TransferOptions transfer;
};

// This node as it is now; set with update() whenever something of it changed, and once a second.
struct LocalFacts {
  RunPhase phase = RunPhase::starting;
  double age = 0;             // of the replica, in steps
  std::uint64_t samples = 0;  // P
  Duration run_age{};
  std::uint64_t max_state_bytes = 0;  // of a snapshot of this model; 0: not known yet
  std::vector<NodeId> alive;          // alive members, this node not included, ascending
  // Those of them whose records name this node's settings (Membership::alive_count_with); without
  // it all alive ones are counted, which lets two islands that already know each other flip.
  std::optional<std::uint64_t> alive_same = std::nullopt;
  // Where alive members say that they can be dialled: what the address book knows of them need not
  // be tried.
  std::vector<KnownPeer> addresses;
  std::vector<gossip::SavedCounter> counters;
  Hash certificate;  // zero unless finished
};

// How this node starts.
enum class Start : std::uint8_t { genesis, checkpoint };

// ---- what the shell has to do

// Start training now. Followed by update() with phase training.
struct BeginTraining {
  Start start = Start::genesis;
  std::string why;  // "alone after 10 s", "met mossy-otter at genesis", ...
};
// Rebuild for other settings (stop training, voids edges), then call on_settings_adopted(). If they
// cannot be used here, on_settings_unusable(), and if this node finishes or leaves meanwhile,
// on_settings_kept(): both without having stopped anything.
struct AdoptSettings {
  Settings settings;
  NodeId from;
  std::string diff;
};
// The replica of a sponsor: put it in place, merge its counters and age, start (or go on) training,
// then call on_state_installed(). Identity and own counter stay.
struct InstallState {
  SharedSnapshot snapshot;
  NodeId sponsor;
  Duration loading{};  // from the first chunk that was asked for to the last that came
  std::vector<gossip::SavedCounter> counters;
  Duration run_age{};
};
// No model came from this sponsor, or none that can be used here: another one is looked for.
struct TransferFailed {
  NodeId sponsor;
  std::string why;
};
// Copy the replica at a step boundary and cut it (cut_snapshot, on the pool), then on_snapshot().
struct TakeSnapshot {};
// The swarm is finished, and this node has not begun: fetch the certified model (the consensus room
// does that).
struct FetchFinal {
  NodeId from;
  Hash certificate;
};
// Edges with this peer may open.
struct SameSettings {
  NodeId peer;
};
// Another swarm's settings, and one side has forced its own or cannot use the other's: no edge.
// Told once for each peer.
struct SettingsRefused {
  NodeId peer;
  std::string sentence;
};
// There is no point in going on: exit 4 (not_enough_peers) or 5 (refused, wrong_swarm).
struct GiveUp {
  Error error;
};
// Open a TCP connection to the peer's remote address at this port, close it, then on_probed().
struct ProbePort {
  NodeId peer;
  std::uint16_t port = 0;
};
// A peer tried to dial this node.
struct Reachability {
  NodeId peer;
  bool reachable = false;
  std::string address;
  std::string detail;
};
// The join has come to an end: this node is a member with a model.
struct Joined {
  std::optional<NodeId> via;  // nothing: it began alone
  Duration took{};
};

// Dial this; the outcome is on_session_up (with the endpoint), on_dial_met or on_dial_failed.
struct Dial {
  transport::DialTarget target;
};
// Find all addresses of this name, then on_resolved().
struct Resolve {
  transport::Endpoint name;
};

using JoinEffect =
    std::variant<BootstrapOutgoing, BootstrapOffence, Dial, Resolve, BeginTraining, AdoptSettings,
                 InstallState, TransferFailed, TakeSnapshot, FetchFinal, SameSettings,
                 SettingsRefused, GiveUp, ProbePort, Reachability, Joined>;
// In the order in which they are to be carried out.
using JoinEffects = std::vector<JoinEffect>;

enum class JoinPhase : std::uint8_t {
  seeking,     // nobody to talk to yet, the grace runs
  greeting,    // a session is up, hellos are on their way
  adopting,    // the shell rebuilds for other settings
  choosing,    // sponsors are known, the least loaded is being chosen
  loading,     // state transfer
  installing,  // the shell puts a replica in place
  fetching,    // the swarm is finished: the certified model is on its way
  member,      // has a model and trains (alone or not)
  over,        // gave up
};
[[nodiscard]] std::string_view name_of(JoinPhase phase);

// How far the search for a model is.
struct JoinStatus {
  JoinPhase phase = JoinPhase::seeking;
  std::optional<NodeId> sponsor;  // while its model is loaded
  TransferProgress transfer;
};

// With what a node starts to look for a swarm.
struct JoinParts {
  Settings own;                  // this node's settings,
  std::set<std::string> forced;  // and the keys of them that a person chose here
  Start start = Start::genesis;
  JoinOptions options;
};

// The state machine. Owned by the bootstrap shell; one per process, from start to exit; io thread
// only. Holds this node's side of every comparison. Cost: O(sessions) an event; at most one
// snapshot that is loaded and one that is served.
//
// Phase of a node without a model:
//
// (`young`, `old`: a compatible peer says hello, its replica younger or older than genesis_age)
//
// | phase      | young              | old             | grace over         | other event        |
// |------------|--------------------|-----------------|--------------------|--------------------|
// | seeking    | -> member, genesis | -> choosing     | -> member, genesis | session: greeting  |
// | greeting   | -> member, genesis | -> choosing     | -> member, genesis | all gone: seeking  |
// | adopting   | noted              | noted           | waits              | adopted: greeting, |
// |            |                    |                 |                    | if not: as before  |
// | choosing   | noted              | noted           | waits              | chosen: loading    |
// | loading    | noted              | a donor perhaps | waits              | failed: choosing   |
// | installing | noted              | noted           | waits              | installed: member  |
//
// A node that would begin at genesis waits while a compatible peer is finishing, and fetches what
// comes of it. What is waited for runs from the search, so that nobody renews it by coming again
// (node/decisions/0077). A node with a checkpoint begins with it instead of genesis, and loads
// nothing. A member that rejoin() tells to be too far behind goes to `choosing`. With require_peers
// the grace never ends the search: the join timeout does. A node that update() calls finished is a
// member in any phase: it needs nothing and begins nothing, but shows its certificate to whoever
// comes. From one try of other settings to the next lies a pause, which grows up to a minute.
class Join {
 public:
  Join(TimePoint now, JoinParts parts, Rng rng);

  // Seeds of the command line, and `starling join` later.
  [[nodiscard]] Result<JoinEffects> add_seeds(TimePoint now, const std::vector<Seed>& seeds);
  JoinEffects add_address_book(TimePoint now, const AddressBook& book);
  // Nothing more will be added: a node without anything to try begins at once.
  JoinEffects begin(TimePoint now);

  JoinEffects update(TimePoint now, LocalFacts facts);
  // `dialled`: the endpoint that this node dialled to get the session, if it did.
  JoinEffects on_session_up(TimePoint now, const NodeId& peer,
                            const std::optional<transport::Endpoint>& dialled);
  JoinEffects on_session_down(TimePoint now, const NodeId& peer);
  JoinEffects on_message(TimePoint now, const NodeId& from, const BootstrapMessage& message);
  // The node at an endpoint that was dialled has a session with this one already.
  JoinEffects on_dial_met(TimePoint now, const transport::Endpoint& endpoint, const NodeId& peer);
  JoinEffects on_dial_failed(TimePoint now, const transport::Endpoint& endpoint, const Error& why);
  JoinEffects on_resolved(TimePoint now, const transport::Endpoint& name,
                          const Result<std::vector<transport::Endpoint>>& addresses);
  JoinEffects on_tick(TimePoint now);
  [[nodiscard]] TimePoint next_deadline() const;

  // Outcomes of effects.
  JoinEffects on_settings_adopted(TimePoint now, const Settings& settings);
  // They are not asked for again.
  JoinEffects on_settings_unusable(TimePoint now, const Error& why);
  JoinEffects on_settings_kept(TimePoint now);
  JoinEffects on_state_installed(TimePoint now);
  // A snapshot could not be used here (wrong size, not finite): another sponsor is tried.
  JoinEffects on_state_unusable(TimePoint now, const Error& why);
  // The certified model could not be fetched: the search goes on.
  JoinEffects on_final_unavailable(TimePoint now);
  JoinEffects on_snapshot(TimePoint now, Result<SharedSnapshot> snapshot);
  JoinEffects on_probed(TimePoint now, const NodeId& peer, DialBackReply found);

  // This replica is too far behind (rulings 7): take a model again, keep identity and counter.
  JoinEffects rejoin(TimePoint now);
  // No session is left: every address is tried again at once.
  JoinEffects on_isolated(TimePoint now);
  // Asks a peer whether it can reach this node's port.
  JoinEffects ask_dial_back(TimePoint now, const NodeId& peer, std::uint16_t port);

  [[nodiscard]] JoinPhase phase() const { return phase_; }
  [[nodiscard]] JoinStatus status(TimePoint now) const;
  // Where this node looked for peers, and what came of it.
  [[nodiscard]] std::vector<AddressReport> addresses() const { return dialler_.report(); }
  [[nodiscard]] const Settings& settings() const { return own_; }
  [[nodiscard]] bool same_settings(const NodeId& peer) const;
  // Whether an attachment of this type from this peer is awaited.
  [[nodiscard]] bool admits(const NodeId& from, std::uint16_t type, std::size_t bytes) const;

 private:
  struct Peer {
    TimePoint up{};
    std::optional<Hello> hello;  // theirs, the last
    std::optional<Hello> said;   // ours, the last that was sent
    std::uint64_t believed = 0;  // of its Hello's members, when the two were last compared
    bool same = false;           // trains the same settings
    bool refused = false;        // and told
    TimePoint no_sponsor{};      // it refused or failed us: not asked before then
  };
  // What came of one search for a model, from begin() or rejoin() to the model. Outlives sessions.
  struct Search {
    std::uint32_t tries = 0;                   // sponsors that were asked
    std::map<NodeId, std::uint32_t> failures;  // of them
    std::optional<TimePoint> finishing;        // the first peer said so
    std::set<Hash> unfetched;                  // certificates that led to nothing, the first few
    TimePoint fetch_from{};                    // they are not fetched before then,
    Duration fetch_pause{};                    // which was so long
  };

  // join.cc: events
  void add(JoinEffects& out, DiallerEffects effects);
  void add(JoinEffects& out, SponsorEffects effects);
  void take(TimePoint now, const NodeId& from, const Hello& hello, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const StateRequest& request, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const StateManifest& manifest, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const StateRefused& refused, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const ChunkRequest& request, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const Chunk& chunk, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const StateDone& done, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const DialBackRequest& request, JoinEffects& out);
  void take(TimePoint now, const NodeId& from, const DialBackReply& reply, JoinEffects& out);
  void dial(TimePoint now, JoinEffects& out);
  [[nodiscard]] StateSponsor::Stock stock() const;

  // join_settings.cc: whose settings
  void compare(TimePoint now, const NodeId& id, JoinEffects& out);
  void compare_again(TimePoint now, JoinEffects& out);
  [[nodiscard]] std::uint64_t believed_alive(const NodeId& id, const Hello& hello) const;
  void adopt(TimePoint now, const NodeId& id, std::string diff, JoinEffects& out);
  void pause_adopting(TimePoint now);
  void refuse(const NodeId& id, Peer& peer, std::string sentence, JoinEffects& out);
  void stop_adopting();

  // join_phases.cc: decisions
  [[nodiscard]] Hello hello() const;
  void greet(TimePoint now, const NodeId& id, Peer& peer, JoinEffects& out);
  void greet_all(TimePoint now, JoinEffects& out);
  void proceed(TimePoint now, JoinEffects& out);
  void start_training(TimePoint now, std::string why, std::optional<NodeId> via, JoinEffects& out);
  void choose_sponsor(TimePoint now, JoinEffects& out);
  [[nodiscard]] std::optional<NodeId> next_sponsor(TimePoint now);
  void sponsor_failed(TimePoint now, const NodeId& id, Duration pause);
  void take_transfer(TimePoint now, ReceiverEffects effects, JoinEffects& out);
  void look_for_donors(TimePoint now, JoinEffects& out);
  [[nodiscard]] bool hopeless() const;
  void enforce_requirement(TimePoint now, JoinEffects& out);
  void rest_if_finished();
  bool fetch_if_finished(TimePoint now, JoinEffects& out);
  [[nodiscard]] bool may_fetch(TimePoint now, const Hash& certificate) const;
  [[nodiscard]] bool ends_soon(TimePoint now, const Peer& peer);
  // No Hello is waited for after this.
  [[nodiscard]] TimePoint hello_due(const Peer& peer) const {
    return std::min(peer.up, grace_until_) + options_.hello_patience;
  }
  [[nodiscard]] bool dials() const {
    return begun_ && phase_ != JoinPhase::over && facts_.phase != RunPhase::leaving;
  }
  [[nodiscard]] bool required_peers_met() const { return met_.size() >= options_.require_peers; }
  [[nodiscard]] bool can_sponsor(TimePoint now, const Peer& peer) const;
  [[nodiscard]] bool is_refused(const NodeId& id) const;

  Settings own_;
  std::set<std::string> forced_;
  Start start_;
  JoinOptions options_;
  LocalFacts facts_;

  Dialler dialler_;
  StateSponsor sponsor_;
  Rng rng_;
  Search search_;
  std::optional<StateReceiver> receiver_;
  SharedSnapshot installing_;  // that InstallState told, until its outcome
  DialBack dial_back_;
  std::map<NodeId, Peer> peers_;
  std::set<NodeId> met_;    // compatible peers, until there are as many as are required
  std::set<Hash> fetched_;  // certificates that FetchFinal was told; empty: none is fetched
  Hash adopting_;           // fingerprint of what AdoptSettings was last told
  TimePoint adopt_from_{};  // other settings are not tried before then
  Duration adopt_pause_{};  // the last one
  bool put_off_ = false;    // some were not, meanwhile
  // Settings that this build or this node's data cannot follow, with the reason; the last few.
  std::vector<std::pair<Hash, std::string>> unusable_;

  JoinPhase phase_ = JoinPhase::seeking;
  TimePoint began_;
  TimePoint grace_until_;
  TimePoint choose_at_ = kNever;
  TimePoint next_hello_;
  TimePoint checked_{};    // the last tick
  NodeId installed_from_;  // the sponsor of `installing_`
  bool begun_ = false;
  bool running_ = false;  // has a model: BeginTraining or InstallState was told
  bool told_joined_ = false;
  std::string last_refusal_;  // a sentence about settings, for the verdict
};

}  // namespace starling::bootstrap
