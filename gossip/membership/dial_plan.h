// Which members to open a session to, and when to try again.
#pragma once

#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/random.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace starling::gossip {

// One dial that the shell should make now.
struct WantedSession {
  NodeId id;
  std::vector<std::string> addresses;
};

struct DialPlanOptions {
  // Between two dials to one neighbour, doubling from first to last, plus up to half of jitter.
  Duration first_backoff = std::chrono::seconds(1);
  Duration last_backoff = std::chrono::minutes(1);
  // Of two members that both can be dialled the one with the higher id waits this long, so that
  // they do not dial each other at once.
  Duration courtesy = std::chrono::milliseconds(700);
  // A dial without an outcome for this long has failed.
  Duration outcome = std::chrono::seconds(10);
  // Between two tries at somebody who is dead in our view.
  Duration revive_interval = std::chrono::seconds(4);
  // From the beginning of a session to the next dial of its peer, at least, plus up to half of
  // jitter. Raising it delays the way back over a line that breaks sessions; lowering it lets a
  // peer that takes sessions only to close them cost a handshake that often.
  Duration apart = std::chrono::seconds(1);
  // A session on which the peer answered nothing, and that ended sooner than this, helped nobody.
  // Above so many in a row (two dials at once, and a line that breaks early, make some) the next
  // dial waits as after a failure, each time longer.
  Duration settled = std::chrono::seconds(10);
  std::uint32_t forgiven = 2;
  // After this many failures the topology walks past the member for walk_past long, and after each
  // further one for twice as long, up to last_walk_past: an address behind a router stays wrong.
  std::uint32_t failures_to_walk_past = 3;
  Duration walk_past = std::chrono::minutes(1);
  Duration last_walk_past = std::chrono::minutes(10);
  std::size_t max_outstanding = 16;
};

// Remembers for each member when it was dialled and how that went.
//
// A value owned by Membership, on the io thread. Holds this node's experience only. Entries of
// members that nobody wants any more are dropped, so it is bounded by the member table.
class DialPlan {
 public:
  explicit DialPlan(DialPlanOptions options) : options_(options) {}

  enum class Manners { at_once, after_you };
  // Whether to dial `id` now; if so, the dial counts as made.
  [[nodiscard]] bool take(TimePoint now, const NodeId& id, Manners manners, Rng& rng);
  // What a dial is made for: a session that this node wants, or the answer to a question.
  enum class Purpose { session, answer };
  // For a check of a suspicion: now, unless a dial is out or the last check was within `apart`.
  [[nodiscard]] bool take_at_once(TimePoint now, const NodeId& id, Purpose purpose);
  // For a member that asks whether `id` can be reached: as take(), in a quarter of the places, so
  // that whoever asks much keeps no neighbour from being dialled.
  [[nodiscard]] bool take_for_another(TimePoint now, const NodeId& id, Rng& rng);
  // Whether it is time to try somebody dead.
  [[nodiscard]] bool take_revival(TimePoint now, Rng& rng);

  void on_up(const NodeId& id);
  enum class Answered { no, yes };
  // A session ended that was up for so long, and on which the peer answered us or did not.
  void on_down(TimePoint now, const NodeId& id, Duration lived, Answered answered, Rng& rng);
  // What the dial had been made for.
  Purpose on_failed(TimePoint now, const NodeId& id, Rng& rng);
  // A new address, a new process, or one that was away: what failed before says nothing.
  void forget(const NodeId& id);
  // What failed while this node reached nobody says nothing of the others.
  void pass_over_nobody();
  // Keeps only what `wanted` holds and what is out, failed lately or has just been dialled.
  void keep_only(const std::set<NodeId>& wanted, TimePoint now);

  [[nodiscard]] bool is_out(TimePoint now, const NodeId& id) const;
  [[nodiscard]] bool passed_over(TimePoint now, const NodeId& id) const;
  // When `id` may be dialled next; kNever if it was never asked for.
  [[nodiscard]] TimePoint due(const NodeId& id) const;

 private:
  struct Entry {
    TimePoint not_before{};
    TimePoint out_until{};  // a dial is out until then; zero: none is
    std::uint32_t failures = 0;
    TimePoint floor{};        // `apart` after the last session began
    TimePoint next_check{};   // `apart` after the last check
    std::uint32_t brief = 0;  // sessions in a row that helped nobody
    TimePoint last_failure{};
    Purpose purpose = Purpose::session;  // of the last dial
  };
  [[nodiscard]] std::size_t outstanding(TimePoint now) const;
  // How long the last failure counts.
  [[nodiscard]] Duration remembered(const Entry& entry) const;
  [[nodiscard]] Duration backoff(std::uint32_t failures, Rng& rng) const;

  DialPlanOptions options_;
  std::map<NodeId, Entry> entries_;
  TimePoint next_revival_{};
};

}  // namespace starling::gossip
