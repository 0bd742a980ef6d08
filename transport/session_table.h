// SessionTable: one session per node, the decision which of two connections stays. Sans-I/O.
#pragma once

#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "transport/limits.h"
#include "transport/session_info.h"
#include "transport/wire_codec.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace starling::transport {

class Session;

// What the decision needs to know of a session that exists.
struct TableEntry {
  Session* session = nullptr;  // owned by the coroutine that runs it
  Instance instance;
  Direction direction = Direction::dialled;
  TimePoint since;
};

// A connection that was accepted and has finished its handshake.
struct Candidate {
  NodeId peer;
  Instance instance;
  Purpose purpose = Purpose::fresh;
  // Whether the existing session, if there is one, was asked for a sign of life and gave none; or
  // has nothing to say any more but its goodbye, which a peer may have read long before it ends.
  enum class Probe : std::uint8_t { not_tried, answered, silent, ending } probe = Probe::not_tried;
  // The existing session still waits for the last messages of the one that it replaced itself.
  bool waits_its_turn = false;
};

enum class Decision : std::uint8_t {
  accept,   // no session exists
  replace,  // the new connection takes over
  probe,    // ask the existing session for a sign of life, then decide again
  refuse,   // the existing session stays; `why` says so by name
};

struct DecisionWithReason {
  Decision decision = Decision::accept;
  Error why;
};

// Who has a session with us. Holds this node's view; thread: io; owned by Transport.
//
// The rule for a second connection of the same identity:
//
//   instance | existing was      | and                      | decision
//   none     | -                 | purpose renew            | refuse (closed)
//   same     | says goodbye, or  | purpose renew            | refuse (closed)
//            | waits its turn    |                          |
//   same     | any               | purpose renew            | replace
//   same     | dialled by us     | younger than 5 s         | the smaller id's dial stays
//   same     | otherwise         | answers a probe          | refuse (already_exists)
//   other    | any               | answers a probe          | refuse (duplicate_identity)
//   any      | any               | does not answer          | replace
//   any      | says goodbye      | any other                | replace
//
// A renewal of what this side has ended already would hide that end from the other side. A dial of
// ours that waits for its welcome counts as existing and dialled by us. This node's own identity is
// refused always, as duplicate_identity: who dials is another process, and no honest one, which
// would have hung up when it saw who answers.
class SessionTable {
 public:
  explicit SessionTable(NodeId self) : self_(self) {}

  [[nodiscard]] DecisionWithReason decide(TimePoint now, const Candidate& candidate) const;

  [[nodiscard]] const TableEntry* find(const NodeId& peer) const;
  // Makes this the session with the peer; the one before it, if any, is returned.
  TableEntry insert(const NodeId& peer, TableEntry entry);
  // Forgets the session if it is still the peer's; true if it was.
  bool erase(const NodeId& peer, const Session* session);
  [[nodiscard]] const std::map<NodeId, TableEntry>& all() const { return sessions_; }
  [[nodiscard]] std::size_t size() const { return sessions_.size(); }

  // Dials of ours that sent message 3 and wait for the welcome.
  void begin_dial(const NodeId& peer) { dials_.insert(peer); }
  void end_dial(const NodeId& peer);

 private:
  NodeId self_;
  std::map<NodeId, TableEntry> sessions_;
  std::multiset<NodeId> dials_;
};

}  // namespace starling::transport
