// FinalConsensus, last part: the end that others make, and a run that nobody brings to its end
// (rulings 36 to 40).
#include "gossip/consensus/final_consensus.h"

#include <algorithm>
#include <utility>

namespace starling::gossip::consensus {

namespace {

// Signatures of certificates that one peer may have this node verify: two of the largest at once
// (a follower may change to one that outranks the first), and then so many a second (35 us each:
// one percent of a core). A certificate takes a megabyte and 140 ms on the io thread, and its
// maker's participants may all be invented.
constexpr double kMostToVerify = 2 * kMaxParticipants;
constexpr double kVerifiedASecond = 256;

}  // namespace

bool FinalConsensus::may_verify(std::size_t signatures) {
  // Sessions come and go; who asked for nothing lately need not be remembered.
  std::erase_if(verified_, [&](const auto& of) { return of.second.full(now_); });
  return verified_.try_emplace(from_, kVerifiedASecond, kMostToVerify)
      .first->second.try_take(now_, static_cast<double>(signatures));
}

void FinalConsensus::handle(const CertificateMessage& message) {
  if (options_.run.kind == RunKind::merge || phase_ == Phase::failed) return;
  const auto& theirs = message.certificate;
  if (certificate_ && certificate_->hash == theirs.hash) {
    if (phase_ == Phase::fetching) {
      fetch_.add_source(from_);
      take(fetch_.on_tick(now_));
    }
    return;
  }
  if (!is_of_this_run(theirs.fingerprint)) return;
  if (message.manifest != options_.manifest || message.chunks.size() != plan_.count()) {
    out_.misbehaved.push_back({from_, "showed a certificate of another model"});
    return;
  }
  if (!may_verify(theirs.signatures.size())) return;
  if (const auto genuine = verify(message, options_.fingerprint, verifier_); !genuine) {
    out_.misbehaved.push_back({from_, "showed a false certificate: " + genuine.error().detail});
    return;
  }
  if (certificate_) {
    const bool own = std::ranges::binary_search(certificate_->participants, self_);
    // Followers take the one that counts while they still can; what is finished stays.
    if (own || phase_ != Phase::fetching) return tell_not_taken(theirs, 0);
    // The other one is not shown again, and nobody may be left who sends the model of this one.
    if (!is_stranded()) {
      const bool is_better = outranks(theirs, *certificate_);
      keep(is_better ? HeldBack{*certificate_message(), shown_by_} : HeldBack{message, from_});
      if (!is_better) return tell_not_taken(theirs, 0);
    }
  } else if (is_outnumbered(theirs)) {
    return hold_back(message);
  }
  accept(message);
}

// Participants that this node knows for members: an id costs its maker nothing.
std::size_t FinalConsensus::count_signers(const Certificate& certificate) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      certificate.participants, [&](const NodeId& id) { return members_.contains(id); }));
}

// Members, this one included, that would lose what they learned to a model in which they had no
// part: they train, and do not hold it.
std::size_t FinalConsensus::count_others(const Certificate& certificate) const {
  const auto& holders = ledger_.acknowledged();
  return 1 + static_cast<std::size_t>(std::ranges::count_if(members_, [&](const auto& member) {
           const auto& [id, trains] = member;
           const auto at = holders.find(id);
           return trains && !std::ranges::binary_search(certificate.participants, id) &&
                  (at == holders.end() || at->second.hash != certificate.hash);
         }));
}

// A certificate ends the run of those who agreed and of those they outnumber, not that of a swarm
// which a few of its members, or one that was cut off, ended without it (decision 0040). Whoever
// has begun to agree when it is shown takes it all the same: the end is to be one. But one that is
// kept is weighed in every phase, or it would be taken at the first Finish, to which its holders
// answer with it. Who signed it itself, in an earlier life, takes it at once.
bool FinalConsensus::is_outnumbered(const Certificate& certificate) const {
  if (!options_.contributes || withdrawn_) return false;
  if (std::ranges::binary_search(certificate.participants, self_)) return false;
  if (phase_ != Phase::idle && !is_held_back(certificate.hash)) return false;
  return count_signers(certificate) < count_others(certificate);
}

void FinalConsensus::tell_not_taken(const Certificate& certificate, std::size_t others) {
  if (told_not_taken_ == certificate.hash) return;
  told_not_taken_ = certificate.hash;
  out_.not_taken = NotTaken{certificate, others};
}

bool FinalConsensus::is_held_back(const Hash& hash) const {
  return held_back_ && held_back_->message.certificate.hash == hash;
}

void FinalConsensus::hold_back(const CertificateMessage& message) {
  tell_not_taken(message.certificate, count_others(message.certificate));
  keep({message, from_});
}

void FinalConsensus::keep(HeldBack shown) {
  if (!held_back_) {
    held_back_ = std::move(shown);
    return;
  }
  const auto& certificate = shown.message.certificate;
  const auto& held = held_back_->message.certificate;
  const bool same = certificate.hash == held.hash;
  const auto there = count_signers(held);
  const auto here = count_signers(certificate);
  if (here > there || (here == there && (same || outranks(certificate, held))))
    held_back_ = std::move(shown);
  else if (same && !sessions_.contains(held_back_->from))
    held_back_->from = shown.from;  // the same model, though fewer signed for it
}

// Members left, died or took the model themselves.
void FinalConsensus::reconsider_held_back() {
  if (!held_back_ || certificate_ || over() || !sessions_.contains(held_back_->from)) return;
  if (!is_outnumbered(held_back_->message.certificate)) take_held_back();
}

