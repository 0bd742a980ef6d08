// What `starling chaos` does to a swarm, and what it says about it: pure functions.
#pragma once

#include "node/base/result.h"
#include "node/config/values.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

enum class ChaosFault : std::uint8_t {
  kill,       // SIGKILL, and a new process in the same folder afterwards
  stop,       // SIGSTOP, SIGCONT afterwards
  partition,  // two halves that do not hear each other, mended afterwards
  join,       // one more node
  leave,      // SIGTERM
};

[[nodiscard]] std::string_view name_of(ChaosFault fault);

// "kill,stop": any of the names above, in any order and number.
[[nodiscard]] Parsed<std::vector<ChaosFault>> parse_faults(std::string_view text);

// One fault of the schedule. `victims` are numbers of nodes, from 1: the node that it happens to,
// or, of a partition, one of the halves; of a join the new node.
struct PlannedFault {
  ChaosFault fault = ChaosFault::kill;
  std::vector<std::size_t> victims;
};

// The faults in an order, and with victims, that the seed draws. Nodes are 1 to `nodes`; those that
// join count on from there, and who has left is no victim any more. No fault leaves fewer than two
// nodes.
[[nodiscard]] std::vector<PlannedFault> plan_chaos(std::vector<ChaosFault> faults,
                                                   std::size_t nodes, std::uint64_t seed);

// What a fault did to the others. Nothing: it was never seen.
struct FaultOutcome {
  PlannedFault planned;
  double others_percent = 0;              // steps a second of the others, of what they were before
  std::optional<double> noticed_first_s;  // by any of them
  std::optional<double> noticed_all_s;    // by all of them
  double longest_pause_s = 0;             // that any of the others went without a step
  std::optional<double> whole_s;          // from its end until all saw all again
};

// "kill node-3       others at 101 %  ..." and the same as an object.
[[nodiscard]] std::string chaos_line(const FaultOutcome& outcome);
[[nodiscard]] nlohmann::json to_json(const FaultOutcome& outcome);

}  // namespace starling::node
