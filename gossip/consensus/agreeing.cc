// FinalConsensus, first part: who takes part (design section 8, step 1).
#include "gossip/consensus/final_consensus.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::gossip::consensus {
namespace {

// Own P must be this share of the budget for another node's Finish by budget to be joined.
constexpr double kNearBudget = 0.98;

constexpr const char* kGivenUp = "another member gave the epoch up";

}  // namespace

Duration FinalConsensus::agree_deadline() const {
  Duration deadline = options_.first_deadline;
  for (std::uint64_t epoch = 1; epoch < epoch_.value && deadline < options_.longest_deadline;
       ++epoch)
    deadline *= 2;
  return std::min(deadline, options_.longest_deadline);
}

// A run that was started over begins when whoever follows the old one has given it up too: they
// live and train, and a set that closed without them would leave them the work of a few.
TimePoint FinalConsensus::collecting_deadline() const {
  const TimePoint usual = entered_ + agree_deadline();
  if (!started_over_ || is_closed(Missing::members)) return usual;
  return std::max(usual, *started_over_ + following_limit() + options_.stall_limit);
}

void FinalConsensus::handle(const Finish& message) {
  if (!is_of_this_run(message.fingerprint) || phase_ == Phase::failed) return;
  // One that waited longer would find the end of the others made without its work.
  if (is_deserted() && trains_on() && begins_anew(message)) start_over();
  if (certificate_) {
    // Followers that fetch are known by their statement; the others do not know of the end yet.
    if (is_stranded()) return;
    const bool unseen = refused_.erase(from_) > 0;
    if (shown_.insert(from_).second || unseen) show_certificate(from_);
    return;
  }
  if (over()) return;
  if (message.round.epoch > epoch_ && !follow_into_epoch(message)) return;
  const bool first = !ledger_.finishes().contains(message.signer);
  if (!admit(message)) return;
  // What its signer said later was here first: now it is known for one that takes part.
  if (ledger_.latest() > epoch_ && now_ >= patience()) enter_epoch(ledger_.latest(), kGivenUp);
  if (message.round.epoch != epoch_ || over()) return;
  // Whoever gives a dead run up later than this node heard nothing of what was said before.
  if (first && started_over_ && phase_ == Phase::collecting && message.signer == from_)
    tell_everything(from_);
  lost_.erase(message.signer);
  last_heard_ = now_;
  considered_ = false;
  // This node said so itself, in an earlier life: its frozen contribution is lost, it follows.
  if (message.signer == self_) {
    revision_ = std::max(revision_, message.revision);
    withdrawn_ = true;
    follow("this node was restarted during the final consensus");
    state_finish();
  } else if (message.role == Role::follower && is_member(message.signer)) {
    enter_epoch(epoch_.next(), short_form(message.signer) + " withdrew");
  }
}

// Goes where a Finish of a later epoch leads, if its signer's word counts. Otherwise it is kept,
// because it is not said again: it counts when this node is so far, or knows more of its signer.
bool FinalConsensus::follow_into_epoch(const Finish& message) {
  const auto& signer = message.signer;
  if (ledger_.is_excluded(signer)) return false;
  // Followers, and who says for the first time in a later epoch that it takes part and so is one
  // (rulings 35), invite those who know of nothing yet, but end nobody's epoch.
  const bool is_heeded =
      phase_ == Phase::idle || signer == self_ ||
      (message.role == Role::participant && ledger_.may_take_part(signer, message.round.epoch));
  // Only who may sign the hash of this epoch can tell that nobody will have all signatures.
  if (!is_heeded || (now_ < patience() && !is_member(signer))) {
    if (signer != self_) (void)admit(message);
    return false;
  }
  if (phase_ == Phase::idle && !may_end(message)) {
    // Not of later epochs: who is shut out since then would take everybody there.
    if (message.reason == FinishReason::budget && message.round.epoch == Epoch{1})
      (void)admit(message);
    return false;
  }
  if (check(message, signer, verifier_, options_.fingerprint) != Verdict::valid) {
    out_.misbehaved.push_back({from_, "forwarded a statement with a wrong signature"});
    return false;
  }
  if (phase_ == Phase::idle && message.reason == FinishReason::command) keep_order(message.order);
  if (phase_ == Phase::idle && may_join(message))
    join(Epoch{1}, message.reason, standing_);
  else if (phase_ == Phase::idle)
    join(message.round.epoch, message.reason, Role::follower);
  if (message.round.epoch > epoch_) enter_epoch(message.round.epoch, kGivenUp);
  return !over();
}

