#include "gossip/consensus/ledger.h"

#include <algorithm>
#include <utility>

namespace starling::gossip::consensus {
namespace {

// For the kinds of which a node signs one in an epoch: `held` are those of the message's epoch.
template <class Message>
bool contradicts(const std::map<NodeId, Message>& held, const Message& message) {
  const auto at = held.find(message.signer);
  return at != held.end() && at->second.round == message.round &&
         !says_the_same(at->second, message);
}

template <class Message>
const Message& opposite(const std::map<NodeId, Message>& held, const std::map<NodeId, Message>& old,
                        const Message& message) {
  return contradicts(held, message) ? held.at(message.signer) : old.at(message.signer);
}

}  // namespace

void Ledger::enter(Epoch epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  finishes_.clear();
  converted_.clear();
  for (const auto& [id, message] : std::exchange(later_, {})) add(message);
  old_participants_ = std::exchange(participants_, {});
  old_signatures_ = std::exchange(signatures_, {});
}

void Ledger::start_over() {
  auto first_part = std::move(first_part_);
  auto acknowledged = std::move(acknowledged_);
  *this = {};
  first_part_ = std::move(first_part);
  acknowledged_ = std::move(acknowledged);
}

Epoch Ledger::latest() const {
  Epoch latest = epoch_;
  for (const auto& [id, message] : later_)
    if (message.role == Role::participant && may_take_part(id, message.round.epoch))
      latest = std::max(latest, message.round.epoch);
  return latest;
}

Novelty Ledger::look_at(const Finish& message) const {
  if (message.round.epoch > epoch_) {
    const auto at = later_.find(message.signer);
    if (at == later_.end())
      return later_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
    const bool newer = std::pair(message.round.epoch, message.revision) >
                       std::pair(at->second.round.epoch, at->second.revision);
    return newer ? Novelty::fresh : Novelty::known;
  }
  if (message.round.epoch < epoch_) {
    if (message.role != Role::participant) return Novelty::known;
    const auto at = first_part_.find(message.signer);
    if (at == first_part_.end())
      return first_part_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
    return message.round.epoch < at->second.round.epoch ? Novelty::fresh : Novelty::known;
  }
  const auto at = finishes_.find(message.signer);
  if (at == finishes_.end())
    return finishes_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
  return message.revision > at->second.revision ? Novelty::fresh : Novelty::known;
}

bool Ledger::holds(const Finish& message) const {
  const auto& held = message.round.epoch == epoch_ ? finishes_ : first_part_;
  const auto at = held.find(message.signer);
  return at != held.end() && at->second.signature == message.signature;
}

Novelty Ledger::look_at(const Participants& message) const {
  if (!is_excluded(message.signer) &&
      (contradicts(participants_, message) || contradicts(old_participants_, message)))
    return Novelty::conflicting;
  if (message.round.epoch != epoch_) return Novelty::unusable;
  if (participants_.contains(message.signer)) return Novelty::known;
  return participants_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
}

Novelty Ledger::look_at(const HashSignature& message) const {
  if (!is_excluded(message.signer) &&
      (contradicts(signatures_, message) || contradicts(old_signatures_, message)))
    return Novelty::conflicting;
  if (message.round.epoch != epoch_) return Novelty::unusable;
  if (signatures_.contains(message.signer)) return Novelty::known;
  return signatures_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
}

Novelty Ledger::look_at(const Refusal& message) const {
  if (message.round.epoch > epoch_) return Novelty::unusable;
  const auto at = refusals_.find(message.signer);
  if (at == refusals_.end())
    return refusals_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
  return message.round.epoch > at->second.round.epoch ? Novelty::fresh : Novelty::known;
}

Novelty Ledger::look_at(const Equivocation& message) const {
  if (evidence_.contains(message.signer())) return Novelty::known;
  return evidence_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
}

Novelty Ledger::look_at(const Acknowledge& message) const {
  const auto at = acknowledged_.find(message.signer);
  if (at == acknowledged_.end())
    return acknowledged_.size() < kMaxStatements ? Novelty::fresh : Novelty::unusable;
  return Novelty::known;
}

void Ledger::add(const Finish& message) {
  if (message.role == Role::participant) {
    const auto [at, is_new] = first_part_.try_emplace(message.signer, message);
    if (!is_new && message.round.epoch < at->second.round.epoch) at->second = message;
  }
  if (message.round.epoch > epoch_) later_.insert_or_assign(message.signer, message);
  if (message.round.epoch != epoch_) return;
  const auto [at, is_new] = finishes_.try_emplace(message.signer, message);
  if (is_new) return;
  if (at->second.role == Role::follower && message.role == Role::participant)
    converted_.insert(message.signer);
  at->second = message;
}

void Ledger::add(const Participants& message) {
  participants_.try_emplace(message.signer, message);
}

void Ledger::add(const HashSignature& message) { signatures_.try_emplace(message.signer, message); }

void Ledger::add(const Equivocation& message) {
  evidence_.try_emplace(message.signer(), message);
  exclude(message.signer());
}

Equivocation Ledger::proof_with(const Participants& message) const {
  return {message.round, std::pair(opposite(participants_, old_participants_, message), message)};
}

Equivocation Ledger::proof_with(const HashSignature& message) const {
  return {message.round, std::pair(opposite(signatures_, old_signatures_, message), message)};
}

void Ledger::add(const Refusal& message) { refusals_.insert_or_assign(message.signer, message); }

void Ledger::add(const Acknowledge& message) { acknowledged_.try_emplace(message.signer, message); }

bool Ledger::may_take_part(const NodeId& id, Epoch epoch) const {
  if (is_excluded(id)) return false;
  if (epoch.value <= 1) return true;
  const auto at = first_part_.find(id);
  return at != first_part_.end() && at->second.round.epoch < epoch;
}

std::vector<ConsensusMessage> Ledger::everything() const {
  std::vector<ConsensusMessage> all;
  // The current epoch comes first: a node that hears of it for the first time must not take an
  // older Finish for an invitation.
  for (const auto& [id, message] : finishes_) all.emplace_back(message);
  for (const auto& [id, message] : first_part_)
    if (message.round.epoch < epoch_) all.emplace_back(message);
  for (const auto& [id, message] : later_) all.emplace_back(message);
  for (const auto& [id, message] : evidence_) all.emplace_back(message);
  for (const auto& [id, message] : refusals_) all.emplace_back(message);
  for (const auto& [id, message] : participants_) all.emplace_back(message);
  for (const auto& [id, message] : signatures_) all.emplace_back(message);
  for (const auto& [id, message] : acknowledged_) all.emplace_back(message);
  return all;
}

}  // namespace starling::gossip::consensus
