// Messages of others: what is taken from them, and what is passed on.
#include "gossip/membership/membership.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {
namespace {

// An accusation that its subject refutes this soon was false: somebody who had really been silent
// could not have answered before it woke.
constexpr Duration kFalseAlarm = std::chrono::seconds(1);
constexpr std::uint32_t kMaxFalseAlarms = 8;
constexpr Duration kFalseAlarmWindow = std::chrono::minutes(1);
// A digest costs a hash over all members.
constexpr Duration kDigestGap = std::chrono::milliseconds(500);
// Two processes with one identity outbid each other ever more rarely, but at least this often.
constexpr Duration kMaxOutbidGap = std::chrono::minutes(1);
// A record may be older than its age says: every member that passes it on rounds to seconds.
constexpr Duration kAgeError = std::chrono::seconds(10);

Offence offence(const NodeId& from, Errc code, std::string detail) {
  return {from, Error{code, Doing::reading_message, std::move(detail)}};
}

}  // namespace

MembershipEffects Membership::on_message(TimePoint now, const NodeId& from,
                                         const MembershipMessage& message) {
  MembershipEffects effects;
  if (!sessions_.contains(from)) return effects;  // it ended while the message was on its way
  (void)note_life(now, from, effects);
  std::visit([&](const auto& content) { take(now, from, content, effects); }, message);
  finish_event(now, effects);
  return effects;
}

MembershipEffects Membership::on_heard(TimePoint now, const NodeId& from, Traffic traffic) {
  MembershipEffects effects;
  const auto at = sessions_.find(from);
  if (at == sessions_.end()) return effects;
  if (traffic == Traffic::use) at->second.used = now;
  if (note_life(now, from, effects)) finish_event(now, effects);
  promise_tick(now);  // the next heartbeat to this peer was put off
  return effects;
}

// Whether that is news to anybody.
bool Membership::note_life(TimePoint now, const NodeId& from, MembershipEffects& effects) {
  Session& session = sessions_.at(from);
  session.watch.on_heard(now);
  if (session.state == SessionState::silent) hear_again(now, effects);
  heard_anybody_ = now;
  finish_errands(from, effects);
  if (session.state != SessionState::silent) return !effects.send.empty();
  session.state = SessionState::answering;
  close_case(from);
  reassess(now, from, {Cause::session_lives, self_.id, std::nullopt}, effects);
  greet_accused(from, effects);
  return true;
}

// A member that was accused while it could not hear us must hear of it to refute.
void Membership::greet_accused(const NodeId& peer, MembershipEffects& effects) {
  const auto* member = table_.find(peer);
  if (member == nullptr || member->accusations.empty()) return;
  Facts facts;
  for (const auto& held : member->accusations) facts.accusations.push_back(held.accusation);
  effects.send.push_back({peer, std::move(facts)});
}

void Membership::take(TimePoint now, const NodeId& from, const Heartbeat& heartbeat,
                      MembershipEffects& effects) {
  Session& session = sessions_.at(from);
  session.watch.on_asked(now);
  session.unneeded_there = heartbeat.unneeded;
  effects.send.push_back({from, HeartbeatAck{heartbeat.seq, session.unneeded}});
  if (heartbeat.view != 0) compare_view(now, from, heartbeat.view, effects);
}

void Membership::compare_view(TimePoint now, const NodeId& with, std::uint64_t view,
                              MembershipEffects& effects) {
  auto& last = sessions_.at(with).last_view;
  if (last && now - *last < kDigestGap) return;
  last = now;
  Digest mine = table_.digest(self_);
  if (digest_hash(mine) == view) return;
  mine.wants_reply = true;
  effects.send.push_back({with, mine});
}

void Membership::take(TimePoint now, const NodeId& from, const HeartbeatAck& ack,
                      MembershipEffects&) {
  Session& session = sessions_.at(from);
  session.unneeded_there = ack.unneeded;
  session.watch.on_answer(now, ack.seq);
}

void Membership::take(TimePoint now, const NodeId& from, const ProbeRequest& probe,
                      MembershipEffects& effects) {
  on_probe(now, from, probe, effects);
}

