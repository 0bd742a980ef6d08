// FinalConsensus, third part: from the reduced chunks to the certificate, and the end of the
// process (design section 8, step 8; rulings 36 to 40).
#include "gossip/consensus/final_consensus.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::gossip::consensus {
namespace {

// Messages for one peer that wait to be sent again: transport has no more under way at a time. What
// a peer refuses beyond that is left to the stall limit.
constexpr std::ptrdiff_t kMostReturned = 32;

// Chunks that are being read for others at a time; further requests are repeated by who asked.
constexpr std::size_t kMostLoads = 64;

// The round of a message of the reduction.
std::optional<RoundId> round_of_bulk(const ConsensusMessage& message) {
  return std::visit(
      [](const auto& m) -> std::optional<RoundId> {
        if constexpr (requires {
                        m.round;
                        m.values;
                      })
          return m.round;
        return std::nullopt;
      },
      message);
}

}  // namespace

void FinalConsensus::take(ReductionEffects effects) {
  for (auto& [to, message] : effects.send) send(to, std::move(message));
  for (auto& job : effects.jobs) {
    if (const auto* load = std::get_if<LoadJob>(&job)) loads_.push_back(load->to);
    out_.jobs.push_back(std::move(job));
  }
  if (reduction_ && reduction_->progress() != progress_seen_) {
    progress_seen_ = reduction_->progress();
    last_progress_ = now_;
  }
  if (!effects.fault) return;
  auto& fault = *effects.fault;
  if (fault.reason == RefusalReason::bad_bytes)
    out_.misbehaved.push_back({fault.accused, fault.detail});
  if (fault.reason == RefusalReason::not_finite) withdrawn_ = true;
  why_ = fault.detail;
  refuse(fault.reason, fault.chunk, fault.accused);
}

void FinalConsensus::take(FetchEffects effects) {
  for (auto& [to, message] : effects.send) send(to, std::move(message));
  for (auto& job : effects.jobs) out_.jobs.push_back(std::move(job));
  for (const auto& peer : effects.misbehaved)
    out_.misbehaved.push_back({peer, "sent a chunk that is not the certified one"});
}

void FinalConsensus::advance_reducing() {
  if (!reduction_->complete()) return;
  fault::pass("consensus.reduced");
  own_hash_ = model_hash(options_.manifest, reduction_->hashes());
  phase_ = Phase::checking;
  CheckJob job{.target = {{options_.run, epoch_}, 0}, .own_share = 0};
  if (agreed_->rule == Rule::mean) {
    std::uint64_t all = 0;
    for (const auto& member : agreed_->members) all += member.weight;
    job.own_share = static_cast<double>(options_.weight) / static_cast<double>(all);
  }
  out_.jobs.emplace_back(job);
}

Certificate FinalConsensus::draft() const {
  Certificate certificate{.epoch = epoch_,
                          .fingerprint = options_.fingerprint,
                          .hash = *own_hash_,
                          .set = agreed_->set,
                          .participants = {},
                          .signatures = {},
                          .samples = agreed_->samples,
                          .model = options_.model};
  for (const auto& member : agreed_->members) certificate.participants.push_back(member.id);
  return certificate;
}

void FinalConsensus::on_checked(const ReplicaChecked& checked) {
  if (!(checked.worst <= 1.0)) {
    why_ = "the result differs from the own replica by " + std::to_string(checked.worst) +
           " times what is plausible, in " +
           (plan_.kind(checked.chunk) == ChunkKind::parameters ? "tensor " : "BatchNorm channel ") +
           std::to_string(checked.tensor);
    return refuse(RefusalReason::sanity, checked.chunk, reduction_->root(checked.chunk));
  }
  phase_ = Phase::certifying;
  last_progress_ = now_;
  claim_ = claim_of(draft());
  HashSignature statement{.round = {options_.run, epoch_},
                          .signer = self_,
                          .claim = claim_,
                          .hash = *own_hash_,
                          .signature = {}};
  sign(statement, signer_, options_.fingerprint);
  fault::pass("consensus.signed");
  ledger_.add(statement);
  flood(statement, std::nullopt);
}

