#include "gossip/consensus/final_consensus.h"

#include "node/base/check.h"
#include "node/base/fault.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace starling::gossip::consensus {
namespace {

template <class T>
void append_all(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

std::string_view name_of(Phase phase) {
  static constexpr std::array<std::string_view, 12> kNames{
      "idle",       "collecting", "confirming", "freezing",  "reducing", "checking",
      "certifying", "following",  "fetching",   "lingering", "done",     "failed"};
  return kNames[static_cast<std::size_t>(phase)];
}

void ConsensusEffects::append(ConsensusEffects other) {
  append_all(send, std::move(other.send));
  append_all(jobs, std::move(other.jobs));
  append_all(dial, std::move(other.dial));
  append_all(misbehaved, std::move(other.misbehaved));
  if (other.freeze) freeze = other.freeze;
  if (other.not_taken) not_taken = std::move(other.not_taken);
  if (other.awaiting) awaiting = other.awaiting;
  if (other.finished) finished = std::move(other.finished);
  if (other.merged) merged = std::move(other.merged);
  if (other.failed) failed = std::move(other.failed);
  may_exit = may_exit || other.may_exit;
}

FinalConsensus::FinalConsensus(ConsensusOptions options, const Signer& signer,
                               const Verifier& verifier)
    : options_(std::move(options)),
      signer_(signer),
      verifier_(verifier),
      self_(signer.id()),
      plan_(options_.shape),
      withdrawn_(!options_.contributes),
      store_(plan_.count()),
      fetch_(options_.run, store_) {
  STARLING_CHECK(options_.weight >= 1 && options_.weight <= options_.most_weight);
  STARLING_CHECK_OP(options_.most_weight, <=, kMaxWeight);
  STARLING_CHECK(options_.model.size() <= kMaxModelName);
  STARLING_CHECK(plan_.count() >= 1 && plan_.count() <= kMaxChunks);
  rule_ = options_.rule;
  options_.max_epoch = std::clamp<std::uint64_t>(options_.max_epoch, 1, kMaxEpoch);
  if (options_.run.kind == RunKind::merge) {
    options_.max_epoch = 1;
    options_.admin.reset();
  }
}

// Runs one event, lets the phase move on as far as it can, and returns what came of it.
template <class Event>
ConsensusEffects FinalConsensus::on_event(TimePoint now, Event&& event) {
  now_ = now;
  event();
  advance();
  return std::exchange(out_, {});
}

ConsensusEffects FinalConsensus::on_finish_command(TimePoint now, std::optional<Signature> order) {
  return on_event(now, [&] {
    if (options_.contributes && !is_ordered(order)) return;
    keep_order(order);
    ordered_ = true;
    if (phase_ == Phase::idle) begin(FinishReason::command);
  });
}

ConsensusEffects FinalConsensus::on_progress(TimePoint now, std::uint64_t done,
                                             std::uint64_t budget) {
  return on_event(now, [&] {
    done_ = std::max(done_, done);
    budget_ = budget;
    if (options_.run.kind == RunKind::merge || budget == 0) return;
    // Somebody said so when less was spent here: it is not said again.
    const bool was_said = options_.admin && is_spent() && ledger_.latest() > epoch_;
    if (phase_ == Phase::idle && (done_ >= budget || was_said)) begin(FinishReason::budget);
    reconsider_role();
  });
}

ConsensusEffects FinalConsensus::on_standing(TimePoint now, Role role) {
  return on_event(now, [&] {
    standing_ = role;
    reconsider_role();
  });
}

ConsensusEffects FinalConsensus::on_session_up(TimePoint now, const NodeId& peer) {
  return on_event(now, [&] {
    sessions_.insert(peer);
    parted_.erase(peer);
    left_out_ = false;  // one more way to the others
    away_.erase(peer);
    gone_.erase(peer);
    lost_.erase(peer);
    shown_.erase(peer);
    forget_returned(peer);
    considered_ = false;
    if (phase_ == Phase::idle || phase_ == Phase::failed) return;
    if (certificate_) {
      if (!is_stranded()) show_certificate(peer);
      return;
    }
    tell_everything(peer);
    if (phase_ == Phase::collecting) restate();
    if (reduction_) take(reduction_->on_session_up(peer));
  });
}

ConsensusEffects FinalConsensus::on_session_down(TimePoint now, const NodeId& peer) {
  return on_event(now, [&] {
    sessions_.erase(peer);
    if (members_.contains(peer)) parted_.insert(peer);
    refused_.erase(peer);
    forget_returned(peer);
    foreign_.erase(peer);
    shown_.erase(peer);
    if (under_way()) away_.insert_or_assign(peer, now);
    considered_ = false;
    if (phase_ == Phase::collecting) restate();
    if (phase_ == Phase::fetching) take(fetch_.remove_source(now, peer));
  });
}

ConsensusEffects FinalConsensus::on_member(TimePoint now, const NodeId& member, Presence presence) {
  return on_event(now, [&] {
    considered_ = false;
    // What it was told before it had a model it did not hear, and may take the end into its hands.
    const auto known = members_.find(member);
    const bool woke = presence == Presence::trains && (known == members_.end() || !known->second);
    if (woke && !certificate_ && !over()) tell_everything(member);
    if (presence == Presence::forgotten) {
      members_.erase(member);
      parted_.erase(member);
    } else {
      members_.insert_or_assign(member, presence == Presence::trains);
    }
    if (presence == Presence::trains || presence == Presence::present) {
      gone_.erase(member);
      lost_.erase(member);
    } else if (!under_way() && presence == Presence::forgotten) {
      gone_.erase(member);  // no statement names it, and there are no end of such ids in a long run
    } else if (!sessions_.contains(member)) {
      gone_.insert(member);
      if (under_way()) lost_.insert(member);
    }
    reconsider_held_back();
  });
}

ConsensusEffects FinalConsensus::on_message(TimePoint now, const NodeId& from,
                                            const ConsensusMessage& message) {
  if (run_of(message) != options_.run) return {};
  return on_event(now, [&] {
    from_ = from;
    std::visit([&](const auto& m) { handle(m); }, message);
  });
}

ConsensusEffects FinalConsensus::on_certificate_refused(TimePoint now, const NodeId& peer) {
  return on_event(now, [&] {
    if (sessions_.contains(peer)) refused_.insert_or_assign(peer, now);
  });
}

ConsensusEffects FinalConsensus::on_refused(TimePoint now, const NodeId& peer,
                                            const ConsensusMessage& message) {
  return on_event(now, [&] { keep_returned(peer, message); });
}

ConsensusEffects FinalConsensus::on_frozen(TimePoint now) {
  fault::pass("consensus.frozen");
  return on_event(now, [&] { frozen_ = true; });
}

ConsensusEffects FinalConsensus::on_stored(TimePoint now) {
  return on_event(now, [&] {
    if (phase_ == Phase::lingering && !std::exchange(stored_, true)) acknowledge();
  });
}

ConsensusEffects FinalConsensus::on_tick(TimePoint now) {
  return on_event(now, [&] {
    if (phase_ == Phase::fetching) take(fetch_.on_tick(now_));
    show_refused();
    send_returned();
    say_again();
  });
}

ConsensusEffects FinalConsensus::stop(TimePoint now, std::string reason) {
  return on_event(now, [&] {
    if (certificate_ || over()) return;
    end_failed({Errc::cancelled, Doing::agreeing, std::move(reason)});
  });
}

bool FinalConsensus::over() const { return phase_ == Phase::failed || phase_ == Phase::done; }

void FinalConsensus::send(const NodeId& to, ConsensusMessage message) {
  if (sessions_.contains(to)) out_.send.push_back({to, std::move(message)});
}

void FinalConsensus::flood(const ConsensusMessage& message, const std::optional<NodeId>& except) {
  for (const auto& peer : sessions_)
    if (peer != except) out_.send.push_back({peer, message});
}

// Statements: look, check the signature, keep, forward.
template <class Message>
bool FinalConsensus::admit(const Message& message) {
  if (foreign_.contains(from_)) return false;  // signed under another fingerprint, and rightly so
  const auto novelty = ledger_.look_at(message);
  if (novelty != Novelty::fresh && novelty != Novelty::conflicting) return false;
  if (check(message, message.signer, verifier_, options_.fingerprint) != Verdict::valid) {
    out_.misbehaved.push_back({from_, "forwarded a statement with a wrong signature"});
    return false;
  }
  // That somebody is at work is no progress of that work, nor is what others say who have no part.
  const bool has_part = !agreed_ || is_member(message.signer);
  if (has_part && (!std::is_same_v<Message, Finish> || !reduction_)) last_progress_ = now_;
  if constexpr (requires { ledger_.proof_with(message); }) {
    if (novelty == Novelty::conflicting) {
      const auto proof = ledger_.proof_with(message);
      ledger_.add(proof);
      flood(proof, std::nullopt);
      return false;
    }
  }
  ledger_.add(message);
  flood(message, from_);
  return true;
}
template bool FinalConsensus::admit(const Finish& message);  // agreeing.cc

void FinalConsensus::handle(const Participants& message) {
  if (certificate_ || over()) return;
  (void)admit(message);
}

void FinalConsensus::handle(const HashSignature& message) {
  if (certificate_ || over()) return;
  (void)admit(message);
}

void FinalConsensus::handle(const Refusal& message) {
  if (certificate_ || over()) return;
  if (admit(message)) apply(message);
}

void FinalConsensus::handle(const Equivocation& message) {
  if (certificate_ || over() || phase_ == Phase::idle || foreign_.contains(from_)) return;
  if (ledger_.look_at(message) != Novelty::fresh) return;
  if (check(message, verifier_, options_.fingerprint) != Verdict::valid) {
    out_.misbehaved.push_back({from_, "forwarded a false proof of equivocation"});
    return;
  }
  ledger_.add(message);
  flood(message, from_);
  // The signer itself: an earlier life said something else.
  if (message.signer() == self_) withdrawn_ = true;
}

void FinalConsensus::handle(const Acknowledge& message) {
  if (phase_ == Phase::failed) return;
  if (phase_ == Phase::idle && !is_held_back(message.hash)) return;
  if (!admit(message)) return;
  if (phase_ == Phase::fetching && message.hash == certificate_->hash &&
      sessions_.contains(message.signer))
    take(fetch_.add_holder(now_, message.signer));
  reconsider_held_back();
}

void FinalConsensus::handle(const Exponents& message) {
  if (reduction_ && message.round.epoch == epoch_) take(reduction_->on_exponents(from_, message));
}

void FinalConsensus::handle(const Sum& message) {
  if (reduction_ && message.round.epoch == epoch_) take(reduction_->on_sum(from_, message));
}

void FinalConsensus::handle(const Contribution& message) {
  if (reduction_ && message.round.epoch == epoch_)
    take(reduction_->on_contribution(from_, message));
}

void FinalConsensus::handle(const ResultChunk& message) {
  if (reduction_ && message.round.epoch == epoch_) take(reduction_->on_result(from_, message));
}

ConsensusEffects FinalConsensus::on_job_done(TimePoint now, const JobOutcome& outcome) {
  return on_event(now, [&] {
    const auto chunk = outcome.target.chunk;
    STARLING_CHECK_OP(chunk, <, plan_.count());
    if (writes_result(outcome.kind)) {
      std::optional<Hash> written;
      if (outcome.result) {
        if (const auto* divided = std::get_if<ChunkDivided>(&*outcome.result))
          written = divided->hash;
        if (const auto* stored = std::get_if<ChunkStored>(&*outcome.result)) written = stored->hash;
      }
      store_.end_write(chunk, written);
    }
    if (outcome.kind == JobKind::load && !loads_.empty()) loads_.pop_front();
    if (outcome.target.round.epoch.value == 0) {
      if (outcome.kind == JobKind::load && outcome.result) {
        const auto& loaded = std::get<ChunkLoaded>(*outcome.result);
        send(loaded.to, Chunk{chunk, loaded.hash, loaded.values});
      } else if (phase_ == Phase::fetching) {
        if (outcome.result) last_progress_ = now_;
        take(fetch_.on_job_done(now_, outcome));
      }
    } else if (reduction_ && outcome.target.round.epoch == epoch_) {
      if (outcome.kind != JobKind::check)
        take(reduction_->on_job_done(outcome));
      else if (outcome.result && phase_ == Phase::checking)
        on_checked(std::get<ReplicaChecked>(*outcome.result));
    } else if (phase_ == Phase::fetching) {
      // A job of a given-up epoch wrote over a chunk: it may have to be fetched now.
      take(fetch_.on_tick(now_));
    }
  });
}

// One phase may lead to the next at the same moment; each is entered at most once an event, but for
// an epoch that is given up.
void FinalConsensus::advance() {
  while (true) {
    const auto before = std::pair(phase_, epoch_);
    check_members();
    switch (phase_) {
      case Phase::collecting:
        advance_collecting();
        break;
      case Phase::confirming:
        advance_confirming();
        break;
      case Phase::freezing:
        if (!frozen_) break;
        phase_ = Phase::reducing;
        last_progress_ = now_;
        take(reduction_->start());
        break;
      case Phase::reducing:
        advance_reducing();
        break;
      case Phase::certifying:
        advance_certifying();
        break;
      case Phase::following:
        advance_following();
        break;
      case Phase::fetching:
        advance_fetching();
        break;
      case Phase::lingering:
        advance_lingering();
        break;
      case Phase::idle:
        if (wanted_) begin(*wanted_);
        break;
      case Phase::checking:
      case Phase::done:
      case Phase::failed:
        break;
    }
    if (std::pair(phase_, epoch_) == before) return;
  }
}

TimePoint FinalConsensus::next_deadline() const {
  TimePoint next = kNever;
  const auto at = [&](TimePoint point) { next = std::min(next, point); };
  const bool in_epoch = phase_ >= Phase::confirming && phase_ <= Phase::certifying;
  if (in_epoch) {
    for (const auto& [peer, since] : away_)
      if (reduction_ && reduction_->uses(peer))
        at(std::max(since + options_.reconnect_grace, patience()));
    if (!lost_.empty() && now_ < patience()) at(patience());
    at(last_progress_ + options_.stall_limit);
    at(say_again_at());
  }
  for (const auto& [peer, since] : refused_) at(since + options_.show_again);
  if (!returned_.empty()) at(returned_.front().since + options_.send_again);
  switch (phase_) {
    case Phase::idle:
      if (wanted_) at(expected_until_);
      break;
    case Phase::collecting:
      if (!considered_) at(last_heard_ + options_.settle);
      at(collecting_deadline());
      break;
    case Phase::confirming:
      at(closed_ + agree_deadline());
      break;
    case Phase::following:
      if (nobody_takes_part()) {
        if (!considered_) at(last_heard_ + options_.settle);
        at(entered_ + agree_deadline());
      }
      at(last_progress_ + following_limit());
      break;
    case Phase::fetching:
      at(fetch_.next_deadline());
      at(last_progress_ + following_limit());
      break;
    case Phase::lingering:
      at(linger_deadline());
      break;
    default:
      break;
  }
  return next;
}

ConsensusState FinalConsensus::state() const {
  ConsensusState state{.phase = phase_,
                       .epoch = epoch_,
                       .role = role_,
                       .rule = rule_,
                       .participants = {},
                       .hash = own_hash_,
                       .bytes_left = plan_.total_result_bytes(),
                       .bytes_total = plan_.total_result_bytes(),
                       .reason = why_};
  if (certificate_) {
    state.epoch = certificate_->epoch;
    state.participants = certificate_->participants;
    state.hash = certificate_->hash;
    state.bytes_left = 0;
    for (std::uint32_t chunk = 0; chunk < certified_.size(); ++chunk)
      if (!store_.holds(chunk, certified_[chunk])) state.bytes_left += plan_.result_bytes(chunk);
  } else if (agreed_) {
    for (const auto& member : agreed_->members) state.participants.push_back(member.id);
    if (reduction_) state.bytes_left = reduction_->bytes_left();
  }
  return state;
}

std::optional<CertificateMessage> FinalConsensus::certificate_message() const {
  if (!certificate_) return std::nullopt;
  return CertificateMessage{*certificate_, options_.manifest, certified_};
}

}  // namespace starling::gossip::consensus
