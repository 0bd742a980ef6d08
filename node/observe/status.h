// StatusSnapshot: what this node knows about itself and the swarm at one moment, and its forms for
// people and programs (`starling status --json`, schema 1: fields are added, never renamed).
#pragma once

#include "node/base/mutex.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

struct Config;
struct KeySpec;

// What the figures of an evaluation are about.
enum class Evaluated : std::uint8_t { replica, neighbourhood, consensus };
[[nodiscard]] std::string_view name_of(Evaluated evaluated);

enum class Phase : std::uint8_t { starting, joining, training, finishing, finished, leaving };
inline constexpr std::size_t kPhases = 6;
[[nodiscard]] std::string_view name_of(Phase phase);

enum class MemberState : std::uint8_t { joining, alive, suspect, dead, left };
inline constexpr std::size_t kMemberStates = 5;
[[nodiscard]] std::string_view name_of(MemberState state);

// One member in this node's view; the list includes the node itself.
struct MemberStatus {
  std::string id;
  std::string name;  // the member's own choice: escape it before showing it
  MemberState state = MemberState::joining;
  std::string address;
  std::uint64_t samples = 0;
  std::uint64_t incarnation = 0;
  std::string reason;  // who noticed and how, for suspect and dead
  bool self = false;
};

// A node's certificate (transport/member_certificate.h).
struct CertificateStatus {
  std::string role;    // "member" or "inviter"
  std::string serial;  // 16 hexadecimal digits, as `starling key revoke` takes them
  std::string until;
};

// An edge, or what is kept of one that was closed: where its peer was dropped, for over an hour.
struct NeighbourStatus {
  std::string id;
  std::string name;
  MemberState state = MemberState::alive;
  // gossip/exchange/edge.h: "open"; "opening", "accepting"; "lost" and "resuming" around a session
  // that is away; "resetting"; "closed" where there is none (any more).
  std::string edge;
  std::optional<double> rtt_ms;
  std::string level;         // "L2"
  std::string level_reason;  // why: "enough", "line_too_slow" (gossip/exchange/level_control.h)
  std::uint64_t exchanges = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::optional<std::uint64_t> queued_bytes;  // that wait to be sent to it; none without a session
  std::optional<double> disagreement_ratio;   // |q' - q| / |x - r| (NeighbourView)
  std::optional<double> last_exchange_s;      // seconds since the last one
  std::uint64_t resets = 0;
  std::uint64_t clipped = 0;           // increments
  std::optional<double> clip_ratio;    // what was left of the last one that was clipped
  std::uint64_t refused = 0;           // payloads
  std::string refused_why;             // of the last one, in our words
  std::uint32_t offences = 0;          // refused payloads that still count against it
  std::uint32_t dropped = 0;           // times that it was dropped for them
  std::optional<double> closed_for_s;  // no edge with it for so long
  bool parked = false;
  bool wanted = false;  // the topology makes it a neighbour; others have an edge for a while
  std::optional<CertificateStatus> certificate;  // that it showed
};