void FinalConsensus::tell_everything(const NodeId& peer) {
  if (is_deserted()) return;  // nobody is drawn into a run that seems to be dead
  for (auto& message : ledger_.everything()) send(peer, std::move(message));
}

// A node passes on what is of its own run only. Most statements do not name the settings that they
// are signed under, but what names them always comes first: a Finish or a certificate.
bool FinalConsensus::is_of_this_run(const Hash& fingerprint) {
  if (fingerprint != options_.fingerprint) return foreign_.insert(from_), false;
  foreign_.erase(from_);
  return true;
}

// Whether the run may end by command: at anybody's, or because the admin says so.
bool FinalConsensus::is_ordered(const std::optional<Signature>& order) const {
  if (!options_.admin || order_) return true;
  if (!order) return false;
  const auto& [domain, bytes] = options_.order;
  return verifier_.verify(*options_.admin, domain, bytes, *order) == Verdict::valid;
}

// Where only the admin ends the run, a member must not do it by saying that the budget is spent.
bool FinalConsensus::may_end(const Finish& message) const {
  if (!options_.admin) return true;
  return message.reason == FinishReason::budget ? is_spent() : is_ordered(message.order);
}

// What this node says by command shows it, so that it counts wherever that gets.
void FinalConsensus::keep_order(const std::optional<Signature>& order) {
  if (options_.admin && !order_) order_ = order;
}

void FinalConsensus::set_admin(const NodeId& admin) {
  if (options_.admin) options_.admin = admin;
}

// Whether the budget is as good as spent, as far as is known here.
bool FinalConsensus::is_spent() const {
  return budget_ > 0 && static_cast<double>(done_) >= kNearBudget * static_cast<double>(budget_);
}

// Whether the own replica counts in a run that ends for this reason: by budget only where it is as
// good as spent, so not where none is known yet, nor where there is none and somebody lies.
bool FinalConsensus::counts(FinishReason reason) const {
  return reason == FinishReason::command || is_spent();
}

// Whether this node takes part with its own replica in what the message says.
bool FinalConsensus::may_join(const Finish& message) const {
  if (message.round.epoch.value > 1 && !started_over_) return false;  // late (rulings 35)
  return counts(message.reason);
}

// As long as whoever holds a certificate shows it to those that it cannot hear.
void FinalConsensus::expect(TimePoint now, std::set<NodeId> members) {
  expected_ = std::move(members);
  expected_until_ =
      now + std::clamp(options_.linger, options_.first_deadline, options_.stall_limit);
}

// Whether this process has met nobody yet who had a part in the run, though its earlier life had
// company. It is no lone node: alone it would certify its own replica in a moment, and the others,
// who have begun to agree, would take that.
bool FinalConsensus::is_expecting() const {
  if (!options_.contributes || now_ >= expected_until_) return false;
  if (std::ranges::includes(gone_, expected_)) return false;
  return std::ranges::none_of(sessions_, [&](const NodeId& peer) {
    const auto member = members_.find(peer);
    return expected_.contains(peer) || (member != members_.end() && member->second);
  });
}

// The run is to end at this node's own accord.
void FinalConsensus::begin(FinishReason reason) {
  if (!is_expecting()) return join(Epoch{1}, reason, standing_);
  if (!wanted_) out_.awaiting = Awaiting{expected_.size(), expected_until_ - now_};
  if (wanted_ != FinishReason::command) wanted_ = reason;
}

void FinalConsensus::join(Epoch epoch, FinishReason reason, Role role) {
  wanted_.reset();
  reason_ = reason;
  role_ = role;
  enter_epoch(epoch, {});
}

// Everybody who answered is a follower, or was one until nobody else turned up: in a short run all
// may be newcomers, and then all count. Who was left out would be again, time after time: whoever
// said in this epoch that it takes part and is gone since counts as long as the epoch lasts.
bool FinalConsensus::nobody_takes_part() const {
  if (epoch_.value != 1 || withdrawn_ || left_out_ || !counts(reason_)) return false;
  return std::ranges::none_of(ledger_.finishes(), [&](const auto& entry) {
    return entry.second.role == Role::participant && !ledger_.converted().contains(entry.first);
  });
}

