// Merge: all replicas to their exact mean in the middle of a run, without stopping it (rulings 39).
//
//   state     event                                    next      effect
//   -------   --------------------------------------   -------   ------------------------------
//   idle      request                                  running   MergeRequest to all; snapshot
//   idle      MergeRequest heard                       running   forwarded; takes part
//   running   everybody signed the same hash           idle      merged: master += x* - y
//   running   a death, a refusal, a deadline, a        idle      failed; MergeAbort to all
//             Finish (abort), MergeAbort heard
//   running   others closed a set without this node    idle      failed, and nobody else is told
#pragma once

#include "gossip/consensus/final_consensus.h"
#include "gossip/consensus/jobs.h"
#include "gossip/consensus/messages.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/signing.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace starling::gossip::consensus {

// Runs one merge at a time, each as a FinalConsensus of its own number that has one epoch, no
// certificate, and a snapshot in place of the freeze: the `freeze` effect asks for a copy of the
// replica, on_frozen() says that it is taken.
//
// Owned by the gossip shell, one per process; io thread. Everybody signs the hash of the result
// before anybody applies it, so a node that dies on the way aborts the merge at all; only a death
// after the last signature leaves it applied at some, which costs nothing but the mean's exactness.
class Merge {
 public:
  // `options.run` is ignored. `signer` and `verifier` must outlive this object.
  Merge(ConsensusOptions options, const Signer& signer, const Verifier& verifier);

  // A person wants a merge; `number` is random and not 0.
  //
  // Errors:  already_exists while one runs.
  Result<ConsensusEffects> request(TimePoint now, std::uint64_t number);
  // A Finish, a leave, or the snapshot failed.
  ConsensusEffects abort(TimePoint now, std::string reason);

  ConsensusEffects on_session_up(TimePoint now, const NodeId& peer);
  ConsensusEffects on_session_down(TimePoint now, const NodeId& peer);
  ConsensusEffects on_member_gone(TimePoint now, const NodeId& member);
  ConsensusEffects on_standing(TimePoint now, Role role);
  // P, as the next merge states it.
  void on_samples(std::uint64_t samples) { samples_ = samples; }
  ConsensusEffects on_message(TimePoint now, const NodeId& from, const ConsensusMessage& message);
  ConsensusEffects on_refused(TimePoint now, const NodeId& peer, const ConsensusMessage& message);
  ConsensusEffects on_frozen(TimePoint now);
  ConsensusEffects on_job_done(TimePoint now, const JobOutcome& outcome);
  ConsensusEffects on_tick(TimePoint now);

  [[nodiscard]] TimePoint next_deadline() const;
  [[nodiscard]] bool running() const { return run_.has_value(); }

 private:
  // Merges that are over: their late messages start nothing. The oldest are forgotten.
  static constexpr std::size_t kRemembered = 64;

  ConsensusEffects begin(TimePoint now, const MergeRequest& request,
                         const std::optional<NodeId>& from);
  ConsensusEffects settle(ConsensusEffects effects);
  void forget_run();
  void flood(ConsensusEffects& effects, const ConsensusMessage& message,
             const std::optional<NodeId>& except) const;

  ConsensusOptions options_;
  const Signer& signer_;
  const Verifier& verifier_;
  Role standing_ = Role::participant;
  std::uint64_t samples_ = 0;
  std::set<NodeId> sessions_;
  std::optional<MergeRequest> request_;
  std::optional<FinalConsensus> run_;
  std::vector<std::uint64_t> over_;
};

}  // namespace starling::gossip::consensus

namespace starling::gossip {
using consensus::Merge;
}  // namespace starling::gossip