struct StatusSnapshot {
  struct Node {
    std::string id;
    std::string name;
    std::string version;
    double uptime_s = 0;
    std::string instance = {};  // 16 hexadecimal digits, others in each process
  } node;
  Phase phase = Phase::starting;
  std::string address;  // where the node listens
  std::string http;     // where it serves HTTP; empty when off
  struct Swarm {
    std::string id;
    std::string mode;  // "secret", "open" or "closed"
    std::string fingerprint;
    std::map<std::string, std::string> settings = {};  // in force, by name; not in to_json()
  } swarm;
  // The search for a model; none once the node has one.
  struct Join {
    std::string phase;    // of bootstrap/join.h: "seeking", "choosing", "loading", ...
    std::string sponsor;  // whose model is loaded; empty while none is
    std::uint64_t bytes_done = 0;
    std::uint64_t bytes_total = 0;  // 0: not known yet
  };
  std::optional<Join> join;
  // What the swarm's admin decided, as this node knows it; without an admin only the defaults.
  struct Access {
    std::string admin;  // the public key, hexadecimal; empty without
    std::optional<CertificateStatus> certificate;
    std::uint64_t revocations = 0;  // number of the list in force
    std::size_t revoked_nodes = 0;
    std::size_t revoked_serials = 0;
    std::uint64_t secret_epoch = 0;      // of the newest secret that is accepted
    std::string rotation = "steady";     // "spreading", "promoted"
    std::size_t rotation_waits_for = 0;  // members that do not hold that secret
  } access;
  struct Model {
    std::string name;
    std::uint64_t parameters = 0;
    std::uint32_t classes = 0;
    std::uint32_t img = 0;
  } model;
  struct Progress {
    std::uint64_t step = 0;
    std::optional<double> last_step_s;  // seconds since it ended
    std::uint64_t samples = 0;          // of this node
    std::uint64_t swarm_samples = 0;    // P
    std::uint64_t budget_samples = 0;   // 0 when the run ends by time
    double share = 0;                   // of the budget, in [0, 1]; also for runs that end by time
    double epoch = 0;
    std::optional<double> left_s;
    // Since the last step ended or training began, whichever was later; not in to_json().
    std::optional<double> since_step_s = {};
  } progress;
  struct Train {
    std::optional<double> loss;  // average of the last steps
    double images_per_second = 0;
    double swarm_images_per_second = 0;
    double gossip_wait_ratio = 0;  // share of the time for which training waited for a codec job
    double data_wait_ratio = 0;
    double learning_rate = 0;
    std::uint64_t bad_samples = 0;
    std::string device;
    std::string precision;
    std::uint32_t batch = 0;
  } train;
  struct Eval {
    double accuracy_ratio = 0;
    double accuracy_top5_ratio = 0;
    double loss = 0;
    std::uint64_t images = 0;
    std::uint64_t step = 0;
    Evaluated of = Evaluated::replica;
    std::uint64_t references = 0;  // that a neighbourhood mean is the mean of
  };
  std::optional<Eval> eval;  // the newest evaluation
  // Payload bytes and messages since the process started, over all peers that ever were.
  struct Traffic {
    std::uint64_t bytes_sent = 0;
    std::uint64_t bytes_received = 0;
    std::uint64_t delta_bytes_sent = 0;
    std::uint64_t delta_bytes_received = 0;
    std::uint64_t exchanges = 0;
    std::uint64_t queued_bytes = 0;  // that wait now, in all sessions
  } traffic;
  // Every how many own steps the node offers, and why not more often.
  struct Period {
    std::uint32_t steps = 0;  // 0: does not train yet
    std::string reason;
  } period;
  struct Host {
    double cpu_ratio = 0;  // cores in use by this process
    std::uint64_t rss_bytes = 0;
  } host;
  std::optional<double> disagreement_ratio;  // median of the edges that are not closed
  std::string reachable = "unknown";         // "yes", "no", "unknown": the dial-back's result
  std::string checkpoint;                    // folder of the newest one, empty without
  std::vector<MemberStatus> members;
  std::vector<NeighbourStatus> neighbours;
  struct Consensus {
    std::string state = "none";  // none, agreeing, reducing, certifying, certified, adopted, failed
    std::uint64_t epoch = 0;
    std::string hash;  // hexadecimal, empty before
    std::vector<std::string> participants;
    std::uint32_t identical = 0;   // replicas that signed this hash
    std::string phase = {};        // of the protocol, finer than the state; empty without
    std::uint64_t bytes_left = 0;  // of the result
    std::uint64_t bytes_total = 0;
    std::string reason = {};  // why the last epoch was given up
  } consensus;
  // Sentences about what is wrong now; empty is healthy.
  std::vector<std::string> warnings;

  // True when the node does what it is there for and nothing is wrong: `starling status` exits 0.
  // /readyz asks for the phase alone, because a node in trouble still serves its neighbours.
  [[nodiscard]] bool healthy() const;
  [[nodiscard]] std::size_t members_in(MemberState state) const;
  // Neighbours with whom an exchange is possible now.
  [[nodiscard]] std::size_t open_edges() const;
};

// What makes a node at work a degraded one, as long as it lasts.
struct Troubles {
  // Without a step for so long, which is longer than it may be: what /livez fails for.
  std::optional<double> no_step_s = {};
  std::string checkpoint = {};    // why the last one was not written; empty: it was
  std::string certificate = {};   // a sentence: this node's is not valid, or not for long
  bool isolated = false;          // nobody else is in reach, and somebody was
  bool cloned = false;            // another process uses the identity
  std::uint64_t events_lost = 0;  // lines that are missing in events.jsonl
};
// A sentence for each.
[[nodiscard]] std::vector<std::string> warnings_of(const Troubles& troubles);

// The whole snapshot, its members, its neighbours: objects with "schema": 1.
//
// With at most so many members: the node itself and the first ones by name; "members_left_out" says
// how many others there are.
[[nodiscard]] nlohmann::json to_json(const StatusSnapshot& status,
                                     std::size_t most_members = SIZE_MAX);
[[nodiscard]] nlohmann::json members_json(const StatusSnapshot& status);
[[nodiscard]] nlohmann::json neighbours_json(const StatusSnapshot& status);
// Every key of the configuration with its value, where that came from and which places it shadows,
// and the swarm's settings by name. A setting that nobody chose at this node has the swarm's value.
// No secret is in it.
[[nodiscard]] nlohmann::json config_json(const StatusSnapshot& status, const Config& config);

// The value of a key, as texts that may be shown: an invite written out is a key for one entrance
// and in no output.
[[nodiscard]] std::vector<std::string> shown_values(const KeySpec& key, const Config& config);

// The forms for people, made from the JSON, because the verbs that print them get it from a socket.
// A field that is missing prints as "-"; texts are escaped.
[[nodiscard]] std::string status_table(const nlohmann::json& status);
[[nodiscard]] std::string members_table(const nlohmann::json& members);
[[nodiscard]] std::string neighbours_table(const nlohmann::json& neighbours);

// Where the io thread leaves the newest snapshot for everyone who shows it.
//
// Thread:  any. A snapshot never changes after put().
class SnapshotBox {
 public:
  // Owners of a snapshot: the box, and every reader for as long as it looks at it.
  using Pointer = std::shared_ptr<const StatusSnapshot>;

  void put(StatusSnapshot snapshot);
  // Never null: before the first put() a snapshot of phase `starting`.
  [[nodiscard]] Pointer get() const;

 private:
  mutable Mutex mutex_;
  Pointer snapshot_ STARLING_GUARDED_BY(mutex_);
};

}  // namespace starling::node
