// Gossip, second part: merging, the final consensus, what comes after it, and leaving.
#include "gossip/consensus/message_codec.h"
#include "gossip/gossip.h"
#include "transport/finish_order.h"

#include <utility>

namespace starling::gossip {

consensus::ConsensusOptions Gossip::consensus_options(Contributes contributes) const {
  consensus::ConsensusOptions made;
  made.fingerprint = model_.fingerprint;
  made.manifest = model_.manifest;
  made.model = model_.name;
  made.shape = model_.shape;
  made.contributes = contributes == Contributes::yes;
  made.admin = model_.admin;
  made.order = {transport::kFinishOrderDomain, transport::ordered_part(swarm_, model_.fingerprint)};
  made.linger = options_.linger;
  made.rule = model_.rule;
  return made;
}

GossipEffects Gossip::on_consensus_done(TimePoint now, const consensus::JobOutcome& outcome) {
  GossipEffects out;
  if (outcome.target.round.run.kind == consensus::RunKind::merge) {
    if (merge_) take_merge(merge_->on_job_done(now, outcome), out);
  } else if (consensus_) {
    take(now, consensus_->on_job_done(now, outcome), out);
  }
  return out;
}

GossipEffects Gossip::finish(TimePoint now, std::optional<Signature> order) {
  GossipEffects out;
  if (consensus_) take(now, consensus_->on_finish_command(now, order), out);
  advance(now, out);
  return out;
}

void Gossip::set_admin(const NodeId& admin) {
  if (!model_.admin) return;
  model_.admin = admin;
  if (consensus_) consensus_->set_admin(admin);
}

Result<GossipEffects> Gossip::merge(TimePoint now) {
  if (!merge_ || phase_ != Phase::averaging)
    return fail(Errc::not_found, Doing::merging, "this node has no replica that is training");
  TRY(ConsensusEffects effects, merge_->request(now, rng_() | 1U));
  GossipEffects out;
  take_merge(std::move(effects), out);
  return out;
}

GossipEffects Gossip::on_training_paused(TimePoint now) {
  GossipEffects out;
  training_paused_ = true;
  advance(now, out);
  return out;
}

GossipEffects Gossip::on_contribution(TimePoint now, consensus::RunKind kind) {
  GossipEffects out;
  if (kind == consensus::RunKind::merge) {
    if (merge_) take_merge(merge_->on_frozen(now), out);
    return out;
  }
  if (consensus_) take(now, consensus_->on_frozen(now), out);
  return out;
}

GossipEffects Gossip::on_result_stored(TimePoint now) {
  GossipEffects out;
  if (consensus_) take(now, consensus_->on_stored(now), out);
  // Who came to a swarm that had ended holds its model now, and is there like one that serves it.
  if (!mixer_ && phase_ == Phase::joining) {
    take(now, membership_.set_settings(now, model_.fingerprint), out);
    take(now, membership_.set_state(now, RecordState::alive), out);
  }
  return out;
}

GossipEffects Gossip::begin_following(TimePoint now, const ModelFacts& model) {
  GossipEffects out;
  model_ = model;
  ended_ = false;
  consensus_ =
      std::make_unique<FinalConsensus>(consensus_options(Contributes::no), signer_, verifier_);
  take(now, consensus_->on_standing(now, consensus::Role::follower), out);
  for (const auto& [peer, instance] : sessions_)
    take(now, consensus_->on_session_up(now, peer), out);
  // Whoever holds a certificate answers a Finish with it, also one without an order.
  take(now, consensus_->on_finish_command(now), out);
  return out;
}

Result<GossipEffects> Gossip::serve(TimePoint now, const ModelFacts& model,
                                    const consensus::CertificateMessage& held) {
  GossipEffects out;
  model_ = model;
  consensus_ =
      std::make_unique<FinalConsensus>(consensus_options(Contributes::no), signer_, verifier_);
  TRY_VOID(consensus_->restore(held));
  take(now, membership_.set_settings(now, model.fingerprint), out);
  take(now, membership_.set_state(now, RecordState::alive), out);
  for (const auto& [peer, instance] : sessions_)
    take(now, consensus_->on_session_up(now, peer), out);
  return out;
}

GossipEffects Gossip::begin_leave(TimePoint now, TimePoint deadline) {
  GossipEffects out;
  if (phase_ == Phase::leaving || phase_ == Phase::left) return out;
  leave_wanted_ = true;
  leave_deadline_ = deadline;
  if (merge_) take_merge(merge_->abort(now, "this node leaves"), out);
  advance(now, out);
  return out;
}

// Who is told to leave while all agree has its part in the end, if that comes before the deadline
// (rulings 35).
bool Gossip::waits_for_end(TimePoint now) const {
  const bool agrees = phase_ == Phase::freezing || phase_ == Phase::frozen;
  return agrees && !ended_ && now < leave_deadline_;
}

void Gossip::start_leaving(TimePoint now, GossipEffects& out) {
  phase_ = Phase::leaving;
  // After the end there is nothing to hand over.
  const bool ended = consensus_ && consensus_->certificate_message();
  if (ended) leave_deadline_ = now;
  if (consensus_) take(now, consensus_->stop(now, "this node leaves"), out);
  if (mixer_ && !ended) take(now, mixer_->begin_leave(now, leave_deadline_), out);
}

void Gossip::take_common(ConsensusEffects& effects, GossipEffects& out) {
  for (auto& sent : effects.send)
    out.emplace_back(Outgoing{sent.to, consensus::encode(sent.message)});
  for (auto& job : effects.jobs) out.emplace_back(std::move(job));
  for (auto& bad : effects.misbehaved)
    out.emplace_back(
        CloseSession{bad.peer, Error{Errc::bad_message, Doing::agreeing, std::move(bad.detail)}});
  for (const auto& id : effects.dial) {
    const auto member = membership_.find(id);
    if (member && !member->record.addresses.empty())
      out.emplace_back(WantedSession{id, member->record.addresses});
  }
}

void Gossip::take(TimePoint now, ConsensusEffects effects, GossipEffects& out) {
  take_common(effects, out);
  if (effects.freeze && phase_ == Phase::averaging) {
    phase_ = Phase::freezing;
    if (merge_) take_merge(merge_->abort(now, "the final consensus has begun"), out);
    take(now, mixer_->begin_drain(now, now + options_.drain), out);
    out.emplace_back(PauseTraining{});
    advance(now, out);
  }
  if (effects.not_taken) out.emplace_back(std::move(*effects.not_taken));
  if (effects.awaiting) out.emplace_back(*effects.awaiting);
  if (effects.finished && phase_ == Phase::averaging) {
    phase_ = Phase::frozen;  // the end that others made: what is trained from now on is for nobody
    take(now, mixer_->begin_drain(now, now + options_.drain), out);
    out.emplace_back(PauseTraining{});
  }
  if (effects.finished) {
    const auto participants = effects.finished->certificate.participants;
    out.emplace_back(std::move(*effects.finished));
    // Whom this node does not know (any more) it cannot hear acknowledge: not waited for.
    for (const auto& id : participants)
      if (id != self_ && !may_be_here(id))
        take(now, consensus_->on_member(now, id, consensus::Presence::gone), out);
  }
  if (effects.failed || effects.may_exit) {
    if (leave_wanted_ && waits_for_end(now)) leave_deadline_ = now;
    ended_ = true;
  }
  if (effects.failed)
    out.emplace_back(ConsensusFailed{consensus::RunKind::finish, std::move(*effects.failed)});
  if (effects.may_exit) out.emplace_back(MayExit{});
}

bool Gossip::may_be_here(const NodeId& id) const {
  const auto state = membership_.state_of(id);
  return state && *state != MemberState::dead && *state != MemberState::left;
}

void Gossip::take_merge(ConsensusEffects effects, GossipEffects& out) {
  // What a node of other settings signs for its own merges is wrong here, and rightly so.
  std::erase_if(effects.misbehaved, [&](const consensus::Misbehaviour& bad) {
    return !same_settings_.contains(bad.peer);
  });
  take_common(effects, out);
  if (effects.freeze) out.emplace_back(TakeContribution{consensus::RunKind::merge});
  if (effects.merged) out.emplace_back(std::move(*effects.merged));
  if (effects.failed)
    out.emplace_back(ConsensusFailed{consensus::RunKind::merge, std::move(*effects.failed)});
}

void Gossip::advance(TimePoint now, GossipEffects& out) {
  if (phase_ == Phase::freezing && training_paused_ && mixer_->drained()) {
    phase_ = Phase::frozen;
    out.emplace_back(TakeContribution{consensus::RunKind::finish});
  }
  const bool goes = phase_ == Phase::leaving || phase_ == Phase::left;
  if (leave_wanted_ && !goes && !waits_for_end(now)) start_leaving(now, out);
  if (phase_ == Phase::leaving && (!mixer_ || mixer_->drained() || now >= leave_deadline_)) {
    phase_ = Phase::left;
    leave_deadline_ = kNever;
    take(now, membership_.leave(now), out);
    out.emplace_back(Left{});
  }
}

}  // namespace starling::gossip