void FinalConsensus::refuse(RefusalReason reason, std::uint32_t chunk, const NodeId& accused) {
  Refusal refusal{.round = {options_.run, epoch_},
                  .signer = self_,
                  .reason = reason,
                  .rule = rule_,
                  .chunk = chunk,
                  .accused = accused,
                  .signature = {}};
  sign(refusal, signer_, options_.fingerprint);
  ledger_.add(refusal);
  flood(refusal, std::nullopt);
  apply(refusal);
}

// What a refusal, own or heard, means for the next epoch (rulings 37).
void FinalConsensus::apply(const Refusal& refusal) {
  const bool of_this_set = refusal.round.epoch == epoch_ && is_member(refusal.signer);
  if (refusal.reason == RefusalReason::sanity && refusal.rule != Rule::median) {
    const auto at = ledger_.finishes().find(refusal.signer);
    if (at != ledger_.finishes().end() && at->second.role == Role::participant)
      rule_ = Rule::median;
  } else if (refusal.reason != RefusalReason::bad_bytes) {
    // Not even the median is near its replica, or its replica is broken: the others go on.
    ledger_.exclude(refusal.signer);
    if (refusal.signer == self_) withdrawn_ = true;
    if (end_where_median_is_refused()) return;
  }
  if (of_this_set)
    enter_epoch(epoch_.next(), refusal.signer == self_
                                   ? why_
                                   : short_form(refusal.signer) + " refused the result");
}

// Ends the run where half of those who took the median refuse it: which half lies nobody can tell,
// and a model that few stand for, or one alone, is not what the others are to adopt.
bool FinalConsensus::end_where_median_is_refused() {
  const auto refused = std::ranges::count_if(ledger_.refusals(), [&](const auto& entry) {
    const auto& refusal = entry.second;
    return refusal.reason == RefusalReason::sanity && refusal.rule == Rule::median &&
           took_median_.contains(refusal.signer);
  });
  if (refused == 0 || 2 * static_cast<std::size_t>(refused) < took_median_.size()) return false;
  end_failed({Errc::replicas_differ, Doing::certifying,
              std::to_string(refused) + " of " + std::to_string(took_median_.size()) +
                  " participants refused even the median, which is too far from their replicas: "
                  "none is certified, each node keeps its own"});
  return true;
}

void FinalConsensus::advance_certifying() {
  const auto& signatures = ledger_.signatures();
  auto certificate = draft();
  bool all_equal = true;
  for (const auto& id : certificate.participants) {
    const auto at = signatures.find(id);
    if (at == signatures.end()) {
      if (certificate.participants.size() - signatures.size() > 1 ||
          !fault::planted("consensus.one_signature_missing"))
        return;
      certificate.signatures.emplace_back();
      continue;
    }
    if (at->second.hash != certificate.hash || at->second.claim != claim_) all_equal = false;
    certificate.signatures.push_back(at->second.signature);
  }
  if (!all_equal) {
    if (epoch_.value == options_.max_epoch)
      return end_failed(
          {Errc::replicas_differ, Doing::certifying, "participants signed different hashes"});
    return enter_epoch(epoch_.next(), "participants signed different hashes");
  }
  if (options_.run.kind == RunKind::merge) {
    phase_ = Phase::done;
    out_.merged = Merged{certificate.participants, certificate.samples};
    return;
  }
  fault::pass("consensus.certified");
  certified_ = reduction_->hashes();
  certificate_ = std::move(certificate);
  // Participants make their own from the same signatures; the others have to be shown.
  for (const auto& peer : sessions_)
    if (!is_member(peer) && shown_.insert(peer).second) show_certificate(peer);
  phase_ = Phase::fetching;
  last_progress_ = now_;
  fetch_.begin(certified_);
}

