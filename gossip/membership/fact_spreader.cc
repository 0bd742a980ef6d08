#include "gossip/membership/fact_spreader.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {
namespace {

// What Cap'n Proto adds to a statement: a list pointer, padding and the age, rounded up.
constexpr std::size_t kStatementOverhead = 40;

}  // namespace

std::size_t wire_bytes(const AgedRecord& record) {
  return encode_record(record.record).size() + kStatementOverhead;
}

std::vector<Facts> split(const Facts& facts) {
  std::vector<Facts> parts;
  std::size_t used = kMaxFactsBytes;  // the first statement opens the first part
  const auto room_for = [&](std::size_t bytes) -> Facts& {
    if (used + bytes > kMaxFactsBytes) {
      parts.emplace_back();
      used = 0;
    }
    used += bytes;
    return parts.back();
  };
  for (const auto& record : facts.records) room_for(wire_bytes(record)).records.push_back(record);
  for (const auto& accusation : facts.accusations)
    room_for(kAccusationBytes + kStatementOverhead).accusations.push_back(accusation);
  for (const auto& report : facts.reports)
    room_for(kProgressReportBytes + kStatementOverhead).reports.push_back(report);
  for (const auto& name : facts.has) room_for(kFactNameBytes).has.push_back(name);
  for (const auto& name : facts.wants) room_for(kFactNameBytes).wants.push_back(name);
  return parts;
}

void FactSpreader::on_session_up(const NodeId& peer) {
  peers_.insert_or_assign(peer,
                          Peer{TokenBucket(options_.facts_per_second, options_.fact_burst),
                               TokenBucket(options_.reports_per_second, options_.report_burst),
                               TokenBucket(options_.answers_per_second, options_.answer_burst),
                               TokenBucket(options_.names_per_second, options_.name_burst),
                               TokenBucket(options_.names_per_second, options_.name_burst),
                               std::nullopt,
                               {},
                               {},
                               {}});
  announcements_.on_session_up(peer);
}

void FactSpreader::on_session_down(TimePoint now, const NodeId& peer) {
  peers_.erase(peer);
  announcements_.on_session_down(now, peer);
}

template <class T>
bool FactSpreader::Pending<T>::is_new_to(const NodeId& peer) const {
  return std::ranges::find(holders, peer) == holders.end();
}

std::vector<NodeId> FactSpreader::holders_of(const NodeId& source, const FactName& name) {
  auto holders = announcements_.on_held(name);
  if (std::ranges::find(holders, source) == holders.end()) holders.push_back(source);
  return holders;
}

void FactSpreader::push(const AgedRecord& record, const NodeId& source, Haste haste) {
  using enum Pending<AgedRecord>::Way;
  const NodeId& id = record.record.id;
  const auto way_of = [&] {
    switch (haste) {
      case Haste::urgent:
        return send;
      case Haste::at_once:
        return source == id || members_ <= options_.send_news_up_to ? send : announce;
      case Haste::routine:
        return source == self_ ? send : announce;
    }
    return send;
  };
  Pending<AgedRecord> fresh{record, holders_of(source, name_of(record.record)), way_of()};
  for (auto& pending : records_) {
    if (pending.statement.record.id != id) continue;
    pending = std::move(fresh);
    return;
  }
  if (haste == Haste::routine) {
    if (renewals_.size() < options_.max_pending || renewals_.contains(id))
      renewals_.insert_or_assign(id, std::move(fresh));
    return;
  }
  renewals_.erase(id);
  if (records_.size() < options_.max_pending) records_.push_back(std::move(fresh));
}

void FactSpreader::on_repeat(const AgedRecord& record, const NodeId& peer) {
  note_holder(name_of(record.record), peer);
}

void FactSpreader::on_repeat(const ProgressReport& report, const NodeId& peer) {
  note_holder(name_of(report), peer);
  const auto at = peers_.find(peer);
  if (at != peers_.end() && at->second.repeated.size() < options_.max_pending)
    at->second.repeated.push_back(name_of(report));
}

void FactSpreader::note_holder(const FactName& name, const NodeId& peer) {
  const auto note = [&](auto& waiting, std::uint64_t version) {
    if (version <= name.version && waiting.is_new_to(peer)) waiting.holders.push_back(peer);
  };
  if (name.kind == FactName::Kind::report) {
    if (const auto told = peers_.find(peer); told != peers_.end())
      told->second.subscribed.erase(name.subject);
    const auto at = find_prefix(reports_, name.subject);
    if (at != reports_.end()) note(at->second, name_of(at->second.statement).version);
    return;
  }
  const auto at = find_prefix(renewals_, name.subject);
  if (at != renewals_.end()) note(at->second, name_of(at->second.statement.record).version);
}

void FactSpreader::push(const Accusation& accusation, const NodeId& source) {
  if (accusations_.size() < options_.max_pending) accusations_.push_back({accusation, {source}});
}

void FactSpreader::push(const ProgressReport& report, const NodeId& source) {
  using enum Pending<ProgressReport>::Way;
  Pending<ProgressReport> fresh{report, holders_of(source, name_of(report)),
                                source == self_ ? send : announce};
  if (reports_.size() < options_.max_pending || reports_.contains(report.id))
    reports_.insert_or_assign(report.id, std::move(fresh));
}