void Membership::take(TimePoint now, const NodeId&, const ProbeReply& reply, MembershipEffects&) {
  on_probe_reply(now, reply);
}

void Membership::take(TimePoint now, const NodeId& from, const Facts& facts,
                      MembershipEffects& effects) {
  const Origin origin{from, spreader_.answers_request(from, facts) ? Origin::Kind::asked_for
                                                                   : Origin::Kind::pushed};
  for (const auto& record : facts.records) take_record(now, origin, record, effects);
  for (const auto& accusation : facts.accusations)
    take_accusation(now, origin, accusation, effects);
  for (const auto& report : facts.reports) take_report(now, origin, report, effects);
  consider_announced(now, from, facts.has, effects);
  send_wanted(now, from, facts.wants, effects);
  if (origin.kind == Origin::Kind::pushed) return;
  if (auto next = spreader_.continue_request(from, facts, rng_() | 1U)) {
    effects.send.push_back({from, *next});
    return;
  }
  // Accusers that were unknown when their accusations came may be known now.
  std::vector<NodeId> accused;
  for (const auto& [id, member] : table_.all())
    if (!member.accusations.empty() && member.state != MemberState::dead) accused.push_back(id);
  for (const auto& id : accused) reassess(now, id, {Cause::accused, from, std::nullopt}, effects);
}

// What is said of members that nobody has introduced yet would not be taken.
bool Membership::misses(const FactName& name) const {
  if (name.subject == prefix_of(self_.id)) return false;
  const auto at = find_prefix(table_.all(), name.subject);
  if (name.kind == FactName::Kind::record)
    return at == table_.all().end() || name_of(at->second.record) < name;
  if (at == table_.all().end()) return false;
  const auto* report = progress_.report_of(at->first);
  return report == nullptr || name_of(*report) < name;
}

void Membership::consider_announced(TimePoint now, const NodeId& from,
                                    std::span<const FactName> names, MembershipEffects& effects) {
  Facts question;
  for (const auto& name : names) {
    if (!spreader_.may_name(now, from)) break;
    if (!misses(name))
      spreader_.note_holder(name, from);
    else if (spreader_.on_announced(now, from, name))
      question.wants.push_back(name);
  }
  for (auto& part : split(question)) effects.send.push_back({from, std::move(part)});
}

void Membership::send_wanted(TimePoint now, const NodeId& to, std::span<const FactName> names,
                             MembershipEffects& effects) {
  Facts answer;
  for (const auto& name : names) {
    if (!spreader_.may_want(now, to)) break;
    const auto member = find_prefix(table_.all(), name.subject);
    if (name.subject == prefix_of(self_.id)) {
      if (name.kind == FactName::Kind::record)
        answer.records.push_back({self_, seconds_since(self_signed_, now)});
    } else if (member == table_.all().end()) {
      continue;
    } else if (name.kind == FactName::Kind::record) {
      answer.records.push_back({member->second.record, table_.age_s(member->second, now)});
    } else if (const auto* report = progress_.report_of(member->first)) {
      spreader_.on_wanted(to, *report);
    }
  }
  for (auto& part : split(answer)) effects.send.push_back({to, std::move(part)});
}

void Membership::take(TimePoint now, const NodeId& from, const Digest& digest,
                      MembershipEffects& effects) {
  auto& session = sessions_.at(from);
  if (session.last_digest && now - *session.last_digest < kDigestGap) return;
  session.last_digest = now;
  if (fault::planted("membership.digests_ignored")) return;
  const Digest mine = table_.digest(self_);
  if (auto request = spreader_.ask(from, mine, digest, rng_() | 1U))
    effects.send.push_back({from, *request});
  if (digest.wants_reply) effects.send.push_back({from, mine});
}