// And who has the model already: whoever comes late waits for nobody in vain.
void FinalConsensus::show_certificate(const NodeId& peer) {
  send(peer, CertificateMessage{*certificate_, options_.manifest, certified_});
  for (const auto& [id, message] : ledger_.acknowledged()) send(peer, message);
}

void FinalConsensus::show_refused() {
  std::vector<NodeId> again;
  for (const auto& [peer, since] : refused_)
    if (now_ >= since + options_.show_again) again.push_back(peer);
  for (const auto& peer : again) {
    refused_.erase(peer);
    if (certificate_ && !is_stranded()) show_certificate(peer);
  }
}

// What came to nothing at its receiver goes out again, over the session that there is then. Not at
// once: a peer without memory would refuse it as fast as it is sent.
void FinalConsensus::keep_returned(const NodeId& peer, const ConsensusMessage& message) {
  if (!sessions_.contains(peer)) return;
  // Who signed the hash has it all; who fetches the model asks again only after a long time.
  const bool wanted = certificate_
                          ? std::holds_alternative<Chunk>(message)
                          : reduction_ && round_of_bulk(message) == RoundId{options_.run, epoch_};
  if (!wanted) return;
  if (const auto* chunk = std::get_if<Chunk>(&message)) forget_returned(peer, chunk->chunk);
  if (std::ranges::count(returned_, peer, &Returned::peer) < kMostReturned)
    returned_.push_back({peer, now_, message});
}

void FinalConsensus::send_returned() {
  while (!returned_.empty() && now_ >= returned_.front().since + options_.send_again) {
    auto returned = std::move(returned_.front());
    returned_.pop_front();
    const auto* const chunk = std::get_if<Chunk>(&returned.message);
    if (chunk != nullptr && loads_.size() >= kMostLoads) {
      returned.since = now_;
      returned_.push_back(std::move(returned));
    } else if (chunk != nullptr)
      load(returned.peer, chunk->chunk, chunk->hash);
    else if (reduction_ && !certificate_)
      take(reduction_->send_again(returned.peer, returned.message));
  }
}

// A session that comes up says everything again.
void FinalConsensus::forget_returned(const NodeId& peer) {
  std::erase_if(returned_, [&](const Returned& returned) { return returned.peer == peer; });
}

// A chunk that is sent now, or waits anew.
void FinalConsensus::forget_returned(const NodeId& peer, std::uint32_t chunk) {
  std::erase_if(returned_, [&](const Returned& returned) {
    const auto* const kept = std::get_if<Chunk>(&returned.message);
    return returned.peer == peer && kept != nullptr && kept->chunk == chunk;
  });
}

void FinalConsensus::handle(const ChunkRequest& message) {
  if (message.chunk >= plan_.count()) return;
  if (message.hash.is_zero()) {
    if (reduction_ && message.round.epoch == epoch_ && loads_.size() < kMostLoads)
      take(reduction_->on_request(from_, message));
    return;
  }
  load(from_, message.chunk, message.hash);
}

// Reads a chunk of the certified model for somebody who fetches it.
void FinalConsensus::load(const NodeId& to, std::uint32_t chunk, const Hash& hash) {
  if (!certificate_ || loads_.size() >= kMostLoads || !store_.holds(chunk, hash)) return;
  forget_returned(to, chunk);
  loads_.push_back(to);
  out_.jobs.emplace_back(
      LoadJob{.target = {{options_.run, Epoch{0}}, chunk}, .to = to, .hash = hash});
}

void FinalConsensus::handle(const Chunk& message) {
  if (phase_ == Phase::fetching) take(fetch_.on_chunk(now_, from_, message));
}

void FinalConsensus::finish() {
  fault::pass("consensus.finished");
  const bool own = std::ranges::binary_search(certificate_->participants, self_);
  own_hash_ = certificate_->hash;
  phase_ = Phase::lingering;
  finished_at_ = now_;
  held_back_.reset();
  out_.finished = Finished{*certificate_, own ? Role::participant : Role::follower};
  // Those who came while this node was stranded know of nothing.
  for (const auto& peer : sessions_)
    if (!own && shown_.insert(peer).second) show_certificate(peer);
}

