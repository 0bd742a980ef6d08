// The signed statements that this node has seen, and what they prove.
#pragma once

#include "gossip/consensus/messages.h"
#include "node/base/ids.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace starling::gossip::consensus {

// What a statement would add. Only fresh and conflicting ones are worth a signature check;
// fresh ones are added and forwarded, conflicting ones become an Equivocation: so a statement
// crosses each session at most once in each direction.
enum class Novelty : std::uint8_t {
  fresh,
  known,        // the same statement, or one that a newer one replaced
  conflicting,  // its signer signed something else in the same epoch: proof of equivocation
  unusable,     // of an epoch that this node is not in (but a Finish), or the ledger is full
};

// Statements of the current epoch (all kinds) and what outlives it: who took part early enough to
// take part again, who acknowledged, who is excluded and the proof of it, and who is further.
//
// Owned by FinalConsensus; a plain container without time. Signatures are checked by the owner
// before add(). Bounded by kMaxStatements ids.
class Ledger {
 public:
  // Statements of older epochs are forgotten, participants of them may take part in `epoch`. What
  // was kept for `epoch` is of the current one now.
  void enter(Epoch epoch);
  // As before epoch 1, but for who has said that it takes part (whoever has frozen goes on in a
  // later epoch, and does not say again what it said in the first), and who holds a certified
  // model: it is at its end, and does not say so again either.
  void start_over();
  // The latest epoch in which somebody takes part who may, as far as was heard; at least the
  // current one.
  [[nodiscard]] Epoch latest() const;

  [[nodiscard]] Novelty look_at(const Finish& message) const;
  [[nodiscard]] Novelty look_at(const Participants& message) const;
  [[nodiscard]] Novelty look_at(const HashSignature& message) const;
  [[nodiscard]] Novelty look_at(const Refusal& message) const;
  [[nodiscard]] Novelty look_at(const Acknowledge& message) const;
  [[nodiscard]] Novelty look_at(const Equivocation& message) const;

  // The proof that a checked, conflicting statement makes with the one held.
  [[nodiscard]] Equivocation proof_with(const Participants& message) const;
  [[nodiscard]] Equivocation proof_with(const HashSignature& message) const;

  // Adds a checked statement whose look_at() was fresh.
  void add(const Finish& message);
  void add(const Participants& message);
  void add(const HashSignature& message);
  void add(const Refusal& message);
  void add(const Acknowledge& message);
  // Excludes the signer.
  void add(const Equivocation& message);

  // Of the current epoch, by signer.
  [[nodiscard]] const std::map<NodeId, Finish>& finishes() const { return finishes_; }
  [[nodiscard]] const std::map<NodeId, Participants>& participants() const { return participants_; }
  [[nodiscard]] const std::map<NodeId, HashSignature>& signatures() const { return signatures_; }
  [[nodiscard]] const std::map<NodeId, Refusal>& refusals() const { return refusals_; }
  [[nodiscard]] const std::map<NodeId, Acknowledge>& acknowledged() const { return acknowledged_; }

  // Whether this very statement is what is held of its signer for that epoch.
  [[nodiscard]] bool holds(const Finish& message) const;

  // Followers of this epoch that changed their mind and take part.
  [[nodiscard]] const std::set<NodeId>& converted() const { return converted_; }

  // Whether this id may be a participant of the current epoch, or of that one: from epoch 2 on it
  // must have stated that it takes part in an earlier one (rulings 35: late nodes are followers),
  // and it must not be excluded.
  [[nodiscard]] bool may_take_part(const NodeId& id) const { return may_take_part(id, epoch_); }
  [[nodiscard]] bool may_take_part(const NodeId& id, Epoch epoch) const;
  void exclude(const NodeId& id) { excluded_.insert(id); }
  [[nodiscard]] bool is_excluded(const NodeId& id) const { return excluded_.contains(id); }

  // Everything that a peer with a new session has to hear, in an order that it can use.
  [[nodiscard]] std::vector<ConsensusMessage> everything() const;

 private:
  Epoch epoch_;
  std::map<NodeId, Finish> finishes_;
  std::map<NodeId, Participants> participants_;
  std::map<NodeId, HashSignature> signatures_;
  // Of the epoch before: a second, different one still proves an equivocation.
  std::map<NodeId, Participants> old_participants_;
  std::map<NodeId, HashSignature> old_signatures_;
  std::map<NodeId, Refusal> refusals_;  // the latest of each signer, kept over epochs
  std::map<NodeId, Acknowledge> acknowledged_;
  std::map<NodeId, Finish> first_part_;  // the earliest Finish as a participant of each signer
  std::map<NodeId, Finish> later_;       // the latest of each signer that is further than this node
  std::set<NodeId> converted_;
  std::set<NodeId> excluded_;
  std::map<NodeId, Equivocation> evidence_;
};

}  // namespace starling::gossip::consensus