// A follower whose standing or progress got better before anybody closed the set takes part, unless
// it follows for another reason: left out it would be again, each time the wait for an end anew.
void FinalConsensus::reconsider_role() {
  const bool may_change = phase_ == Phase::following && epoch_.value == 1 && !withdrawn_ &&
                          !left_out_ && ledger_.participants().empty() &&
                          standing_ == Role::participant;
  if (may_change && counts(reason_)) {
    role_ = Role::participant;
    phase_ = Phase::collecting;
    considered_ = false;
    restate();
  } else if (phase_ == Phase::collecting && epoch_.value == 1 && role_ == Role::participant &&
             standing_ == Role::follower && !nobody_takes_part()) {
    follow("this node stopped being fit to contribute");
    restate();
  }
}

void FinalConsensus::enter_epoch(Epoch epoch, std::string why) {
  if (certificate_ || over()) return;
  if (!why.empty()) why_ = std::move(why);
  epoch = std::max(epoch, ledger_.latest());  // whoever is further comes back to no earlier one
  if (epoch.value > options_.max_epoch) {
    const bool merge = options_.run.kind == RunKind::merge;
    return end_failed({merge ? Errc::cancelled : Errc::timed_out,
                       merge ? Doing::merging : Doing::agreeing, why_});
  }
  epoch_ = epoch;
  ledger_.enter(epoch);
  agreed_.reset();
  reduction_.reset();
  own_hash_.reset();
  left_out_ = was_left_out_ = false;
  away_.clear();
  lost_.clear();
  returned_.clear();
  entered_ = last_heard_ = last_progress_ = now_;
  revision_ = 0;
  dialled_ = considered_ = false;
  // Whoever was left behind with a frozen contribution has said in an earlier epoch that it counts.
  if (frozen_) role_ = Role::participant;
  if (withdrawn_ || ledger_.is_excluded(self_)) role_ = Role::follower;
  phase_ = role_ == Role::participant ? Phase::collecting : Phase::following;
  state_finish();
}

// Signs who this node is and with whom it has sessions, and tells everybody.
void FinalConsensus::state_finish() {
  Finish finish{.round = {options_.run, epoch_},
                .revision = revision_,
                .signer = self_,
                .fingerprint = options_.fingerprint,
                .reason = reason_,
                .role = role_,
                .rule = rule_,
                .weight = options_.weight,
                .samples = samples_,
                .sessions = {},
                .order = reason_ == FinishReason::command ? order_ : std::nullopt,
                .signature = {}};
  for (const auto& peer : sessions_) {
    if (finish.sessions.size() == kMaxListedSessions) break;
    if (has_ended(peer)) continue;  // or whoever was not shown its certificate waits for it
    finish.sessions.push_back(peer);
  }
  say(std::move(finish));
  last_heard_ = now_;
  considered_ = false;
}

void FinalConsensus::say(Finish finish) {
  sign(finish, signer_, options_.fingerprint);
  ledger_.add(finish);
  flood(finish, std::nullopt);
  said_ = now_;
}

// When to say again that this node is at work, of which followers hear nothing else: a reduction
// over slow lines may take longer than they wait for somebody of whom they hear nothing.
TimePoint FinalConsensus::say_again_at() const {
  const bool at_work = phase_ >= Phase::freezing && phase_ <= Phase::certifying;
  if (!at_work || revision_ >= kMaxRevision) return kNever;
  const bool followed = std::ranges::any_of(
      ledger_.finishes(), [](const auto& entry) { return entry.second.role == Role::follower; });
  return followed ? said_ + options_.stall_limit : kNever;
}

// In the very words that the participants agreed on: whoever comes late makes the same set of them.
void FinalConsensus::say_again() {
  if (now_ < say_again_at()) return;
  Finish finish = ledger_.finishes().at(self_);
  finish.revision = ++revision_;
  say(std::move(finish));
}

// The same with a higher revision, where something that the statement says has changed.
void FinalConsensus::restate() {
  if (revision_ >= kMaxRevision) return;
  ++revision_;
  state_finish();
}