void FactSpreader::add_reports(const NodeId& to, Facts& facts) {
  const auto peer = peers_.find(to);
  for (const auto& [id, pending] : reports_) {
    if (id == to || !pending.is_new_to(to)) continue;
    if (pending.way == Pending<ProgressReport>::Way::send ||
        (peer != peers_.end() && peer->second.subscribed.contains(prefix_of(id))))
      facts.reports.push_back(pending.statement);
    else
      facts.has.push_back(name_of(pending.statement));
  }
  if (peer == peers_.end()) return;
  for (const auto& [id, report] : std::exchange(peer->second.owed, {}))
    if (!reports_.contains(id)) facts.reports.push_back(report);
  for (const auto& name : std::exchange(peer->second.repeated, {})) facts.has.push_back(name);
}

std::vector<FactSpreader::Push> FactSpreader::flush(TimePoint now, std::span<const NodeId> sessions,
                                                    Urgency urgency) {
  std::vector<Push> pushes;
  const bool routine = urgency == Urgency::everything;
  if (!has_facts() && !routine) return pushes;
  std::map<NodeId, std::vector<FactName>> overdue;
  if (routine)
    for (auto& ask : announcements_.take_overdue(now)) overdue[ask.peer] = std::move(ask.names);
  for (const auto& to : sessions) {
    Facts facts;
    const auto add_record = [&](const Pending<AgedRecord>& pending) {
      const MemberRecord& record = pending.statement.record;
      if (record.id == to || !pending.is_new_to(to)) return;
      if (pending.way == Pending<AgedRecord>::Way::send)
        facts.records.push_back(pending.statement);
      else
        facts.has.push_back(name_of(record));
    };
    for (const auto& pending : records_) add_record(pending);
    for (const auto& pending : accusations_)
      if (pending.is_new_to(to)) facts.accusations.push_back(pending.statement);
    if (routine) {
      for (const auto& [id, pending] : renewals_) add_record(pending);
      add_reports(to, facts);
      if (const auto ask = overdue.find(to); ask != overdue.end())
        facts.wants = std::move(ask->second);
    }
    for (auto& part : split(facts)) pushes.push_back({to, std::move(part)});
  }
  records_.clear();
  accusations_.clear();
  if (!routine) return pushes;
  renewals_.clear();
  reports_.clear();
  return pushes;
}

bool FactSpreader::on_announced(TimePoint now, const NodeId& peer, const FactName& name) {
  return announcements_.on_announced(now, peer, name);
}

void FactSpreader::on_wanted(const NodeId& peer, const ProgressReport& report) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;
  if (at->second.owed.size() < options_.max_pending)
    at->second.owed.insert_or_assign(report.id, report);
  if (at->second.subscribed.size() < options_.announcements.max_sources)
    at->second.subscribed.insert(prefix_of(report.id));
}

bool FactSpreader::may_name(TimePoint now, const NodeId& peer) {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.named.try_take(now);
}

bool FactSpreader::may_want(TimePoint now, const NodeId& peer) {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.wanted.try_take(now);
}

bool FactSpreader::may_send_fact(TimePoint now, const NodeId& peer) {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.facts.try_take(now);
}

bool FactSpreader::may_send_report(TimePoint now, const NodeId& peer) {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.reports.try_take(now);
}

bool FactSpreader::may_answer(TimePoint now, const NodeId& peer) {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.answers.try_take(now);
}

std::optional<BucketRequest> FactSpreader::ask(const NodeId& peer, const Digest& mine,
                                               const Digest& theirs, std::uint64_t nonce) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return std::nullopt;
  BucketRequest request;
  request.nonce = nonce;
  for (std::size_t i = 0; i < kBuckets; ++i)
    request.buckets[i] = mine.buckets[i] != theirs.buckets[i];
  if (request.buckets.none()) return std::nullopt;
  at->second.asked = request;  // an older request is given up: this digest is newer
  return request;
}

bool FactSpreader::answers_request(const NodeId& peer, const Facts& facts) const {
  const auto at = peers_.find(peer);
  return facts.answers != 0 && at != peers_.end() && at->second.asked &&
         at->second.asked->nonce == facts.answers;
}

bool FactSpreader::was_asked_for(const NodeId& peer, const NodeId& id) const {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.asked && at->second.asked->buckets[bucket_of(id)] &&
         at->second.asked->after < id;
}

std::optional<BucketRequest> FactSpreader::continue_request(const NodeId& peer, const Facts& answer,
                                                            std::uint64_t nonce) {
  if (!answers_request(peer, answer)) return std::nullopt;
  auto& asked = peers_.at(peer).asked;
  // An answer that does not move forward would make us ask for ever.
  if (!answer.more_after || !(asked->after < *answer.more_after)) {
    asked.reset();
    return std::nullopt;
  }
  asked->after = *answer.more_after;
  asked->nonce = nonce;
  return asked;
}

}  // namespace starling::gossip
