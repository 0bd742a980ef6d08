#include "gossip/consensus/merge.h"

#include "gossip/consensus/message_codec.h"

#include <algorithm>
#include <utility>

namespace starling::gossip::consensus {

Merge::Merge(ConsensusOptions options, const Signer& signer, const Verifier& verifier)
    : options_(std::move(options)), signer_(signer), verifier_(verifier) {}

void Merge::flood(ConsensusEffects& effects, const ConsensusMessage& message,
                  const std::optional<NodeId>& except) const {
  for (const auto& peer : sessions_)
    if (peer != except) effects.send.push_back({peer, message});
}

Result<ConsensusEffects> Merge::request(TimePoint now, std::uint64_t number) {
  if (run_) return fail(Errc::already_exists, Doing::merging, "a merge is under way");
  if (number == 0 || std::ranges::find(over_, number) != over_.end())
    return fail(Errc::bad_argument, Doing::merging, "a merge needs a new number");
  MergeRequest request{.number = number, .signer = {}, .signature = {}};
  sign(request, signer_, options_.fingerprint);
  return begin(now, request, std::nullopt);
}

ConsensusEffects Merge::begin(TimePoint now, const MergeRequest& request,
                              const std::optional<NodeId>& from) {
  request_ = request;
  auto options = options_;
  options.run = {RunKind::merge, request.number};
  run_.emplace(std::move(options), signer_, verifier_);
  ConsensusEffects effects;
  flood(effects, request, from);
  effects.append(run_->on_standing(now, standing_));
  run_->on_samples(samples_);
  for (const auto& peer : sessions_) effects.append(run_->on_session_up(now, peer));
  effects.append(run_->on_finish_command(now));
  return settle(std::move(effects));
}

void Merge::forget_run() {
  over_.push_back(request_->number);
  if (over_.size() > kRemembered) over_.erase(over_.begin());
  run_.reset();
  request_.reset();
}

// Ends the run where the effects say that it is over.
ConsensusEffects Merge::settle(ConsensusEffects effects) {
  if (!run_ || (!effects.merged && !effects.failed)) return effects;
  if (effects.failed && run_->state().role == Role::participant) {
    MergeAbort statement{.number = request_->number,
                         .signer = {},
                         .reason = effects.failed->detail.substr(0, kMaxAbortReason),
                         .signature = {}};
    sign(statement, signer_, options_.fingerprint);
    flood(effects, statement, std::nullopt);
  }
  forget_run();
  return effects;
}

ConsensusEffects Merge::abort(TimePoint now, std::string reason) {
  if (!run_) return {};
  return settle(run_->stop(now, std::move(reason)));
}

ConsensusEffects Merge::on_session_up(TimePoint now, const NodeId& peer) {
  sessions_.insert(peer);
  if (!run_) return {};
  ConsensusEffects effects;
  effects.send.push_back({peer, *request_});
  effects.append(run_->on_session_up(now, peer));
  return settle(std::move(effects));
}

ConsensusEffects Merge::on_session_down(TimePoint now, const NodeId& peer) {
  sessions_.erase(peer);
  if (!run_) return {};
  return settle(run_->on_session_down(now, peer));
}

ConsensusEffects Merge::on_member_gone(TimePoint now, const NodeId& member) {
  if (!run_) return {};
  return settle(run_->on_member(now, member, Presence::gone));
}

ConsensusEffects Merge::on_standing(TimePoint now, Role role) {
  standing_ = role;
  if (!run_) return {};
  return settle(run_->on_standing(now, role));
}

ConsensusEffects Merge::on_message(TimePoint now, const NodeId& from,
                                   const ConsensusMessage& message) {
  const auto run = run_of(message);
  if (run.kind != RunKind::merge || std::ranges::find(over_, run.number) != over_.end()) return {};
  if (const auto* request = std::get_if<MergeRequest>(&message)) {
    if (run_) return {};
    if (check(*request, request->signer, verifier_, options_.fingerprint) != Verdict::valid) {
      ConsensusEffects effects;
      effects.misbehaved.push_back({from, "forwarded a request with a wrong signature"});
      return effects;
    }
    return begin(now, *request, from);
  }
  if (!run_ || request_->number != run.number) return {};
  if (const auto* abort = std::get_if<MergeAbort>(&message)) {
    ConsensusEffects effects;
    if (check(*abort, abort->signer, verifier_, options_.fingerprint) != Verdict::valid) {
      effects.misbehaved.push_back({from, "forwarded an abort with a wrong signature"});
      return effects;
    }
    flood(effects, message, from);
    effects.append(run_->stop(now, short_form(abort->signer) + " ended it: " + abort->reason));
    if (effects.failed) forget_run();
    return effects;
  }
  return settle(run_->on_message(now, from, message));
}

ConsensusEffects Merge::on_refused(TimePoint now, const NodeId& peer,
                                   const ConsensusMessage& message) {
  if (!run_ || run_of(message) != RunId{RunKind::merge, request_->number}) return {};
  return settle(run_->on_refused(now, peer, message));
}

ConsensusEffects Merge::on_frozen(TimePoint now) {
  if (!run_) return {};
  return settle(run_->on_frozen(now));
}

ConsensusEffects Merge::on_job_done(TimePoint now, const JobOutcome& outcome) {
  if (!run_ || outcome.target.round.run.number != request_->number) return {};
  return settle(run_->on_job_done(now, outcome));
}

ConsensusEffects Merge::on_tick(TimePoint now) {
  if (!run_) return {};
  return settle(run_->on_tick(now));
}

TimePoint Merge::next_deadline() const { return run_ ? run_->next_deadline() : kNever; }

}  // namespace starling::gossip::consensus
