// Spread: how what the admin revoked, and the next secret that the admin ordered, reach every
// member from the one folder into which a person put it. A state machine: no socket, file or clock.
#pragma once

#include "node/access/spread_messages.h"
#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/rate.h"
#include "node/base/signing.h"
#include "transport/limits.h"
#include "transport/revocation.h"
#include "transport/secret.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace starling::node {

// Whose word counts, and who this node is. `signer` and `verifier` outlive the Spread.
struct SpreadSelf {
  NodeId admin;
  SwarmId swarm;
  const Signer& signer;
  const Verifier& verifier;
  // How long the rest is waited for before a rotation goes on without it (swarm.secret_overlap).
  Duration overlap;
};

// What this node's files say of its secrets.
struct SecretsInFiles {
  const transport::SwarmSecret& newest;  // the next one where there is one
  bool is_next = false;                  // and does not open others' doors from here yet
  bool previous = false;                 // the one before still opens this door
};

// To be sent, if the session still stands.
struct SendAccess {
  NodeId to;
  std::uint16_t type = 0;
  Bytes body;
};
// A list to put on disk and in force: sessions with those who are on it end.
struct UseRevocations {
  transport::Revocations list;
};
// The text of a secret, to be written durably as the next one; then on_files().
struct KeepNextSecret {
  Bytes text;
};
// The next secret takes over; then on_files().
struct PromoteSecret {
  std::string why;
};
// Everybody has the new one: the one before opens no door any more; then on_files().
struct DropPreviousSecret {};
// A peer broke a rule.
struct EndSession {
  NodeId peer;
  Error why;
};
// For the log: something that only a person can mend.
struct SpreadWarning {
  std::string event;
  std::string what;
};
using SpreadEffect = std::variant<SendAccess, UseRevocations, KeepNextSecret, PromoteSecret,
                                  DropPreviousSecret, EndSession, SpreadWarning>;
using SpreadEffects = std::vector<SpreadEffect>;

// Members as this node sees them, without itself.
struct SpreadMembers {
  std::set<NodeId> alive;  // also suspects
  std::set<NodeId> known;  // also the dead ones that have not left
};

struct SpreadFigures {
  std::uint64_t lists_taken = 0;  // from peers
  std::uint64_t lists_stale = 0;  // not newer than the one in force
  std::uint64_t forged = 0;       // lists, secrets and holders whose signature did not hold
  std::uint64_t secrets_taken = 0;
  std::uint64_t unread = 0;  // lists and secrets that came faster than anybody has news
};

// Each side tells what it has when a session begins, when that changes, and in answer to the first
// facts of the other, which may have come to its admin only in the middle of the session.
//
// Revocations. Who has a higher number than the other sends the list, and who takes a list sends it
// on. Only the admin can make one, and an older one changes nothing.
//
// Rotation. The admin's order stands in the secret's own file, so who holds it can prove that it is
// the admin's: a stolen node can hand on what it was given, and start nothing. The next secret goes
// to every peer (in a swarm with an admin each has a certificate or is listed) that does not hold
// it, once this node has the list of revocations that the order names.
//
//   state       | what                                          | until
//   ------------|-----------------------------------------------|----------------------------------
//   steady      | one secret                                    | a next one is in the files
//   spreading   | next accepted, dials use the old one; each    | all alive members hold it, or
//               | member says by signature that it holds it     | `overlap` has passed -> promoted
//   promoted    | dials use the new one, sessions are renewed,  | all known members hold it and
//               | the previous one is accepted                  | kSettle has passed, or `overlap`
//
// Who sees nobody alive may have only just started, or be cut off itself: it is promoted after
// kAlone, and not before all it knows of hold the next one. The previous one it keeps for `overlap`
// (its file says how old it is): whoever comes back may know no other.
//
// Owned by the node. Thread: io. Cost: a message to each peer for each news; 96 bytes a member.
class Spread {
 public:
  // How long the previous secret stays after everybody has the new one: for dials under way.
  static constexpr Duration kSettle = std::chrono::seconds(15);
  // How long a node that sees nobody alive has the next secret, or runs, before it dials with that:
  // one that can only dial out reaches those who lack it with no other than theirs. Dials to one
  // address are a minute apart at most (gossip/membership/dial_plan.h).
  static constexpr Duration kAlone = std::chrono::minutes(2);
  // After how long a peer that does not say that it has a list or a secret is sent it again: its
  // disk may have failed.
  static constexpr Duration kOfferAgain = std::chrono::minutes(1);
  // How long the files of the secret are left alone after they could not be changed: doubled by
  // each failure in a row, up to the longest.
  static constexpr Duration kFirstPause = std::chrono::seconds(10);
  static constexpr Duration kLongestPause = std::chrono::minutes(10);
  // How often holders are told again while a rotation is under way.
  static constexpr Duration kRemind = std::chrono::seconds(10);
  static constexpr std::size_t kMaxHolders = 16'384;

