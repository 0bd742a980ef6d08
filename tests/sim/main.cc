// starling_sim: simulated swarms from seeds, one summary line at the end.
#include "tests/sim/arguments.h"
#include "tests/sim/world.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

namespace {

using namespace starling;
using namespace starling::sim;

struct Arguments {
  std::uint64_t seeds = 20;
  std::uint64_t first = 1;
  PlanLimits limits;
  bool trace = false;
  bool each = false;
};

constexpr std::string_view kUsage =
    "usage: starling_sim [--seeds N] [--first N] [--nodes N] [--seconds S] [--calm] [--each] "
    "[--trace]\n";

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--trace") {
      arguments.trace = true;
    } else if (flag == "--each") {
      arguments.each = true;
    } else if (flag == "--calm") {
      arguments.limits.calm = true;
    } else {
      if (++i >= argc) return std::nullopt;
      const auto value = parse_number(argv[i]);
      if (!value) return std::nullopt;
      if (flag == "--seeds") {
        arguments.seeds = *value;
      } else if (flag == "--first") {
        arguments.first = *value;
      } else if (flag == "--nodes" && *value > 0) {
        arguments.limits.nodes = *value;
      } else if (flag == "--seconds") {
        arguments.limits.safety = std::chrono::seconds(*value);
      } else {
        return std::nullopt;
      }
    }
  }
  return arguments;
}

std::string replay(const Arguments& arguments, std::uint64_t seed) {
  std::string line = "tests/sim/run --seeds 1 --first " + std::to_string(seed);
  const auto& limits = arguments.limits;
  if (limits.nodes) line += " --nodes " + std::to_string(*limits.nodes);
  if (limits.safety)
    line += " --seconds " + std::to_string(static_cast<std::uint64_t>(seconds(*limits.safety)));
  if (limits.calm) line += " --calm";
  return line + " --trace";
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  if (!arguments) {
    std::cerr << kUsage;
    return 2;
  }
  const SteadyClock clock;
  const TimePoint began = clock.now();
  std::uint64_t events = 0;
  std::uint64_t violations = 0;
  std::uint64_t frames = 0;
  double node_seconds = 0;
  std::uint64_t trace = 0;
  for (std::uint64_t i = 0; i < arguments->seeds; ++i) {
    const std::uint64_t seed = arguments->first + i;
    World world(draw_plan(seed, arguments->limits), arguments->trace ? &std::cout : nullptr);
    const Outcome outcome = world.run();
    events += outcome.events;
    frames += outcome.frames;
    node_seconds += outcome.node_seconds;
    trace = trace * 31 + outcome.trace;
    if (arguments->each)
      std::printf(
          "seed %-6llu machines %-4zu virtual %6.1f s  view %5.1f s  end %5.1f s  exchanges %-6llu "
          "pairs %-6llu deaths %-4llu finished %-3llu failed %-2llu resets %-3llu torn %-3llu "
          "trace "
          "%016llx\n",
          static_cast<unsigned long long>(seed), outcome.machines, outcome.virtual_seconds,
          outcome.one_view_seconds, outcome.end_seconds,
          static_cast<unsigned long long>(outcome.tally.exchanges),
          static_cast<unsigned long long>(outcome.tally.pairs_compared),
          static_cast<unsigned long long>(outcome.tally.deaths),
          static_cast<unsigned long long>(outcome.tally.finished),
          static_cast<unsigned long long>(outcome.tally.failed),
          static_cast<unsigned long long>(outcome.tally.resets),
          static_cast<unsigned long long>(outcome.tally.torn),
          static_cast<unsigned long long>(outcome.trace));
    if (outcome.violations.empty()) continue;
    ++violations;
    for (const auto& violation : outcome.violations)
      std::printf("seed %llu at %.6f s: %s\n", static_cast<unsigned long long>(seed),
                  seconds(violation.at - TimePoint(std::chrono::hours(1))), violation.what.c_str());
    std::printf("replay: %s\n", replay(*arguments, seed).c_str());
  }
  std::printf(
      "sim: %llu seeds  %llu events  %llu violations  %.1f messages a node and second  %.1f s wall "
      " "
      "trace %016llx\n",
      static_cast<unsigned long long>(arguments->seeds), static_cast<unsigned long long>(events),
      static_cast<unsigned long long>(violations),
      node_seconds > 0 ? static_cast<double>(frames) / node_seconds : 0.0,
      seconds(clock.now() - began), static_cast<unsigned long long>(trace));
  return violations == 0 ? 0 : 1;
}
