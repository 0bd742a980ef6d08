// From silence to a verdict: cases, accusations, witnesses, and what a view makes of them.
#include "gossip/membership/membership.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace starling::gossip {
namespace {

constexpr std::size_t kProbers = 3;
constexpr std::size_t kWitnesses = 3;  // on each side of the subject
// A dial of a witness has at least this long (rulings 27).
constexpr Duration kDialWindow = std::chrono::seconds(1);
// After others reached a member whose session with us is silent, it is let be for this long.
constexpr Duration kBenefitOfDoubt = std::chrono::seconds(2);
// A neighbour that signs nothing is missed after so many intervals of progress reports at least,
// and, once it has been missed in vain a few times, no more often than this.
constexpr int kReportsMissed = 3;
constexpr Duration kLongestMissing = std::chrono::minutes(10);
// A look around that comes this late says that this node did not run and heard nobody.
constexpr Duration kLateLook = std::chrono::seconds(1);

}  // namespace

void Membership::open_case(TimePoint now, const NodeId& subject, Evidence evidence,
                           MembershipEffects& effects) {
  const auto* member = table_.find(subject);
  if (member == nullptr || self_.state == RecordState::left || cases_.contains(subject)) return;
  if (member->state == MemberState::dead || member->state == MemberState::left) return;
  if (answering(subject)) return;
  const auto session = sessions_.find(subject);
  if (session != sessions_.end() && now < session->second.doubt_after) return;

  Case opened{.stage = Case::Stage::asking,
              .incarnation = member->record.incarnation,
              .evidence = evidence,
              .opened = now,
              .deadline = now,
              .nonce = rng_() | 1U};
  Duration window = options_.detector.min_indirect;
  if (session != sessions_.end()) {
    window = accused_by_another(now, *member)
                 ? Duration{0}
                 : std::max(window, 2 * session->second.watch.round_trip());
  } else {
    window = std::max(window, kDialWindow);
    const bool untried = evidence == Evidence::session_lost || evidence == Evidence::no_answer ||
                         evidence == Evidence::indirect_silence;
    if (untried && member->record.dialable() &&
        dials_.take_at_once(now, subject, DialPlan::Purpose::answer))
      effects.wanted_sessions.push_back({subject, member->record.addresses});
  }
  opened.deadline = now + health_.stretch(window);
  cases_.emplace(subject, opened);
  if (opened.deadline > now) ask_others(subject, opened.nonce, effects);
}

void Membership::close_case(const NodeId& subject) { cases_.erase(subject); }

bool Membership::accused_by_another(TimePoint now, const MemberEntry& member) const {
  return std::ranges::any_of(member.accusations, [&](const HeldAccusation& held) {
    const NodeId& accuser = held.accusation.accuser;
    return accuser != self_.id && believed(now, accuser);
  });
}

// Where a session is silent, others are asked whether they reach its peer. One that says that it
// does not has answered.
void Membership::corroborate(TimePoint now, const NodeId& subject) {
  const auto at = cases_.find(subject);
  const auto* member = table_.find(subject);
  if (at == cases_.end() || at->second.stage != Case::Stage::asking || member == nullptr) return;
  if (sessions_.contains(subject) && accused_by_another(now, *member)) at->second.deadline = now;
}

// What this node said of others since it heard anybody at all says more about itself. Only a
// machine that refused a connection is a witness of its own.
void Membership::hear_again(TimePoint now, MembershipEffects& effects) {
  const bool deaf = std::ranges::none_of(
      sessions_, [](const auto& item) { return item.second.state == SessionState::answering; });
  const TimePoint since = std::exchange(heard_anybody_, now);
  if (!deaf) return;
  dials_.pass_over_nobody();
  std::vector<NodeId> doubted;
  for (const auto& [id, member] : table_.all())
    if (member.state == MemberState::suspect) doubted.push_back(id);
  for (const auto& id : doubted) {
    auto& accusations = table_.find(id)->accusations;
    const auto dropped = std::erase_if(accusations, [&](const HeldAccusation& held) {
      return held.accusation.accuser == self_.id && held.received >= since &&
             held.accusation.evidence != Evidence::connection_refused;
    });
    if (dropped == 0) continue;
    close_case(id);
    reassess(now, id, {Cause::own_silence, self_.id, std::nullopt}, effects);
  }
}

