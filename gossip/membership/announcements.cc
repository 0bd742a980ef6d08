#include "gossip/membership/announcements.h"

#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {

void Announcements::on_session_up(const NodeId& peer) { peers_.try_emplace(peer); }

void Announcements::on_session_down(TimePoint now, const NodeId& peer) {
  for (auto at = missing_.begin(); at != missing_.end();) {
    Missing& missing = at->second;
    std::erase(missing.holders, peer);
    if (missing.asked == peer) {
      missing.asked.reset();
      missing.due = now;
    }
    // What one peer said first is on its account, and goes with it unless others said it too.
    if (missing.holders.empty()) {
      at = forget(at);
      continue;
    }
    if (missing.first == peer) {
      missing.first = missing.holders.front();
      ++peers_[missing.first].missing;
    }
    ++at;
  }
  peers_.erase(peer);
}

Announcements::MissingMap::iterator Announcements::forget(MissingMap::iterator at) {
  if (const auto peer = peers_.find(at->second.first); peer != peers_.end()) --peer->second.missing;
  return missing_.erase(at);
}

bool Announcements::doubted(TimePoint now, const NodeId& peer) const {
  const auto at = peers_.find(peer);
  return at == peers_.end() || now < at->second.doubted_until;
}

std::vector<NodeId> Announcements::on_held(const FactName& name) {
  std::vector<NodeId> holders;
  auto at = missing_.lower_bound({name.subject, name.kind, 0});
  while (at != missing_.end() && at->first <= name) {
    if (at->first == name) holders = std::move(at->second.holders);
    at = forget(at);
  }
  return holders;
}

bool Announcements::on_announced(TimePoint now, const NodeId& peer, const FactName& name) {
  const auto account = peers_.find(peer);
  if (account == peers_.end()) return false;
  auto at = missing_.find(name);
  if (at == missing_.end()) {
    if (account->second.missing >= options_.max_missing_per_peer) return false;
    ++account->second.missing;
    at = missing_.try_emplace(name, Missing{peer, {}, std::nullopt, now + options_.patience}).first;
  }
  Missing& missing = at->second;
  if (std::ranges::find(missing.holders, peer) == missing.holders.end())
    missing.holders.push_back(peer);
  if (missing.asked || doubted(now, peer) || expected_from_another(now, peer, name)) return false;
  if (fault::planted("membership.announced_not_asked_for")) return false;
  if (name.kind == FactName::Kind::report) {
    missing.due = now;
    return false;
  }
  ask(now, name, missing, peer);
  return true;
}

void Announcements::ask(TimePoint now, const FactName& name, Missing& missing, const NodeId& peer) {
  missing.asked = peer;
  const bool report = name.kind == FactName::Kind::report;
  missing.due = now + (report ? options_.report_patience : options_.patience);
  if (!report) return;
  if (sources_.size() >= options_.max_sources && !sources_.contains(name.subject)) sources_.clear();
  sources_.insert_or_assign(name.subject, peer);
}

bool Announcements::expected_from_another(TimePoint now, const NodeId& peer,
                                          const FactName& name) const {
  if (name.kind != FactName::Kind::report) return false;
  const auto source = sources_.find(name.subject);
  return source != sources_.end() && source->second != peer && !doubted(now, source->second);
}

std::vector<Announcements::Ask> Announcements::take_overdue(TimePoint now) {
  std::map<NodeId, std::vector<FactName>> asks;
  for (auto at = missing_.begin(); at != missing_.end();) {
    auto& [name, missing] = *at;
    if (now < missing.due) {
      ++at;
      continue;
    }
    if (missing.asked) {
      peers_.at(*missing.asked).doubted_until = now + options_.doubt;
      std::erase(missing.holders, *missing.asked);
      missing.asked.reset();
    }
    if (missing.holders.empty() || fault::planted("membership.announced_not_asked_for")) {
      at = forget(at);
      continue;
    }
    const auto trusted = std::ranges::find_if(
        missing.holders, [&](const NodeId& holder) { return !doubted(now, holder); });
    ask(now, name, missing, trusted == missing.holders.end() ? missing.holders.front() : *trusted);
    asks[*missing.asked].push_back(name);
    ++at;
  }
  std::vector<Ask> all;
  all.reserve(asks.size());
  for (auto& [peer, names] : asks) all.push_back({peer, std::move(names)});
  return all;
}

}  // namespace starling::gossip
