#include "gossip/membership/fact_spreader.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {
namespace {

// What Cap'n Proto adds to a statement: a list pointer, padding and the age, rounded up.
constexpr std::size_t kStatementOverhead = 40;

}  // namespace

bool Allowance::take(TimePoint now) {
  if (now > at_) {
    if (at_ != TimePoint{}) left_ = std::min(burst_, left_ + seconds(now - at_) * rate_);
    at_ = now;
  }
  if (left_ < 1) return false;
  left_ -= 1;
  return true;
}

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
  return parts;
}

void FactSpreader::on_session_up(const NodeId& peer) {
  peers_.insert_or_assign(
      peer, Peer{Allowance(options_.facts_per_second, options_.fact_burst),
                 Allowance(options_.reports_per_second, options_.report_burst), std::nullopt});
}

void FactSpreader::on_session_down(const NodeId& peer) { peers_.erase(peer); }

template <class T>
bool FactSpreader::Pending<T>::is_new_to(const NodeId& peer) const {
  return std::ranges::find(holders, peer) == holders.end();
}

void FactSpreader::push(const AgedRecord& record, const NodeId& source, Haste haste) {
  const NodeId& id = record.record.id;
  for (auto& pending : records_) {
    if (pending.statement.record.id != id) continue;
    pending = {record, {source}};
    return;
  }
  if (haste == Haste::routine) {
    if (renewals_.size() < options_.max_pending || renewals_.contains(id))
      renewals_.insert_or_assign(id, Pending<AgedRecord>{record, {source}});
    return;
  }
  renewals_.erase(id);
  if (records_.size() < options_.max_pending) records_.push_back({record, {source}});
}

void FactSpreader::on_repeat(const AgedRecord& record, const NodeId& peer) {
  const auto at = renewals_.find(record.record.id);
  if (at == renewals_.end()) return;
  auto& pending = at->second;
  if (record.record.incarnation == pending.statement.record.incarnation && pending.is_new_to(peer))
    pending.holders.push_back(peer);
}

void FactSpreader::on_repeat(const ProgressReport& report, const NodeId& peer) {
  const auto at = reports_.find(report.id);
  if (at == reports_.end()) return;
  auto& pending = at->second;
  if (report.samples >= pending.statement.samples && pending.is_new_to(peer))
    pending.holders.push_back(peer);
}

void FactSpreader::push(const Accusation& accusation, const NodeId& source) {
  if (accusations_.size() < options_.max_pending) accusations_.push_back({accusation, {source}});
}

void FactSpreader::push(const ProgressReport& report, const NodeId& source) {
  if (reports_.size() < options_.max_pending || reports_.contains(report.id))
    reports_.insert_or_assign(report.id, Pending<ProgressReport>{report, {source}});
}

std::vector<FactSpreader::Push> FactSpreader::flush(std::span<const NodeId> sessions,
                                                    Urgency urgency) {
  std::vector<Push> pushes;
  const bool routine = urgency == Urgency::everything;
  if (!has_facts() && (!routine || (renewals_.empty() && reports_.empty()))) return pushes;
  for (const auto& to : sessions) {
    Facts facts;
    for (const auto& pending : records_)
      if (pending.is_new_to(to) && pending.statement.record.id != to)
        facts.records.push_back(pending.statement);
    for (const auto& pending : accusations_)
      if (pending.is_new_to(to)) facts.accusations.push_back(pending.statement);
    if (routine) {
      for (const auto& [id, pending] : renewals_)
        if (pending.is_new_to(to) && id != to) facts.records.push_back(pending.statement);
      for (const auto& [id, pending] : reports_)
        if (pending.is_new_to(to) && id != to) facts.reports.push_back(pending.statement);
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

bool FactSpreader::may_send_fact(TimePoint now, const NodeId& peer) {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.facts.take(now);
}

bool FactSpreader::may_send_report(TimePoint now, const NodeId& peer) {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.reports.take(now);
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
