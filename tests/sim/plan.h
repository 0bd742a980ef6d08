// Plan: everything about one simulated run, drawn from its seed before anything happens.
#pragma once

#include "bootstrap/join.h"
#include "gossip/gossip.h"
#include "node/base/clock.h"
#include "tests/sim/process.h"
#include "tests/sim/quadratic.h"
#include "tests/sim/wire.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::sim {

enum class FaultKind : std::uint8_t {
  crash,      // the process ends without a word and starts again later
  power,      // the host goes dark, and comes back later
  pause,      // SIGSTOP, SIGCONT
  stutter,    // processor time comes in bursts
  isolate,    // no link of the host passes
  partition,  // two groups cannot reach each other
  one_way,    // one group hears the other and is not heard
  clog,       // links hold everything back for a while (each its own time)
  cut,        // all connections of the host are reset
  bad_line,   // loss and delay everywhere
  slow,       // steps, codec jobs and files take many times as long
  no_room,    // attachments are refused for want of memory
  disk_full,  // nothing can be written
  jump,       // the clock jumps forward
  leave,      // an orderly goodbye
  merge,      // somebody orders a merge
  finish,     // somebody orders the end
};
inline constexpr std::size_t kFaultKinds = 17;
[[nodiscard]] std::string_view name_of(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::crash;
  Duration at{0};     // since the start
  Duration lasts{0};  // zero: happens once
  std::vector<Host> hosts;
  double size = 0;  // share, factor or seconds: by kind
};
[[nodiscard]] std::string describe(const Fault& fault);

// The first machines are everybody's seeds: they can be dialled, and come back from every fault.
inline constexpr Host kSeeds = 2;

struct PlanLimits {
  std::optional<std::size_t> nodes = {};  // nothing: drawn, 2 to 32
  std::size_t most_nodes = 0;             // more than `nodes`: drawn, from `nodes` to this
  bool calm = false;                      // no faults
  std::optional<Duration> safety = {};    // how long there are faults
};

struct Plan {
  std::uint64_t seed = 0;
  std::vector<MachineTraits> machines;
  std::vector<Duration> starts;
  std::vector<Duration> distances;
  WireOptions wire;
  ProblemOptions problem;
  gossip::GossipOptions gossip;
  bootstrap::JoinOptions join;
  Duration safety{0};
  std::vector<Fault> faults;  // ascending by time
  // How long the liveness phase may take to bring everybody into one view, then to an exchange on
  // every edge, and then to the end.
  Duration to_one_view = std::chrono::seconds(90);
  Duration to_exchanges = std::chrono::seconds(120);
  Duration to_one_sum = std::chrono::seconds(60);
  Duration to_the_end = std::chrono::seconds(400);
  double stay_dead = 0;  // share of the crashed that never come back
};

[[nodiscard]] Plan draw_plan(std::uint64_t seed, const PlanLimits& limits);

}  // namespace starling::sim
