// Whom to connect with: the part of Membership that chooses neighbours, dials and goodbyes.
#include "gossip/membership/membership.h"

#include <algorithm>
#include <set>
#include <vector>

namespace starling::gossip {

void Membership::refresh_neighbours(TimePoint now, MembershipEffects& effects) {
  std::vector<NodeId> found;
  if (self_.state != RecordState::left) {
    const auto possible = [&](const NodeId& id) {
      if (sessions_.contains(id)) return true;
      const auto* member = table_.find(id);
      if (member == nullptr) return false;
      return (member->record.dialable() || self_.dialable()) && !dials_.passed_over(now, id);
    };
    const auto reach = [&](const NodeId& id) {
      const auto at = sessions_.find(id);
      if (at != sessions_.end())
        return Reach{at->second.state == SessionState::answering, at->second.network};
      const auto* member = table_.find(id);
      if (member == nullptr || member->record.addresses.empty()) return Reach{};
      return Reach{false, network_of(host_of(member->record.addresses.front()))};
    };
    found = options_.strangers ? topology_.neighbours_among_strangers(self_.id, possible, reach)
                               : topology_.neighbours_of(self_.id, possible);
  }
  if (found == neighbours_) return;
  neighbours_ = std::move(found);
  effects.notices.push_back(Notice::neighbours_changed);
}

std::vector<NodeId> Membership::guests() const {
  if (!options_.strangers) return {};
  std::set<Network> seen;
  for (const auto& id : neighbours_)
    if (const auto at = sessions_.find(id); at != sessions_.end() && at->second.network)
      seen.insert(*at->second.network);
  std::vector<NodeId> found;
  for (const auto& [id, session] : sessions_)
    if (session.network && session.state == SessionState::answering && may_average_with(id) &&
        std::ranges::find(neighbours_, id) == neighbours_.end() &&
        seen.insert(*session.network).second)
      found.push_back(id);
  return found;
}

void Membership::refresh_wanted(TimePoint now, MembershipEffects& effects) {
  if (self_.state == RecordState::left) return;
  for (const auto& id : neighbours_) {
    const auto* member = table_.find(id);
    if (sessions_.contains(id) || member == nullptr || !member->record.dialable()) continue;
    const auto manners = self_.id < id || !self_.dialable() ? DialPlan::Manners::at_once
                                                            : DialPlan::Manners::after_you;
    if (dials_.take(now, id, manners, rng_))
      effects.wanted_sessions.push_back({id, member->record.addresses});
  }
  dials_.keep_only({neighbours_.begin(), neighbours_.end()}, now);
  const std::size_t missed = table_.count(MemberState::dead) + table_.count(MemberState::suspect);
  if (missed == 0 || !dials_.take_revival(now, rng_)) return;
  std::vector<const MemberEntry*> lost;
  for (const auto& [id, member] : table_.all())
    if ((member.state == MemberState::dead || doubtful(now, member)) && member.record.dialable() &&
        !dials_.is_out(now, id) && !sessions_.contains(id))
      lost.push_back(&member);
  if (lost.empty()) return;
  const auto& record = lost[rng_.below(lost.size())]->record;
  if (dials_.take_at_once(now, record.id, DialPlan::Purpose::session))
    effects.wanted_sessions.push_back({record.id, record.addresses});
}

// Whoever joined through this node, was its neighbour once, or was dialled to verify a suspicion
// has a session with it that nothing needs any more. Both sides have to say so: were it closed by
// one alone, the other would dial it again a moment later.
void Membership::close_unneeded(TimePoint now, MembershipEffects& effects) {
  for (auto& [id, session] : sessions_) {
    if (held_ || table_.find(id) != nullptr) session.known = now;
    if (now - session.known >= options_.nameless && !session.given_up) {
      session.given_up = true;
      effects.offences.push_back(
          {id, Error{Errc::timed_out, Doing::reading_message,
                     "no member record within " +
                         std::to_string(static_cast<int>(seconds(options_.nameless))) + " s"}});
    }
    if (has_use(id, session)) session.used = now;
    session.unneeded = now - session.used >= options_.unneeded;
    if (!session.unneeded || !session.unneeded_there || session.given_up) continue;
    session.given_up = true;
    effects.unneeded.push_back(id);
  }
}

// Where one side cannot be dialled, who may be a neighbour depends on the sessions that are there.
bool Membership::has_use(const NodeId& peer, const Session& session) const {
  if (held_ || self_.state != RecordState::alive || session.state == SessionState::silent)
    return true;
  if (std::ranges::find(neighbours_, peer) != neighbours_.end()) return true;
  const auto* member = table_.find(peer);
  if (member == nullptr || member->state != MemberState::alive || !member->accusations.empty())
    return true;
  const MemberRecord& record = member->record;
  return !record.dialable() || !self_.dialable() || record.settings != self_.settings;
}

}  // namespace starling::gossip