  explicit Spread(SpreadSelf self);

  // What the files say now: at the start, and after every change of them.
  [[nodiscard]] SpreadEffects on_files(TimePoint now, transport::Revocations list,
                                       const SecretsInFiles& secrets);
  // The next secret could not be written, or not take over; the pause before the next attempt.
  [[nodiscard]] Duration on_files_failed(TimePoint now);

  [[nodiscard]] SpreadEffects on_session_up(TimePoint now, const NodeId& peer);
  void on_session_down(const NodeId& peer);
  // A message of type 0x0003 to 0x0006.
  [[nodiscard]] SpreadEffects on_message(TimePoint now, const NodeId& from, std::uint16_t type,
                                         ByteView body);
  // Once a second.
  [[nodiscard]] SpreadEffects on_tick(TimePoint now, const SpreadMembers& members);

  [[nodiscard]] const NodeId& admin() const { return self_.admin; }
  [[nodiscard]] const transport::Revocations& revocations() const { return list_; }
  [[nodiscard]] const SpreadFigures& figures() const { return figures_; }
  // "steady", "spreading" or "promoted".
  [[nodiscard]] std::string_view phase() const;
  // Members that a rotation waits for, as of the last tick.
  [[nodiscard]] std::size_t waiting_for() const { return waiting_for_; }
  [[nodiscard]] std::uint64_t epoch() const { return newest_.epoch; }

 private:
  struct Peer {
    std::optional<AccessFacts> facts;
    std::uint64_t list_sent = 0;
    SecretMark secret_sent;
    TimePoint sent_at{};  // when the later of the two was sent
    SecretMark holders_told;
    bool warned = false;
    // An honest peer sends each list and each secret once a minute at most.
    TokenBucket lists{0.2, 5};
    TokenBucket secrets{0.2, 5};
  };

  [[nodiscard]] AccessFacts facts() const;
  [[nodiscard]] bool rotating() const { return is_next_ || previous_; }
  void tell_facts(SpreadEffects& out) const;
  void offer(TimePoint now, const NodeId& id, Peer& peer, SpreadEffects& out);
  void offer_all(TimePoint now, SpreadEffects& out);
  void tell_holders(const NodeId& to, SpreadEffects& out) const;
  void remind(SpreadEffects& out);
  void begin_secret(TimePoint now, const SecretsInFiles& secrets);
  void hold_newest();

  void on_facts(TimePoint now, const NodeId& from, Peer& peer, ByteView body, SpreadEffects& out);
  void on_list(TimePoint now, const NodeId& from, Peer& peer, ByteView body, SpreadEffects& out);
  void on_next_secret(TimePoint now, const NodeId& from, Peer& peer, ByteView body,
                      SpreadEffects& out);
  void on_held(const NodeId& from, ByteView body, SpreadEffects& out);
  void end_forged(const NodeId& from, std::string what, SpreadEffects& out);
  void promote(TimePoint now, bool alone, SpreadEffects& out);
  // Whether any of them counts: not all were revoked.
  [[nodiscard]] bool company(const std::set<NodeId>& members) const;
  [[nodiscard]] std::size_t missing(const std::set<NodeId>& members) const;

  SpreadSelf self_;
  transport::Revocations list_;
  std::optional<transport::SwarmSecret> secret_;  // the newest one, if it has the admin's order
  SecretMark newest_;
  bool is_next_ = false;
  bool previous_ = false;
  bool asked_ = false;                       // a promotion or a drop is under way
  std::optional<SecretMark> writing_;        // a secret on its way to the disk
  Duration pause_{};                         // after the last failure; zero after a success
  TimePoint paused_until_{};                 // no secret goes to the disk before
  TimePoint since_{};                        // that newest_ is in the files
  std::optional<TimePoint> complete_since_;  // that every known member holds it, after promotion
  TimePoint reminded_{};
  NodeId reminded_of_;  // the last holder that was told again
  std::size_t waiting_for_ = 0;
  std::map<NodeId, Signature> holders_;  // of newest_, or of writing_
  std::set<NodeId> members_;             // known, as of the last tick
  std::map<NodeId, Peer> peers_;
  SpreadFigures figures_;
};

}  // namespace starling::node