void FinalConsensus::follow(std::string why) {
  role_ = Role::follower;
  why_ = std::move(why);
  phase_ = Phase::following;
  agreed_.reset();
  reduction_.reset();
  last_progress_ = now_;
}

// A session that comes up is worth another try, but no longer wait for the others: sessions that
// come and go would keep this node from an end for ever.
void FinalConsensus::leave_out(std::string why) {
  const TimePoint heard = last_progress_;
  left_out_ = true;
  follow(std::move(why));
  if (std::exchange(was_left_out_, true)) last_progress_ = heard;
}

bool FinalConsensus::is_member(const NodeId& id) const {
  return agreed_ && agreed_->find_index(id).has_value();
}

// Whether this is a participant of the certificate that was not taken: it agrees on nothing more.
bool FinalConsensus::has_ended(const NodeId& id) const {
  return held_back_ && std::ranges::binary_search(held_back_->message.certificate.participants, id);
}

// Whether no statement of this node is worth waiting for: it is gone, at its end, or has no model
// of this run to give.
bool FinalConsensus::says_nothing(const NodeId& id) const {
  if (gone_.contains(id) || has_ended(id)) return true;
  const auto at = members_.find(id);
  return at != members_.end() && !at->second;
}

// Everybody whom a statement names as a session has made a statement too: nobody is missing.
bool FinalConsensus::is_closed(Missing counted) const {
  const auto& finishes = ledger_.finishes();
  for (const auto& [id, finish] : finishes)
    for (const auto& peer : finish.sessions)
      if (!finishes.contains(peer) && !says_nothing(peer) &&
          (counted == Missing::anybody || members_.contains(peer)))
        return false;
  return true;
}

// Whether a session went down a moment ago, and nothing was heard of its peer since: nobody names
// it any more, and membership takes seconds to hold it for dead. Not in later epochs, which begin
// because somebody is gone.
bool FinalConsensus::misses_anybody() const {
  return epoch_ == Epoch{1} && std::ranges::any_of(parted_, [&](const NodeId& peer) {
           return members_.contains(peer) && !says_nothing(peer) &&
                  !ledger_.finishes().contains(peer);
         });
}

std::vector<const Finish*> FinalConsensus::candidates() const {
  std::vector<const Finish*> statements;
  for (const auto& [id, finish] : ledger_.finishes())
    if (finish.role == Role::participant && finish.weight <= options_.most_weight &&
        ledger_.may_take_part(id))
      statements.push_back(&finish);
  return statements;
}

void FinalConsensus::advance_collecting() {
  const bool late = now_ >= collecting_deadline();
  if (!late && (considered_ || now_ < last_heard_ + options_.settle)) return;
  considered_ = true;
  if (!ledger_.may_take_part(self_)) return leave_out("this node came too late to take part");
  if (!late && (!is_closed(Missing::anybody) || misses_anybody())) return;
  const auto statements = candidates();
  auto agreed = make_agreed({options_.run, epoch_}, statements);
  const auto part = largest_part(agreed);
  if (part.size() == agreed.members.size()) return close_set(std::move(agreed));
  if (!late) {
    const auto next = cycle_successor(agreed, {options_.run, epoch_}, self_);
    if (!dialled_ && next && !sessions_.contains(*next)) out_.dial.push_back(*next);
    dialled_ = true;
    return;
  }
  std::vector<const Finish*> connected;
  for (const auto* finish : statements)
    if (std::ranges::binary_search(part, finish->signer)) connected.push_back(finish);
  close_set(make_agreed({options_.run, epoch_}, connected));
}