void Membership::give_up_session(const NodeId& subject, MembershipEffects& effects) {
  const auto at = sessions_.find(subject);
  if (at == sessions_.end() || at->second.given_up) return;
  at->second.given_up = true;
  effects.given_up.push_back(subject);
}

void Membership::ask_others(const NodeId& subject, std::uint64_t nonce,
                            MembershipEffects& effects) {
  std::vector<NodeId> able;
  for (const auto& [id, session] : sessions_)
    if (id != subject && session.state == SessionState::answering) able.push_back(id);
  for (std::size_t asked = 0; asked < kProbers && !able.empty(); ++asked) {
    const auto pick = able.begin() + static_cast<std::ptrdiff_t>(rng_.below(able.size()));
    effects.send.push_back({*pick, ProbeRequest{nonce, subject}});
    able.erase(pick);
  }
}

TimePoint Membership::deadline_of(const NodeId& subject, const Case& open) const {
  switch (open.stage) {
    case Case::Stage::asking:
      return open.deadline;
    case Case::Stage::suspected: {
      const auto* member = table_.find(subject);
      const std::size_t count = member ? accusers(*member, AccusationKind::suspect) : 1;
      return open.opened +
             health_.stretch(suspicion_time(count, quorum_about(subject), options_.detector));
    }
    case Case::Stage::condemned:
      return open.opened + options_.abandon;
  }
  return kNever;
}

void Membership::tick_cases(TimePoint now, MembershipEffects& effects) {
  std::vector<NodeId> subjects;
  for (const auto& [id, open] : cases_) subjects.push_back(id);
  for (const auto& id : subjects) {
    const auto at = cases_.find(id);
    if (at == cases_.end()) continue;
    Case& open = at->second;
    const auto* member = table_.find(id);
    if (member == nullptr || member->record.incarnation != open.incarnation || answering(id) ||
        member->state == MemberState::dead || member->state == MemberState::left) {
      cases_.erase(at);
      continue;
    }
    if (now < deadline_of(id, open)) continue;
    open.opened = now;
    const Evidence evidence = open.evidence;
    switch (open.stage) {
      case Case::Stage::asking:
        open.stage = Case::Stage::suspected;
        accuse(now, id, AccusationKind::suspect, evidence, effects);
        break;
      case Case::Stage::suspected:
        open.stage = Case::Stage::condemned;
        accuse(now, id, AccusationKind::dead, evidence, effects);
        give_up_session(id, effects);
        break;
      case Case::Stage::condemned:
        open.abandoned = true;
        reassess(now, id, {Cause::unreachable, self_.id, evidence}, effects);
        break;
    }
  }
}

void Membership::accuse(TimePoint now, const NodeId& subject, AccusationKind kind,
                        Evidence evidence, MembershipEffects& effects) {
  auto* member = table_.find(subject);
  if (member == nullptr) return;
  Accusation accusation{.subject = subject,
                        .incarnation = member->record.incarnation,
                        .accuser = self_.id,
                        .kind = kind,
                        .evidence = evidence,
                        .signature = {}};
  sign_accusation(accusation, swarm_, signer_);
  const auto added = table_.accuse(*member, accusation, now);
  if (added == MemberTable::Added::added || added == MemberTable::Added::stronger)
    spreader_.push(accusation, self_.id);
  reassess(now, subject, {Cause::own_evidence, self_.id, evidence}, effects);
}