void Membership::take(TimePoint now, const NodeId& from, const BucketRequest& request,
                      MembershipEffects& effects) {
  if (!sessions_.at(from).requests.try_take(now)) return;
  Facts answer;
  answer.answers = request.nonce;
  std::size_t used = 0;
  bool full = false;
  NodeId last = request.after;
  // False once there is no room: then `last` is where the asker goes on.
  const auto add = [&](const AgedRecord& record, const MemberEntry* member) {
    const std::size_t statements = member ? member->accusations.size() + 1 : 1;
    const std::size_t bytes = wire_bytes(record) + statements * (kAccusationBytes + 40);
    if (used + bytes > kMaxFactsBytes) {
      full = true;
      return;
    }
    used += bytes;
    last = record.record.id;
    answer.records.push_back(record);
    if (member == nullptr) return;
    for (const auto& held : member->accusations) answer.accusations.push_back(held.accusation);
    if (const auto* report = progress_.report_of(last)) answer.reports.push_back(*report);
  };
  bool self_due = request.after < self_.id && request.buckets[bucket_of(self_.id)];
  for (auto at = table_.all().upper_bound(request.after); at != table_.all().end() && !full; ++at) {
    if (self_due && self_.id < at->first) {
      self_due = false;
      add({self_, seconds_since(self_signed_, now)}, nullptr);
      if (full) break;
    }
    if (request.buckets[bucket_of(at->first)])
      add({at->second.record, table_.age_s(at->second, now)}, &at->second);
  }
  if (self_due && !full) add({self_, seconds_since(self_signed_, now)}, nullptr);
  if (full) answer.more_after = last;
  effects.send.push_back({from, std::move(answer)});
}

// ---- statements

// A newcomer does not know yet how large the swarm is: it takes what anybody may hold.
Duration Membership::lifetime() const {
  const auto& table = options_.table;
  return table.lifetime(self_.state == RecordState::joining ? table.max_records : alive_count());
}

// What an earlier process said of this node, or a clone says: outbid. A clone does the same, so
// each answer comes later than the one before.
void Membership::take_own_record(TimePoint now, const AgedRecord& aged,
                                 MembershipEffects& effects) {
  // Copies that come before the answer is out say nothing new.
  if (renewal_due_ == kNever && !renewal_waits_) {
    // No earlier process signs anything once this one has begun.
    const bool signed_since = now - std::chrono::seconds(aged.age_s) > began_ + kAgeError;
    if (signed_since || aged.record.incarnation == self_.incarnation)
      effects.notices.push_back(Notice::clone_seen);
    outbid_gap_ = std::clamp(2 * outbid_gap_, kRefutationGap, kMaxOutbidGap);
  }
  refute(now, aged.record.incarnation.next(), outbid_gap_, effects);
}

void Membership::take_record(TimePoint now, const Origin& origin, const AgedRecord& aged,
                             MembershipEffects& effects) {
  const MemberRecord& record = aged.record;
  const bool own = record.id == self_.id;
  const auto age = std::chrono::seconds(aged.age_s);
  if (own ? record.instance == self_.instance || record.incarnation < self_.incarnation
          : age >= lifetime())
    return;
  const auto* held = table_.find(record.id);
  const bool asked =
      origin.kind == Origin::Kind::asked_for && spreader_.was_asked_for(origin.peer, record.id);
  if (held != nullptr) {
    if (record.incarnation < held->record.incarnation &&
        !fault::planted("membership.old_incarnation_accepted"))
      return;
    // A clone: everybody keeps the same one of the two.
    if (record.incarnation == held->record.incarnation &&
        record.instance <= held->record.instance &&
        !fault::planted("membership.equal_incarnation_accepted"))
      return spreader_.on_repeat(aged, origin.peer);
  }
  // Nobody pays for a check of what finds no place.
  if (held == nullptr && !own && !has_place(record.id)) return;
  if (!may_say(now, origin.peer, asked)) return;
  if (verify_record(record, swarm_, verifier_) != Verdict::valid) {
    effects.offences.push_back(
        offence(origin.peer, Errc::bad_signature, "record of " + short_form(record.id)));
    return;
  }
  if (own) return take_own_record(now, aged, effects);
  const bool refutes =
      held != nullptr && (!held->accusations.empty() || held->state == MemberState::dead);
  const auto haste = refutes ? FactSpreader::Haste::urgent
                     : held != nullptr && says_the_same(record, held->record)
                         ? FactSpreader::Haste::routine
                         : FactSpreader::Haste::at_once;
  if (!store_record(now, record, now - age, effects)) return;
  // A newcomer that loads the whole view passes nothing of it on.
  if (asked && self_.state != RecordState::alive) return;
  spreader_.push(aged, origin.peer, haste);
}