void FinalConsensus::take_held_back() {
  const HeldBack held = *std::exchange(held_back_, std::nullopt);
  from_ = held.from;
  accept(held.message);
}

// Shown a certificate: the own epoch is dropped, what is missing is fetched by hash.
void FinalConsensus::accept(const CertificateMessage& message) {
  // Or it would be fetched a second time, as in vain as the first.
  if (is_held_back(message.certificate.hash)) held_back_.reset();
  certificate_ = message.certificate;
  certified_ = message.chunks;
  shown_by_ = from_;
  agreed_.reset();
  reduction_.reset();
  if (!std::ranges::binary_search(certificate_->participants, self_)) role_ = Role::follower;
  phase_ = Phase::fetching;
  last_progress_ = now_;
  shown_ = sessions_;
  flood(message, from_);
  fetch_.begin(certified_);
  fetch_.add_source(from_);
  // Who said so while it was not taken does not say again that it holds the model.
  for (const auto& [id, said] : ledger_.acknowledged())
    if (said.hash == certificate_->hash && sessions_.contains(id))
      take(fetch_.add_holder(now_, id));
  take(fetch_.on_tick(now_));
}

void FinalConsensus::advance_fetching() {
  if (fetch_.complete()) return finish();
  if (now_ < last_progress_ + following_limit()) return;
  if (trains_on()) return start_over();
  if (held_back_ && sessions_.contains(held_back_->from)) return take_held_back();
  end_failed({Errc::timed_out, Doing::transferring_state,
              "nobody sends the " + std::to_string(fetch_.missing()) +
                  " missing chunks of the certified model"});
}

// Nobody here has the certified model, and none of it came for long: those who had it are gone.
// This node keeps others from an end of their own no longer.
bool FinalConsensus::is_stranded() const {
  return phase_ == Phase::fetching && !fetch_.has_holders() &&
         now_ >= last_progress_ + options_.stall_limit;
}

void FinalConsensus::advance_following() {
  const bool late = now_ >= entered_ + agree_deadline();
  const bool settled = !considered_ && now_ >= last_heard_ + options_.settle;
  const bool led = !ledger_.converted().empty();  // somebody came to this conclusion before us
  if ((late || settled || led) && nobody_takes_part()) {
    considered_ = true;
    if (late || led || is_closed(Missing::anybody)) {
      role_ = Role::participant;
      phase_ = Phase::collecting;
      entered_ = now_;
      return restate();
    }
  }
  if (options_.run.kind == RunKind::merge && !ledger_.participants().empty())
    return end_failed({Errc::cancelled, Doing::merging,
                       "the others merge without this node: " +
                           (why_.empty() ? "it has only just joined" : why_)});
  if (now_ < last_progress_ + following_limit()) return;
  if (trains_on()) return start_over();
  // Those who went on without this node are gone, or as far from it as ever.
  if (may_end_without()) return enter_epoch(epoch_.next(), {});
  if (!options_.contributes)
    why_ =
        "this node began when the budget was spent, and has no trained replica to certify; start "
        "a node that has final/ of this run, or begin another run with an empty --dir";
  end_failed({Errc::timed_out, Doing::agreeing, "no certificate came: " + why_});
}

// Whether nothing of this node's replica went into the run: it has signed no hash either.
bool FinalConsensus::trains_on() const {
  return !frozen_ && options_.contributes && options_.run.kind == RunKind::finish;
}

// Whether this node has a frozen contribution that may count in another epoch.
bool FinalConsensus::may_end_without() const {
  return frozen_ && !withdrawn_ && !ledger_.is_excluded(self_) &&
         options_.run.kind == RunKind::finish;
}

// The others vanished before anything came of it, or with the model that they had certified, and
// this node still trains: as if it had never heard of them. It takes their model all the same if
// one of them comes back before this node has made one.
void FinalConsensus::start_over() {
  phase_ = Phase::idle;
  started_over_ = now_;
  std::erase_if(gone_, [&](const NodeId& id) { return !members_.contains(id); });
  epoch_ = {};
  ledger_.start_over();
  certificate_.reset();
  certified_.clear();
  fetch_.begin({});
  shown_.clear();
  rule_ = options_.rule;
  took_median_.clear();
  role_ = standing_;
  revision_ = 0;
  // What an earlier life of this process had frozen is of that run; the replica trains on.
  withdrawn_ = false;
  reconsider_held_back();
  if (certificate_) return;
  // Somebody asked for the end meanwhile, and nobody else is left who would bring it about.
  if (std::exchange(ordered_, false)) join(Epoch{1}, FinishReason::command, standing_);
}

// Whether nobody is at work on the run that this node follows, as far as it can hear: whoever is
// says so in each stall_limit.
bool FinalConsensus::is_deserted() const {
  if (phase_ == Phase::fetching) return is_stranded();
  return phase_ == Phase::following && now_ >= last_progress_ + 2 * options_.stall_limit;
}

// Whether a neighbour has given the run up that this node still follows, and begins another, or
// who had frozen goes on in a later epoch. The neighbour says so itself: what it said in earlier
// epochs others may tell at any time.
bool FinalConsensus::begins_anew(const Finish& message) const {
  const bool begins = message.signer == from_ && message.round.epoch == Epoch{1};
  return (begins || message.round.epoch > epoch_) && message.role == Role::participant &&
         !ledger_.holds(message) &&
         check(message, message.signer, verifier_, options_.fingerprint) == Verdict::valid;
}

Duration FinalConsensus::following_limit() const {
  return 2 * options_.longest_deadline + options_.stall_limit;
}

}  // namespace starling::gossip::consensus