// Whoever can be dialled is missed when a dial fails, and whoever had a session when it breaks. A
// member that only dials out may vanish with all whom it had dialled: its neighbours miss it. Where
// nobody is left with whom a session is possible, those who can be no neighbours of one another do.
void Membership::miss_neighbours(TimePoint now, MembershipEffects& effects) {
  if (now - looked_around_ > kLateLook) listening_since_ = now;
  looked_around_ = now;
  if (self_.state != RecordState::alive) return;
  const Duration shortest =
      std::max<Duration>(options_.missing, kReportsMissed * progress_.report_interval());
  const auto missed = neighbours_.empty() ? topology_.neighbours_of(self_.id) : neighbours_;
  for (const auto& id : missed) {
    auto* member = table_.find(id);
    if (member == nullptr || member->record.dialable()) continue;
    if (sessions_.contains(id)) {
      member->times_missed = 0;
      continue;
    }
    const TimePoint last = std::max({member->last_word, member->last_heard.value_or(TimePoint{}),
                                     member->missed_at, listening_since_});
    const Duration doubled = shortest * (1 << std::min(member->times_missed, 10U));
    if (now - last < std::max(shortest, std::min(doubled, kLongestMissing))) continue;
    member->missed_at = now;
    ++member->times_missed;
    open_case(now, id, Evidence::indirect_silence, effects);
  }
}

void Membership::consider_witnessing(TimePoint now, const NodeId& subject,
                                     MembershipEffects& effects) {
  if (self_.state != RecordState::alive || sessions_.contains(subject) || cases_.contains(subject))
    return;
  const auto eligible = [&](const NodeId& id) {
    return id == self_.id || state_of(id) == MemberState::alive;
  };
  const auto witnesses = topology_.witnesses_of(subject, kWitnesses, eligible);
  if (std::ranges::find(witnesses, self_.id) == witnesses.end()) return;
  open_case(now, subject, Evidence::indirect_silence, effects);
}

// ---- dials

// The failure of a dial that was made to answer a question opens no case: the asker has one, or
// this node had one, and it was closed. Otherwise an address that nobody can dial has everybody
// ask everybody.
MembershipEffects Membership::on_dial_refused(TimePoint now, const NodeId& peer) {
  MembershipEffects effects;
  const auto purpose = dials_.on_failed(now, peer, rng_);
  if (!sessions_.contains(peer)) {
    const auto at = cases_.find(peer);
    if (at != cases_.end() && at->second.stage != Case::Stage::condemned) {
      // The machine is there and the process is not: there is nothing left to wait for.
      at->second.stage = Case::Stage::condemned;
      at->second.opened = now;
      at->second.evidence = Evidence::connection_refused;
      accuse(now, peer, AccusationKind::dead, Evidence::connection_refused, effects);
    } else if (at == cases_.end() && purpose == DialPlan::Purpose::session) {
      // Without a suspicion it may as well advertise a wrong address: others are asked first.
      open_case(now, peer, Evidence::connection_refused, effects);
    }
  }
  finish_event(now, effects);
  return effects;
}

MembershipEffects Membership::on_dial_failed(TimePoint now, const NodeId& peer) {
  MembershipEffects effects;
  const auto purpose = dials_.on_failed(now, peer, rng_);
  if (!sessions_.contains(peer)) {
    if (const auto at = cases_.find(peer); at != cases_.end())
      at->second.evidence = Evidence::dial_timed_out;
    else if (purpose == DialPlan::Purpose::session)
      open_case(now, peer, Evidence::dial_timed_out, effects);
  }
  finish_event(now, effects);
  return effects;
}

// ---- probes for others