bool Membership::may_say(TimePoint now, const NodeId& peer, bool asked) {
  return asked ? spreader_.may_answer(now, peer) : spreader_.may_send_fact(now, peer);
}

bool Membership::has_place(const NodeId& id) const {
  return table_.has_room() || sessions_.contains(id);
}

// Whoever has a session with this node is there. Of the others it knows records, which may be of
// nobody: in a table full of them one makes room. At random, since ids can be chosen.
void Membership::make_room(TimePoint now, const NodeId& id, MembershipEffects& effects) {
  if (table_.has_room() || !sessions_.contains(id)) return;
  std::vector<NodeId> others;
  for (const auto& [other, member] : table_.all())
    if (!sessions_.contains(other)) others.push_back(other);
  if (others.empty()) return;
  forget(now, others[rng_.below(others.size())], Cause::evicted, effects);
}

// Whether there was a place for it.
bool Membership::store_record(TimePoint now, const MemberRecord& record, TimePoint signed_at,
                              MembershipEffects& effects) {
  const auto* held = table_.find(record.id);
  Why why{Cause::own_word, record.id, std::nullopt};
  const bool known = held != nullptr;
  if (known) {
    if (!held->accusations.empty()) {
      why.cause = Cause::refuted;
      count_false_alarms(now, *held);
    }
    // Whoever refutes lives, which says nothing of its address unless it was away until now.
    const bool back = held->state == MemberState::dead || doubtful(now, *held);
    const bool moved = held->record.addresses != record.addresses;
    if (held->record.instance != record.instance) why.cause = Cause::new_process;
    if (moved || back || why.cause == Cause::new_process) dials_.forget(record.id);
  }
  const bool restarted = why.cause == Cause::new_process;
  close_case(record.id);
  if (!known) make_room(now, record.id, effects);
  const auto placed = table_.put(record, signed_at);
  if (placed.member == nullptr) return false;
  progress_.on_settings(now, record.id, record.settings);
  if (placed.evicted) {
    topology_.remove(placed.evicted->record.id);
    effects.changes.push_back({.id = placed.evicted->record.id,
                               .before = placed.evicted->state,
                               .after = std::nullopt,
                               .cause = Cause::evicted,
                               .noticed_by = self_.id,
                               .evidence = std::nullopt,
                               .silent_for = std::nullopt});
  }
  placed.member->last_word = now;
  const std::size_t changes = effects.changes.size();
  if (!known) {
    table_.set_state(*placed.member, judge(now, *placed.member), now);
    place_in_topology(*placed.member);
    effects.changes.push_back({.id = record.id,
                               .before = std::nullopt,
                               .after = placed.member->state,
                               .cause = why.cause,
                               .noticed_by = record.id,
                               .evidence = std::nullopt,
                               .silent_for = std::nullopt});
    return true;
  }
  place_in_topology(*placed.member);
  reassess(now, record.id, why, effects);
  // Its state may be the same as before, and yet every edge with the old process is void.
  if (restarted && effects.changes.size() == changes)
    effects.changes.push_back({.id = record.id,
                               .before = placed.member->state,
                               .after = placed.member->state,
                               .cause = Cause::new_process,
                               .noticed_by = record.id,
                               .evidence = std::nullopt,
                               .silent_for = std::nullopt});
  return true;
}

void Membership::count_false_alarms(TimePoint now, const MemberEntry& subject) {
  for (const auto& [accusation, received] : subject.accusations) {
    if (now - received > kFalseAlarm) continue;
    if (accusation.accuser == self_.id) {
      health_.on_refuted_accusation();
      continue;
    }
    if (auto* accuser = table_.find(accusation.accuser)) count_false_alarm(now, *accuser);
  }
}