// Signs and tells that this node holds the certified model, on its disk.
void FinalConsensus::acknowledge() {
  Acknowledge statement{.round = {options_.run, certificate_->epoch},
                        .signer = self_,
                        .hash = certificate_->hash,
                        .signature = {}};
  sign(statement, signer_, options_.fingerprint);
  ledger_.add(statement);
  flood(statement, std::nullopt);
}

// Who has neither acknowledged nor is known to be gone.
bool FinalConsensus::is_awaited(const NodeId& id) const {
  if (id == self_ || gone_.contains(id) || ledger_.is_excluded(id)) return false;
  if (const auto at = away_.find(id);
      at != away_.end() && now_ >= at->second + options_.reconnect_grace)
    return false;
  return !ledger_.acknowledged().contains(id);
}

// Whoever has a session is shown the certificate over it. It may be fetching the model here, known
// as a follower or not, and may have a session with nobody else.
bool FinalConsensus::is_fetched_from() const {
  return std::ranges::any_of(
      sessions_, [&](const NodeId& peer) { return !ledger_.acknowledged().contains(peer); });
}

bool FinalConsensus::everybody_acknowledged() const {
  const auto missing = [&](const NodeId& id) {
    return id != self_ && !ledger_.acknowledged().contains(id);
  };
  if (std::ranges::any_of(certificate_->participants, missing)) return false;
  for (const auto& [id, finish] : ledger_.finishes())
    if (finish.role == Role::follower && missing(id) && !gone_.contains(id)) return false;
  return true;
}

void FinalConsensus::advance_lingering() {
  const bool waiting =
      !stored_ || std::ranges::any_of(certificate_->participants,
                                      [&](const NodeId& id) { return is_awaited(id); });
  if (waiting && now_ < finished_at_ + options_.longest_deadline) {
    settled_at_.reset();
    return;
  }
  if (!settled_at_) settled_at_ = now_;
  // Participants stay for all who fetch late, a follower for those to whom it passed it on.
  const bool stays = (is_fetched_from() && !fault::planted("consensus.exit_while_fetched_from")) ||
                     (role_ == Role::participant && !everybody_acknowledged());
  if (stays && now_ < *settled_at_ + options_.linger) return;
  phase_ = Phase::done;
  out_.may_exit = true;
}

TimePoint FinalConsensus::linger_deadline() const {
  if (settled_at_) return *settled_at_ + options_.linger;
  TimePoint next = finished_at_ + options_.longest_deadline;
  for (const auto& [peer, since] : away_) {
    const auto due = since + options_.reconnect_grace;
    if (due > now_) next = std::min(next, due);
  }
  return next;
}

void FinalConsensus::end_failed(Error error) {
  phase_ = Phase::failed;
  why_ = error.detail;
  agreed_.reset();
  reduction_.reset();
  out_.failed = std::move(error);
}

Result<void> FinalConsensus::restore(const CertificateMessage& held) {
  if (phase_ != Phase::idle)
    return fail(Errc::bad_argument, Doing::certifying, "the consensus has begun already");
  if (held.manifest != options_.manifest || held.chunks.size() != plan_.count())
    return fail(Errc::corrupt, Doing::certifying, "the stored certificate is of another model");
  TRY_VOID(verify(held, options_.fingerprint, verifier_));
  certificate_ = held.certificate;
  certified_ = held.chunks;
  own_hash_ = certificate_->hash;
  for (std::uint32_t chunk = 0; chunk < plan_.count(); ++chunk)
    store_.set(chunk, certified_[chunk]);
  if (!std::ranges::binary_search(certificate_->participants, self_)) role_ = Role::follower;
  acknowledge();
  out_ = {};  // no session is up: it is told with the certificate
  phase_ = Phase::done;
  return {};
}

}  // namespace starling::gossip::consensus