void Membership::on_probe(TimePoint now, const NodeId& from, const ProbeRequest& probe,
                          MembershipEffects& effects) {
  const auto reply = [&](ProbeVerdict verdict) {
    effects.send.push_back({from, ProbeReply{probe.nonce, probe.subject, verdict}});
  };
  if (probe.subject == self_.id) return reply(ProbeVerdict::reachable);
  const auto of_asker = std::ranges::count(errands_, from, &Errand::asker);
  if (errands_.size() >= kMaxErrands || of_asker >= kMaxErrandsOfOne)
    return reply(ProbeVerdict::no_session);
  const auto at = sessions_.find(probe.subject);
  if (at == sessions_.end()) {
    if (!dial_for_another(now, probe.subject, effects)) return reply(ProbeVerdict::no_session);
    errands_.push_back({from, probe.nonce, probe.subject, now + kDialWindow});
    return;
  }
  // What the session said a moment ago proves nothing: the subject is asked now.
  effects.send.push_back(
      {probe.subject, Heartbeat{at->second.watch.send_now(now), at->second.unneeded}});
  const Duration window =
      std::max(options_.detector.min_indirect * 4 / 5, 2 * at->second.watch.round_trip());
  errands_.push_back({from, probe.nonce, probe.subject, now + window});
}

// In a large swarm few have a session with the subject, and none of them may be among those whom
// the asker knows. A session that comes up is an answer. Returns whether one may come.
bool Membership::dial_for_another(TimePoint now, const NodeId& subject,
                                  MembershipEffects& effects) {
  const auto* member = table_.find(subject);
  if (member == nullptr || !member->record.dialable() || self_.state != RecordState::alive)
    return false;
  if (member->state == MemberState::dead || member->state == MemberState::left) return false;
  if (dials_.is_out(now, subject)) return true;
  if (!dials_.take_for_another(now, subject, rng_)) return false;
  effects.wanted_sessions.push_back({subject, member->record.addresses});
  return true;
}

void Membership::tick_errands(TimePoint now, MembershipEffects& effects) {
  for (const auto& errand : errands_)
    if (now >= errand.deadline)
      effects.send.push_back(
          {errand.asker, ProbeReply{errand.nonce, errand.subject, ProbeVerdict::unreachable}});
  std::erase_if(errands_, [&](const Errand& errand) { return now >= errand.deadline; });
}

void Membership::finish_errands(const NodeId& subject, MembershipEffects& effects) {
  for (const auto& errand : errands_)
    if (errand.subject == subject)
      effects.send.push_back(
          {errand.asker, ProbeReply{errand.nonce, errand.subject, ProbeVerdict::reachable}});
  std::erase_if(errands_, [&](const Errand& errand) { return errand.subject == subject; });
}

void Membership::on_probe_reply(TimePoint now, const ProbeReply& reply) {
  const auto at = cases_.find(reply.subject);
  if (at == cases_.end() || at->second.nonce != reply.nonce) return;
  if (reply.verdict != ProbeVerdict::reachable || at->second.stage != Case::Stage::asking) return;
  cases_.erase(at);
  if (const auto session = sessions_.find(reply.subject); session != sessions_.end())
    session->second.doubt_after = now + kBenefitOfDoubt;
}

// ---- what the view makes of it

std::size_t Membership::quorum_about(const NodeId& subject) const {
  std::size_t members = table_.count(MemberState::alive) + table_.count(MemberState::suspect) +
                        table_.count(MemberState::joining) + 1;
  // Those that do not answer this node either cannot be counted on to accuse. Only our own
  // experience lowers the number: others' words could be a liar's.
  for (const auto& [id, open] : cases_)
    if (id != subject && open.stage != Case::Stage::asking && members > 1) --members;
  return death_quorum(members);
}

bool Membership::believed(TimePoint now, const NodeId& accuser) const {
  if (accuser == self_.id) return true;
  const auto* member = table_.find(accuser);
  return member != nullptr && now >= member->discredited_until;
}

// Suspected for so long that it would have refuted, had it heard of it.
bool Membership::doubtful(TimePoint now, const MemberEntry& member) const {
  if (fault::planted("membership.suspicion_told_once")) return false;
  return member.state == MemberState::suspect &&
         now - member.state_since >= options_.detector.max_suspicion;
}