void FinalConsensus::close_set(Agreed agreed) {
  if (!agreed.find_index(self_))
    return leave_out("no sessions connect this node with the other participants");
  if (agreed.members.size() > kMaxParticipants)
    return end_failed(
        {Errc::too_many, Doing::agreeing, std::to_string(agreed.members.size()) + " participants"});
  if (agreed.rule == Rule::median && agreed.members.size() > kMaxMedianParticipants)
    return end_failed({Errc::replicas_differ, Doing::certifying,
                       "a participant refused the mean, and " +
                           std::to_string(agreed.members.size()) + " are too many for a median"});
  fault::pass("consensus.set_closed");
  rule_ = agreed.rule;
  agreed_ = std::move(agreed);
  phase_ = Phase::confirming;
  closed_ = last_progress_ = now_;
  reduction_.emplace(ReductionTerms{.round = {options_.run, epoch_},
                                    .self = self_,
                                    .fingerprint = options_.fingerprint,
                                    .agreed = *agreed_,
                                    .window = options_.window},
                     plan_, store_, signer_, verifier_);
  Participants statement{.round = {options_.run, epoch_},
                         .signer = self_,
                         .count = static_cast<std::uint32_t>(agreed_->members.size()),
                         .set = agreed_->set,
                         .graph = agreed_->graph,
                         .signature = {}};
  sign(statement, signer_, options_.fingerprint);
  ledger_.add(statement);
  flood(statement, std::nullopt);
}

void FinalConsensus::advance_confirming() {
  const auto& signed_by = ledger_.participants();
  bool all_here = true;
  bool all_equal = true;
  std::optional<Participants> other;  // what the first of the others signed
  bool others_equal = true;
  for (const auto& member : agreed_->members) {
    const auto at = signed_by.find(member.id);
    if (at == signed_by.end()) {
      all_here = false;
      continue;
    }
    const auto& statement = at->second;
    if (statement.set != agreed_->set || statement.graph != agreed_->graph) all_equal = false;
    if (member.id == self_) continue;
    if (other && (other->set != statement.set || other->graph != statement.graph))
      others_equal = false;
    if (!other) other = statement;
  }
  if (!all_here && now_ < closed_ + agree_deadline()) return;
  if (all_here && all_equal) {
    phase_ = Phase::freezing;
    last_progress_ = now_;
    if (agreed_->rule == Rule::median)
      for (const auto& member : agreed_->members) took_median_.insert(member.id);
    if (!freeze_asked_) out_.freeze = options_.run.kind;
    freeze_asked_ = true;
    return;
  }
  // The others agree, on a set without this node: it was late, and follows.
  if (other && others_equal) {
    std::vector<const Finish*> without;
    for (const auto* finish : candidates())
      if (finish->signer != self_ && is_member(finish->signer)) without.push_back(finish);
    const auto agreed = make_agreed({options_.run, epoch_}, without);
    if (agreed.set == other->set && agreed.graph == other->graph) {
      follow("this node was too late for the set");
      return restate();
    }
  }
  enter_epoch(epoch_.next(), all_here ? "participants saw different sets"
                                      : "a participant did not confirm the set in time");
}

// Until when a member that vanished does not end the epoch. Who has signed the hash cannot know
// whether another one has all signatures, and it may be the line that is gone: whoever holds a
// certificate shows it for so long to those that it cannot hear.
TimePoint FinalConsensus::patience() const {
  const bool signed_here = phase_ == Phase::certifying && options_.run.kind == RunKind::finish &&
                           !fault::planted("consensus.signers_impatient");
  return signed_here ? last_progress_ + options_.linger : TimePoint::min();
}

// A member that vanished or was excluded ends the epoch (rulings 36: not once there is a
// certificate).
void FinalConsensus::check_members() {
  if (!reduction_ || certificate_ || phase_ < Phase::confirming || phase_ > Phase::certifying)
    return;
  const bool patient = now_ < patience();
  for (const auto& [peer, since] : away_)
    if (!patient && now_ >= since + options_.reconnect_grace && reduction_->uses(peer))
      return enter_epoch(epoch_.next(), "the session with " + short_form(peer) + " is gone");
  for (const auto& member : agreed_->members) {
    // Who made a statement in this epoch was there, whatever membership still holds: an epoch for
    // each look at an old belief would soon leave none.
    if (!patient && lost_.contains(member.id) && !sessions_.contains(member.id))
      return enter_epoch(epoch_.next(), short_form(member.id) + " is gone");
    if (ledger_.is_excluded(member.id))
      return enter_epoch(epoch_.next(), short_form(member.id) + " is excluded");
  }
  if (now_ >= last_progress_ + options_.stall_limit)
    enter_epoch(epoch_.next(), "nothing went on for " +
                                   std::to_string(static_cast<int>(seconds(options_.stall_limit))) +
                                   " s");
}

}  // namespace starling::gossip::consensus
