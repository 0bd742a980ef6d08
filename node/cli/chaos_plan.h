// What `starling chaos` does to a swarm, and what it says about it: pure functions.
#pragma once

#include "node/base/result.h"
#include "node/config/values.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// How many nodes begin, at least; and how many there may be, those that join included: each is a
// whole process, and all share one machine.
inline constexpr std::size_t kMinChaosNodes = 3;
inline constexpr std::size_t kMaxChaosNodes = 16;

enum class ChaosFault : std::uint8_t {
  kill,       // SIGKILL, and a new process in the same folder afterwards
  stop,       // SIGSTOP, SIGCONT afterwards
  partition,  // two halves that do not hear each other, mended afterwards
  join,       // one more node
  leave,      // SIGTERM
};

[[nodiscard]] std::string_view name_of(ChaosFault fault);

// "kill,stop": any of the names above, in any order, at most 100 in all.
[[nodiscard]] Parsed<std::vector<ChaosFault>> parse_faults(std::string_view text);

// One fault of the schedule. `victims` are numbers of nodes, from 1: the node that it happens to,
// or, of a partition, one of the halves; of a join the new node.
struct PlannedFault {
  ChaosFault fault = ChaosFault::kill;
  std::vector<std::size_t> victims;
};

// The faults in an order, and with victims, that the seed draws. Nodes are 1 to `nodes`; those that
// join count on from there, and who has left is no victim any more. `nodes` is kMinChaosNodes or
// more.
//
// Every fault that was named happens, and during none are fewer than two nodes left that train and
// hear each other: with two nodes only a join comes next, so an order that was drawn is changed
// where it would lead there. Faults for which there is no such order, or which make more nodes than
// the most, are refused, with a phrase that says what would be right.
[[nodiscard]] Parsed<std::vector<PlannedFault>> plan_chaos(std::vector<ChaosFault> faults,
                                                           std::size_t nodes, std::uint64_t seed);

// What a node wrote down of another, by their numbers; seconds since the fault began.
struct Sighting {
  std::size_t watcher = 0;
  std::size_t subject = 0;
  std::string state;
  double at_s = 0;
};

struct Noticed {
  std::optional<double> first_s;  // by any watcher, as anything but alive; of a join as alive
  std::optional<double> all_s;    // by every watcher, as dead; of a leave as left, a join as alive
};

// When the watchers noticed a fault. Who is a victim watches only in a partition, whose halves
// watch each other: it is noticed when a node of the other half is.
[[nodiscard]] Noticed noticed(const PlannedFault& planned, std::span<const std::size_t> watchers,
                              std::span<const Sighting> sightings);

// What a fault did to the others; of a partition, to all.
struct FaultOutcome {
  PlannedFault planned;
  double others_percent = 0;      // steps a second of the others, of what they were before
  Noticed noticed;                // nothing: it was never seen
  double longest_pause_s = 0;     // that any of the others went without a step
  std::optional<double> whole_s;  // from its end until all saw all again
};

// "kill node-3       others at 101 %  ..." and the same as an object.
[[nodiscard]] std::string chaos_line(const FaultOutcome& outcome);
[[nodiscard]] nlohmann::json to_json(const FaultOutcome& outcome);

}  // namespace starling::node
