// starling_sim: simulated swarms from seeds, one summary line at the end.
#include "tests/sim/arguments.h"
#include "tests/sim/seeds.h"
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
  Seeds seeds{.first = 1, .count = 20};
  std::size_t jobs = all_processors();
  PlanLimits limits;
  bool trace = false;
  bool each = false;
};

constexpr std::string_view kUsage =
    "usage: starling_sim [--seeds N] [--first N] [--nodes N|N..M] [--seconds S] [--jobs N] "
    "[--calm] "
    "[--each] [--trace]\n";

// N, or N..M: each seed draws its own number.
bool parse_nodes(std::string_view text, PlanLimits& limits) {
  const auto dots = text.find("..");
  const auto least = parse_number(text.substr(0, dots));
  const auto most = dots == std::string_view::npos ? least : parse_number(text.substr(dots + 2));
  if (!least || !most || *least == 0 || *most < *least) return false;
  limits.nodes = least;
  limits.most_nodes = *most;
  return true;
}

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
      if (flag == "--nodes") {
        if (!parse_nodes(argv[i], arguments.limits)) return std::nullopt;
        continue;
      }
      const auto value = parse_number(argv[i]);
      if (!value) return std::nullopt;
      if (flag == "--seeds") {
        arguments.seeds.count = *value;
      } else if (flag == "--first") {
        arguments.seeds.first = *value;
      } else if (flag == "--jobs" && *value > 0) {
        arguments.jobs = *value;
      } else if (flag == "--seconds") {
        arguments.limits.safety = std::chrono::seconds(*value);
      } else {
        return std::nullopt;
      }
    }
  }
  if (arguments.trace) arguments.jobs = 1;  // its lines go out as they come
  return arguments;
}

std::string replay(const Arguments& arguments, std::uint64_t seed) {
  std::string line = "tests/sim/run --seeds 1 --first " + std::to_string(seed);
  const auto& limits = arguments.limits;
  if (limits.nodes) line += " --nodes " + std::to_string(*limits.nodes);
  if (limits.nodes && limits.most_nodes > *limits.nodes)
    line += ".." + std::to_string(limits.most_nodes);
  if (limits.safety)
    line += " --seconds " + std::to_string(static_cast<std::uint64_t>(seconds(*limits.safety)));
  if (limits.calm) line += " --calm";
  return line + " --trace";
}

// What the seeds told so far came to.
class Summary {
 public:
  explicit Summary(const Arguments& arguments) : arguments_(arguments), began_(clock_.now()) {}

  void take(const Outcome& outcome) {
    ++seeds_;
    events_ += outcome.events;
    frames_ += outcome.frames;
    node_seconds_ += outcome.node_seconds;
    trace_ = trace_ * 31 + outcome.trace;
    if (arguments_.each) print_seed(outcome);
    if (!outcome.violations.empty()) {
      ++violations_;
      for (const auto& violation : outcome.violations)
        std::printf("seed %llu at %.6f s: %s\n", static_cast<unsigned long long>(outcome.seed),
                    seconds(violation.at - TimePoint(std::chrono::hours(1))),
                    violation.what.c_str());
      std::printf("replay: %s\n", replay(arguments_, outcome.seed).c_str());
      std::fflush(stdout);
    }
    if (clock_.now() < next_word_) return;
    next_word_ = clock_.now() + kBetweenWords;
    std::fprintf(stderr, "sim: %llu of %llu seeds, %llu violations, %.0f s\n",
                 static_cast<unsigned long long>(seeds_),
                 static_cast<unsigned long long>(arguments_.seeds.count),
                 static_cast<unsigned long long>(violations_), seconds(clock_.now() - began_));
  }

  // The exit status.
  [[nodiscard]] int end() const {
    std::printf(
        "sim: %llu seeds  %llu events  %llu violations  %.1f messages a node and second  "
        "%.1f s wall  trace %016llx\n",
        static_cast<unsigned long long>(seeds_), static_cast<unsigned long long>(events_),
        static_cast<unsigned long long>(violations_),
        node_seconds_ > 0 ? static_cast<double>(frames_) / node_seconds_ : 0.0,
        seconds(clock_.now() - began_), static_cast<unsigned long long>(trace_));
    return violations_ == 0 ? 0 : 1;
  }

 private:
  static constexpr Duration kBetweenWords = std::chrono::seconds(30);

  static void print_seed(const Outcome& outcome) {
    std::printf(
        "seed %-6llu machines %-4zu virtual %6.1f s  view %5.1f s  end %5.1f s  exchanges %-6llu "
        "pairs %-6llu deaths %-4llu finished %-3llu failed %-2llu resets %-3llu torn %-3llu "
        "trace %016llx\n",
        static_cast<unsigned long long>(outcome.seed), outcome.machines, outcome.virtual_seconds,
        outcome.one_view_seconds, outcome.end_seconds,
        static_cast<unsigned long long>(outcome.tally.exchanges),
        static_cast<unsigned long long>(outcome.tally.pairs_compared),
        static_cast<unsigned long long>(outcome.tally.deaths),
        static_cast<unsigned long long>(outcome.tally.finished),
        static_cast<unsigned long long>(outcome.tally.failed),
        static_cast<unsigned long long>(outcome.tally.resets),
        static_cast<unsigned long long>(outcome.tally.torn),
        static_cast<unsigned long long>(outcome.trace));
  }

  const Arguments& arguments_;
  SteadyClock clock_;
  TimePoint began_;
  TimePoint next_word_ = began_ + kBetweenWords;
  std::uint64_t seeds_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t violations_ = 0;
  std::uint64_t frames_ = 0;
  double node_seconds_ = 0;
  std::uint64_t trace_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  if (!arguments) {
    std::cerr << kUsage;
    return 2;
  }
  Summary summary(*arguments);
  over_seeds(
      arguments->seeds, arguments->jobs,
      [&](std::uint64_t seed) {
        World world(draw_plan(seed, arguments->limits), arguments->trace ? &std::cout : nullptr);
        return world.run();
      },
      [&](std::uint64_t, const Outcome& outcome) { summary.take(outcome); });
  return summary.end();
}
