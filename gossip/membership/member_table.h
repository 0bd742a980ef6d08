// Records and accusations that this node holds, bounded, with the hashes that two nodes compare.
#pragma once

#include "gossip/membership/member_record.h"
#include "gossip/membership/messages.h"
#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/ids.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace starling::gossip {

// A member in this node's view.
enum class MemberState : std::uint8_t { joining, alive, suspect, dead, left };

[[nodiscard]] std::string_view name_of(MemberState state);

struct TableOptions {
  std::size_t max_records = 16384;
  // A record that its subject did not sign anew for this long expires. Subjects sign every third
  // of it. Longer in large swarms, where one member signs anew in each `renewal_gap`: what an edge
  // carries then does not grow with the swarm.
  Duration time_to_live = std::chrono::hours(1);
  Duration renewal_gap = std::chrono::seconds(1);
  std::size_t max_accusers = 8;  // kept for one member

  // How long a record lives in a swarm of so many members.
  [[nodiscard]] Duration lifetime(std::size_t members) const {
    return std::max(time_to_live, 3 * static_cast<std::int64_t>(members) * renewal_gap);
  }
};

struct HeldAccusation {
  Accusation accusation;
  TimePoint received;
};

struct MemberEntry {
  MemberRecord record;
  TimePoint signed_at;  // on our clock, from the age that came with the record
  MemberState state = MemberState::joining;
  TimePoint state_since{};
  std::vector<HeldAccusation> accusations;  // of this incarnation, one for each accuser
  std::optional<TimePoint> quorum_since;    // when enough `dead` had come
  std::optional<TimePoint> last_heard;      // when a session with it last spoke
  TimePoint last_word{};                    // when something newly signed by it came
  // As a neighbour that cannot be dialled: when it was last missed, how often since a session.
  TimePoint missed_at{};
  std::uint32_t times_missed = 0;
  // As an accuser: what it said that was refuted at once, and until when nobody listens.
  std::uint32_t false_alarms = 0;
  TimePoint false_alarms_since{};
  TimePoint discredited_until{};
};

// What a digest says of one bucket: its members, added ascending by id.
class BucketHash {
 public:
  void add(const MemberRecord& record, MemberState state);
  [[nodiscard]] std::uint64_t finish() { return first_u64(hasher_.finish()); }

 private:
  Hasher hasher_;
};

// The whole digest in one number: equal where no bucket differs.
[[nodiscard]] std::uint64_t digest_hash(const Digest& digest);

// Everything but this node itself.
//
// A value owned by Membership, on the io thread; holds what subjects and accusers signed and the
// state that Membership derived. It decides nothing. At most max_records members; when full, the
// longest departed one makes room, never one that is alive: Membership may forget one before.
class MemberTable {
 public:
  MemberTable(const NodeId& self, TableOptions options) : self_(self), options_(options) {}

  [[nodiscard]] MemberEntry* find(const NodeId& id);
  [[nodiscard]] const MemberEntry* find(const NodeId& id) const;
  [[nodiscard]] const std::map<NodeId, MemberEntry>& all() const { return members_; }
  [[nodiscard]] std::size_t size() const { return members_.size(); }
  // Members in a state, this node not counted.
  [[nodiscard]] std::size_t count(MemberState state) const;

  // Whether put() stores a member that is not known yet.
  [[nodiscard]] bool has_room() const {
    return size() < options_.max_records || count(MemberState::dead) + count(MemberState::left) > 0;
  }
  struct Placed {
    MemberEntry* member = nullptr;       // nothing: the table is full of members that are alive
    std::optional<MemberEntry> evicted;  // who made room
  };
  // Stores a record that is newer than the one held; accusations of older incarnations are gone.
  Placed put(const MemberRecord& record, TimePoint signed_at);
  void erase(const NodeId& id);

  enum class Added { added, stronger, known, full };
  // Stores an accusation of the member's incarnation.
  Added accuse(MemberEntry& member, const Accusation& accusation, TimePoint now);
  // Whether this or a stronger accusation of the same accuser is held.
  [[nodiscard]] static bool holds(const MemberEntry& member, const Accusation& accusation);
  void set_state(MemberEntry& member, MemberState state, TimePoint now);

  // Time passed of which the clock knows nothing.
  void grow_older(Duration by) {
    for (auto& [id, member] : members_) member.signed_at -= by;
  }
  // Ids whose record is older than `lifetime`.
  [[nodiscard]] std::vector<NodeId> expired(TimePoint now, Duration lifetime) const;
  [[nodiscard]] std::uint32_t age_s(const MemberEntry& member, TimePoint now) const;

  // Hashes over (id, incarnation, departed or not) of each bucket, `self` included.
  [[nodiscard]] Digest digest(const MemberRecord& self) const;

 private:
  [[nodiscard]] std::vector<HeldAccusation>::iterator least_useful(MemberEntry& member,
                                                                   const Accusation& accusation);

  NodeId self_;
  TableOptions options_;
  std::map<NodeId, MemberEntry> members_;
  std::array<std::size_t, 5> counts_{};
};

// Distinct accusers of a kind at least `kind`.
[[nodiscard]] std::size_t accusers(const MemberEntry& member, AccusationKind kind);

}  // namespace starling::gossip