void Membership::count_false_alarm(TimePoint now, MemberEntry& accuser) {
  if (now - accuser.false_alarms_since > kFalseAlarmWindow) {
    accuser.false_alarms_since = now;
    accuser.false_alarms = 0;
  }
  if (++accuser.false_alarms < kMaxFalseAlarms) return;
  accuser.false_alarms = 0;
  accuser.discredited_until = now + kFalseAlarmWindow;
}

// It is refuted whoever made it: others may believe an accuser that counts for nothing here. As a
// hint that others do not hear us it counts like any other false alarm.
void Membership::take_own_accusation(TimePoint now, MemberEntry* credible,
                                     MembershipEffects& effects) {
  // Copies that come before the refutation is out say nothing new.
  if (renewal_due_ == kNever && !renewal_waits_) {
    effects.notices.push_back(Notice::accused_here);
    if (credible != nullptr) {
      health_.on_accused();
      count_false_alarm(now, *credible);
    }
  }
  if (!fault::planted("membership.no_refutation"))
    refute(now, self_.incarnation.next(), kRefutationGap, effects);
}

void Membership::take_accusation(TimePoint now, const Origin& origin, const Accusation& accusation,
                                 MembershipEffects& effects) {
  const bool asked = origin.kind == Origin::Kind::asked_for &&
                     spreader_.was_asked_for(origin.peer, accusation.subject);
  if (accusation.accuser == self_.id || accusation.accuser == accusation.subject) return;
  auto* accuser = table_.find(accusation.accuser);
  const bool departed = accuser != nullptr && (accuser->state == MemberState::dead ||
                                               accuser->state == MemberState::left);
  const bool credible = accuser != nullptr && !departed && now >= accuser->discredited_until;
  const bool about_us = accusation.subject == self_.id;
  if (!asked && !about_us && !credible) return;
  auto* member = table_.find(accusation.subject);
  if (about_us) {
    if (accusation.incarnation != self_.incarnation || self_.state == RecordState::left) return;
  } else {
    if (member == nullptr || member->record.incarnation != accusation.incarnation) return;
    if (member->record.state == RecordState::left || table_.holds(*member, accusation)) return;
  }
  if (!may_say(now, origin.peer, asked)) return;
  if (verify_accusation(accusation, swarm_, verifier_) != Verdict::valid) {
    effects.offences.push_back(offence(origin.peer, Errc::bad_signature,
                                       "accusation by " + short_form(accusation.accuser)));
    return;
  }
  if (about_us) return take_own_accusation(now, credible ? accuser : nullptr, effects);
  const auto added = table_.accuse(*member, accusation, now);
  if (added == MemberTable::Added::full) return;
  if (!asked || self_.state == RecordState::alive) spreader_.push(accusation, origin.peer);
  reassess(now, accusation.subject, {Cause::accused, accusation.accuser, accusation.evidence},
           effects);
  corroborate(now, accusation.subject);
  consider_witnessing(now, accusation.subject, effects);
}

void Membership::take_report(TimePoint now, const Origin& origin, const ProgressReport& report,
                             MembershipEffects& effects) {
  auto* member = table_.find(report.id);
  if (report.id != self_.id && member == nullptr) return;
  if (!progress_.is_news(report)) return spreader_.on_repeat(report, origin.peer);
  const bool asked =
      origin.kind == Origin::Kind::asked_for && spreader_.was_asked_for(origin.peer, report.id);
  const bool may_send =
      asked ? spreader_.may_answer(now, origin.peer) : spreader_.may_send_report(now, origin.peer);
  if (!may_send) return;
  if (verify_report(report, swarm_, verifier_) != Verdict::valid) {
    effects.offences.push_back(
        offence(origin.peer, Errc::bad_signature, "progress report of " + short_form(report.id)));
    return;
  }
  const Hash settings = member == nullptr ? Hash{} : member->record.settings;
  if (progress_.on_report(now, report, settings) != Progress::News::fresh) return;
  member->last_word = now;
  if (member->state == MemberState::dead || member->state == MemberState::left)
    progress_.on_departed(now, report.id);
  spreader_.push(report, origin.peer);
}

}  // namespace starling::gossip
