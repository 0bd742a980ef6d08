#include "gossip/membership/dial_plan.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {
namespace {

Duration with_jitter(Duration base, Rng& rng) {
  return base + Duration(static_cast<std::int64_t>(
                    rng.below(static_cast<std::uint64_t>(base.count()) / 2 + 1)));
}

}  // namespace

std::size_t DialPlan::outstanding(TimePoint now) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      entries_, [&](const auto& entry) { return entry.second.out_until > now; }));
}

bool DialPlan::take(TimePoint now, const NodeId& id, Manners manners, Rng& rng) {
  const auto [at, fresh] = entries_.try_emplace(id);
  Entry& entry = at->second;
  if (fresh && manners == Manners::after_you)
    entry.not_before = now + with_jitter(options_.courtesy, rng);
  // Nothing was heard of the last dial: another node may have answered at the address.
  if (entry.out_until != TimePoint{} && entry.out_until <= now) (void)on_failed(now, id, rng);
  if (now < entry.not_before || entry.out_until > now) return false;
  if (outstanding(now) >= options_.max_outstanding) return false;
  entry.out_until = now + options_.outcome;
  entry.not_before = entry.out_until;
  entry.purpose = Purpose::session;
  return true;
}

bool DialPlan::take_at_once(TimePoint now, const NodeId& id, Purpose purpose) {
  Entry& entry = entries_[id];
  if (now < entry.next_check || entry.out_until > now) return false;
  if (outstanding(now) >= options_.max_outstanding) return false;
  entry.next_check = now + options_.apart;
  entry.purpose = purpose;
  entry.out_until = now + options_.outcome;
  entry.not_before = entry.out_until;
  return true;
}

bool DialPlan::take_for_another(TimePoint now, const NodeId& id, Rng& rng) {
  if (outstanding(now) >= options_.max_outstanding / 4) return false;
  if (!take(now, id, Manners::at_once, rng)) return false;
  entries_.at(id).purpose = Purpose::answer;
  return true;
}

bool DialPlan::take_revival(TimePoint now, Rng& rng) {
  if (now < next_revival_) return false;
  next_revival_ = now + with_jitter(options_.revive_interval, rng);
  return true;
}

DialPlan::Purpose DialPlan::on_failed(TimePoint now, const NodeId& id, Rng& rng) {
  Entry& entry = entries_[id];
  entry.out_until = TimePoint{};
  entry.last_failure = now;
  entry.failures = std::min(entry.failures + 1, 1000U);
  entry.not_before = now + backoff(entry.failures, rng);
  return entry.purpose;
}

void DialPlan::on_up(const NodeId& id) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  at->second = {.next_check = at->second.next_check, .brief = at->second.brief};
  if (at->second.brief == 0 && at->second.next_check == TimePoint{}) entries_.erase(at);
}

void DialPlan::forget(const NodeId& id) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  const auto [floor, next_check] = std::pair(at->second.floor, at->second.next_check);
  at->second = {.not_before = floor, .floor = floor, .next_check = next_check};
}

void DialPlan::pass_over_nobody() {
  for (auto& [id, entry] : entries_) entry.failures = 0;
}

void DialPlan::on_down(TimePoint now, const NodeId& id, Duration lived, Answered answered,
                       Rng& rng) {
  const bool helped = answered == Answered::yes || lived >= options_.settled;
  const TimePoint began = now - lived;
  const TimePoint next = began + with_jitter(options_.apart, rng);
  const auto known = entries_.find(id);
  const bool checked = known != entries_.end() && now < known->second.next_check;
  if (helped && next <= now && !checked) {
    entries_.erase(id);
    return;
  }
  Entry& entry = entries_[id];
  entry.floor = began + options_.apart;
  entry.not_before = next;
  entry.brief = helped ? 0 : std::min(entry.brief + 1, 1000U);
  if (entry.brief > options_.forgiven)
    entry.not_before = std::max(next, now + backoff(entry.brief - options_.forgiven, rng));
}

Duration DialPlan::backoff(std::uint32_t failures, Rng& rng) const {
  const auto doublings = std::min(failures - 1, 16U);
  return with_jitter(std::min(options_.last_backoff, options_.first_backoff * (1 << doublings)),
                     rng);
}

void DialPlan::keep_only(const std::set<NodeId>& wanted, TimePoint now) {
  std::erase_if(entries_, [&](const auto& item) {
    const auto& [id, entry] = item;
    return !wanted.contains(id) && entry.out_until <= now &&
           std::max(entry.floor, entry.next_check) <= now &&
           entry.last_failure + 2 * remembered(entry) <= now;
  });
}

Duration DialPlan::remembered(const Entry& entry) const {
  if (entry.failures <= options_.failures_to_walk_past) return options_.walk_past;
  const auto doublings = std::min(entry.failures - options_.failures_to_walk_past, 16U);
  return std::min(options_.last_walk_past, options_.walk_past * (1 << doublings));
}

bool DialPlan::is_out(TimePoint now, const NodeId& id) const {
  const auto at = entries_.find(id);
  return at != entries_.end() && at->second.out_until > now;
}

bool DialPlan::passed_over(TimePoint now, const NodeId& id) const {
  const auto at = entries_.find(id);
  return at != entries_.end() && at->second.failures >= options_.failures_to_walk_past &&
         now < at->second.last_failure + remembered(at->second);
}

TimePoint DialPlan::due(const NodeId& id) const {
  const auto at = entries_.find(id);
  return at == entries_.end() ? kNever : at->second.not_before;
}

}  // namespace starling::gossip
