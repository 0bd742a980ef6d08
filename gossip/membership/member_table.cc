#include "gossip/membership/member_table.h"

#include "node/base/check.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {
namespace {

bool departed(MemberState state) {
  return state == MemberState::dead || state == MemberState::left;
}

}  // namespace

std::string_view name_of(MemberState state) {
  switch (state) {
    case MemberState::joining:
      return "joining";
    case MemberState::alive:
      return "alive";
    case MemberState::suspect:
      return "suspect";
    case MemberState::dead:
      return "dead";
    case MemberState::left:
      return "left";
  }
  return "unknown";
}

std::size_t accusers(const MemberEntry& member, AccusationKind kind) {
  return static_cast<std::size_t>(std::ranges::count_if(
      member.accusations,
      [&](const HeldAccusation& held) { return held.accusation.kind >= kind; }));
}

MemberEntry* MemberTable::find(const NodeId& id) {
  const auto at = members_.find(id);
  return at == members_.end() ? nullptr : &at->second;
}

const MemberEntry* MemberTable::find(const NodeId& id) const {
  const auto at = members_.find(id);
  return at == members_.end() ? nullptr : &at->second;
}

std::size_t MemberTable::count(MemberState state) const {
  return counts_[static_cast<std::size_t>(state)];
}

MemberTable::Placed MemberTable::put(const MemberRecord& record, TimePoint signed_at) {
  Placed placed;
  if (auto* held = find(record.id)) {
    held->record = record;
    held->signed_at = signed_at;
    held->accusations.clear();
    held->quorum_since.reset();
    placed.member = held;
    return placed;
  }
  if (members_.size() >= options_.max_records) {
    auto oldest = members_.end();
    for (auto at = members_.begin(); at != members_.end(); ++at)
      if (departed(at->second.state) &&
          (oldest == members_.end() || at->second.state_since < oldest->second.state_since))
        oldest = at;
    if (oldest == members_.end()) return placed;
    placed.evicted = oldest->second;
    erase(oldest->first);
  }
  MemberEntry member;
  member.record = record;
  member.signed_at = signed_at;
  const auto [at, inserted] = members_.emplace(record.id, std::move(member));
  STARLING_CHECK(inserted);
  ++counts_[static_cast<std::size_t>(at->second.state)];
  placed.member = &at->second;
  return placed;
}

void MemberTable::erase(const NodeId& id) {
  const auto at = members_.find(id);
  if (at == members_.end()) return;
  --counts_[static_cast<std::size_t>(at->second.state)];
  members_.erase(at);
}

bool MemberTable::holds(const MemberEntry& member, const Accusation& accusation) {
  return std::ranges::any_of(member.accusations, [&](const HeldAccusation& held) {
    return held.accusation.accuser == accusation.accuser && held.accusation.kind >= accusation.kind;
  });
}

MemberTable::Added MemberTable::accuse(MemberEntry& member, const Accusation& accusation,
                                       TimePoint now) {
  if (holds(member, accusation)) return Added::known;
  for (auto& held : member.accusations) {
    if (held.accusation.accuser != accusation.accuser) continue;
    held = {accusation, now};
    return Added::stronger;
  }
  if (member.accusations.size() >= options_.max_accusers) {
    const auto spared = least_useful(member, accusation);
    if (spared == member.accusations.end()) return Added::full;
    member.accusations.erase(spared);
  }
  member.accusations.push_back({accusation, now});
  return Added::added;
}

// The accusation that makes room for `accusation`, or the end.
std::vector<HeldAccusation>::iterator MemberTable::least_useful(MemberEntry& member,
                                                                const Accusation& accusation) {
  const auto known = [&](const NodeId& id) { return id == self_ || find(id) != nullptr; };
  if (!known(accusation.accuser)) return member.accusations.end();
  // Invented accusers must not keep real ones out.
  const auto stranger = std::ranges::find_if(
      member.accusations, [&](const auto& held) { return !known(held.accusation.accuser); });
  if (stranger != member.accusations.end()) return stranger;
  // A verdict says more than a suspicion, and our own word more than another's.
  if (accusation.kind == AccusationKind::suspect && accusation.accuser != self_)
    return member.accusations.end();
  return std::ranges::find_if(member.accusations, [&](const auto& held) {
    return held.accusation.accuser != self_ &&
           (held.accusation.kind == AccusationKind::suspect || accusation.accuser == self_);
  });
}

void MemberTable::set_state(MemberEntry& member, MemberState state, TimePoint now) {
  if (member.state == state) return;
  --counts_[static_cast<std::size_t>(member.state)];
  ++counts_[static_cast<std::size_t>(state)];
  member.state = state;
  member.state_since = now;
}

std::vector<NodeId> MemberTable::expired(TimePoint now, Duration lifetime) const {
  std::vector<NodeId> ids;
  for (const auto& [id, member] : members_)
    if (now - member.signed_at > lifetime) ids.push_back(id);
  return ids;
}

std::uint32_t MemberTable::age_s(const MemberEntry& member, TimePoint now) const {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - member.signed_at).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(age, 0, 0xffffffffLL));
}

void BucketHash::add(const MemberRecord& record, MemberState state) {
  hasher_.add(record.id.view())
      .add(record.incarnation.value)
      .add(record.instance.value)
      .add(std::uint64_t{departed(state) ? 1U : 0U});
}

std::uint64_t digest_hash(const Digest& digest) {
  Hasher hasher;
  for (const std::uint64_t bucket : digest.buckets) hasher.add(bucket);
  return first_u64(hasher.finish());
}

Digest MemberTable::digest(const MemberRecord& self) const {
  std::array<BucketHash, kBuckets> buckets;
  bool self_added = false;
  const auto add_self = [&] {
    self_added = true;
    const bool left = self.state == RecordState::left;
    buckets[bucket_of(self.id)].add(self, left ? MemberState::left : MemberState::alive);
  };
  for (const auto& [id, member] : members_) {
    if (!self_added && self.id < id) add_self();
    buckets[bucket_of(id)].add(member.record, member.state);
  }
  if (!self_added) add_self();
  Digest digest;
  for (std::size_t i = 0; i < kBuckets; ++i) digest.buckets[i] = buckets[i].finish();
  return digest;
}

}  // namespace starling::gossip
