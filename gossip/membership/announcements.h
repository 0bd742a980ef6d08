// Statements by name: which ones this node can send, which ones others have and it misses, and whom
// it asks for them.
#pragma once

#include "gossip/membership/messages.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace starling::gossip {

struct AnnouncementOptions {
  // A peer that was asked has this long, then the next one that has the statement is asked. Raising
  // it lets a peer that announces and does not deliver delay news by as much; below the round trip
  // of a slow line statements come twice.
  Duration patience = std::chrono::milliseconds(500);
  // The same for a report, which waits for the next look around of whoever was asked.
  Duration report_patience = std::chrono::seconds(1);
  // A peer that did not deliver is asked first by nobody for this long.
  Duration doubt = std::chrono::seconds(10);
  // Statements that this node misses and heard of from one peer first; what it announces beyond
  // that is left to others and to the digests.
  std::size_t max_missing_per_peer = 1024;
  std::size_t max_sources = 16'384;
};

// Announced, asked for, delivered.
//
// A value owned by FactSpreader, on the io thread. A statement that is announced is asked of the
// first peer that has it; if that one does not deliver in time it is doubted and the next is asked,
// until nobody is left. So a peer that lies about what it has delays a statement by one patience,
// once, and keeps nothing from anybody who has one honest session. Memory: for each peer 1,024
// names of 300 bytes.
//
// Reports come again and again: whoever was asked for one of a member sends its next ones unasked
// (FactSpreader), so that in the end they travel along a tree for each member, and only their names
// over the other edges. While such a source is there, others are not asked before a patience is
// over. No report is urgent: it is asked for with whatever else is overdue, many in one message.
//
// | a statement is | announced by p            | it or a newer one comes | overdue, or p leaves  |
// |----------------|---------------------------|-------------------------|-----------------------|
// | not missing    | ask p, now (record)       | -                       | -                     |
// |                | or when overdue (report)  |                         |                       |
// | missing        | p is one more that has it | not missing             | the next one is asked |
class Announcements {
 public:
  explicit Announcements(AnnouncementOptions options) : options_(options) {}

  void on_session_up(const NodeId& peer);
  void on_session_down(TimePoint now, const NodeId& peer);

  // This node has it now, and misses nothing older. Who else said that it has it.
  [[nodiscard]] std::vector<NodeId> on_held(const FactName& name);
  // `peer` has what this node has not; whether to ask it now. A report is overdue from then on,
  // unless it is expected from another one.
  [[nodiscard]] bool on_announced(TimePoint now, const NodeId& peer, const FactName& name);

  struct Ask {
    NodeId peer;
    std::vector<FactName> names;
  };
  // What is to be asked of somebody else now. Call a few times within a patience.
  [[nodiscard]] std::vector<Ask> take_overdue(TimePoint now);
  [[nodiscard]] std::size_t missing() const { return missing_.size(); }

 private:
  struct Missing {
    NodeId first;  // whose account it is on
    std::vector<NodeId> holders;
    std::optional<NodeId> asked;
    TimePoint due{};  // when somebody else is asked
  };
  struct Peer {
    std::size_t missing = 0;
    TimePoint doubted_until{};
  };
  using MissingMap = std::map<FactName, Missing>;

  void ask(TimePoint now, const FactName& name, Missing& missing, const NodeId& peer);
  [[nodiscard]] bool expected_from_another(TimePoint now, const NodeId& peer,
                                           const FactName& name) const;
  [[nodiscard]] bool doubted(TimePoint now, const NodeId& peer) const;
  MissingMap::iterator forget(MissingMap::iterator at);

  AnnouncementOptions options_;
  std::map<NodeId, Peer> peers_;
  std::map<std::uint64_t, NodeId> sources_;  // whom reports of a member are expected from
  MissingMap missing_;
};

}  // namespace starling::gossip