MemberState Membership::judge(TimePoint now, MemberEntry& member) {
  const NodeId& id = member.record.id;
  const auto said = member.record.state;
  if (said == RecordState::left) return MemberState::left;
  const MemberState own_word =
      said == RecordState::alive ? MemberState::alive : MemberState::joining;
  if (answering(id) && !fault::planted("membership.session_outvoted")) return own_word;
  if (member.state == MemberState::dead && !member.accusations.empty()) return MemberState::dead;

  std::size_t suspects = 0;
  std::size_t dead = 0;
  bool own = false;
  for (const auto& held : member.accusations) {
    if (!believed(now, held.accusation.accuser)) continue;
    ++suspects;
    dead += held.accusation.kind == AccusationKind::dead ? 1 : 0;
    own = own || held.accusation.accuser == self_.id;
  }
  if (suspects == 0) return own_word;
  if (dead >= quorum_about(id)) {
    if (!member.quorum_since) member.quorum_since = now;
    if (own || now >= *member.quorum_since + options_.belief_delay) return MemberState::dead;
    awaiting_belief_.insert(id);
  } else {
    member.quorum_since.reset();
  }
  const auto open = cases_.find(id);
  if (open != cases_.end() && open->second.abandoned) return MemberState::dead;
  return MemberState::suspect;
}

void Membership::reassess(TimePoint now, const NodeId& id, Why why, MembershipEffects& effects) {
  auto* member = table_.find(id);
  if (member == nullptr) return;
  const MemberState before = member->state;
  const MemberState after = judge(now, *member);
  if (before == after) return;
  table_.set_state(*member, after, now);
  const bool accused = after == MemberState::suspect || after == MemberState::dead;
  if (accused && why.cause != Cause::unreachable && !member->accusations.empty()) {
    const auto& first = member->accusations.front().accusation;
    const bool own = first.accuser == self_.id;
    why = {after == MemberState::dead ? Cause::quorum
           : own                      ? Cause::own_evidence
                                      : Cause::accused,
           first.accuser, first.evidence};
  }
  place_in_topology(*member);
  if (after == MemberState::dead || after == MemberState::left) {
    progress_.on_departed(now, id);
    close_case(id);
    if (after == MemberState::dead) give_up_session(id, effects);
  }
  MemberChange change{.id = id,
                      .before = before,
                      .after = after,
                      .cause = why.cause,
                      .noticed_by = why.by,
                      .evidence = accused ? why.evidence : std::nullopt,
                      .silent_for = std::nullopt};
  if (const auto at = sessions_.find(id); at != sessions_.end())
    change.silent_for = now - at->second.watch.last_heard();
  else if (member->last_heard)
    change.silent_for = now - *member->last_heard;
  effects.changes.push_back(change);
}

// ---- as words

std::string_view name_of(Cause cause) {
  switch (cause) {
    case Cause::own_word:
      return "its own word";
    case Cause::new_process:
      return "a new process of it";
    case Cause::own_evidence:
      return "no answer to this node";
    case Cause::accused:
      return "accused";
    case Cause::quorum:
      return "enough members say so";
    case Cause::unreachable:
      return "not reached and silent for long";
    case Cause::refuted:
      return "it refuted";
    case Cause::session_lives:
      return "its session answers";
    case Cause::own_silence:
      return "accused while this node heard nobody";
    case Cause::expired:
      return "its record expired";
    case Cause::evicted:
      return "the member table is full";
  }
  return "unknown";
}

std::string describe(const MemberChange& change) {
  std::string text = short_form(change.id) + ": ";
  text += change.before ? name_of(*change.before) : "unknown";
  text += " -> ";
  text += change.after ? name_of(*change.after) : "forgotten";
  text += ", " + std::string(name_of(change.cause));
  if (change.noticed_by != change.id) text += ", noticed by " + short_form(change.noticed_by);
  if (change.evidence) text += " (" + std::string(name_of(*change.evidence)) + ")";
  if (change.silent_for)
    text += ", last heard " + std::to_string(change.silent_for->count() / 1000) + " ms ago";
  return text;
}

}  // namespace starling::gossip
