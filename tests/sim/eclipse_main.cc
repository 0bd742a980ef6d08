// starling_eclipse: Sybils in a swarm that anybody may join; one line a seed and one summary line.
#include "tests/sim/arguments.h"
#include "tests/sim/eclipse.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string_view>

namespace {

using namespace starling::sim;

struct Wanted {
  EclipsePlan plan;
  std::uint64_t seeds = 5;
  std::uint64_t first = 1;
};

std::optional<Wanted> parse(int argc, char** argv) {
  Wanted wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--plain") {
      wanted.plan.strangers = false;
    } else if (flag == "--invented") {
      wanted.plan.invented = true;
    } else {
      const auto number = i + 1 < argc ? parse_number(argv[++i]) : std::nullopt;
      if (!number) return std::nullopt;
      if (flag == "--seeds")
        wanted.seeds = *number;
      else if (flag == "--first")
        wanted.first = *number;
      else if (flag == "--seconds")
        wanted.plan.length = std::chrono::seconds(*number);
      else
        return std::nullopt;
    }
  }
  return wanted;
}

}  // namespace

int main(int argc, char** argv) {
  auto wanted = parse(argc, argv);
  if (!wanted) {
    std::cerr << "usage: starling_eclipse [--seeds N] [--first N] [--seconds S] [--plain] "
                 "[--invented]\n";
    return 2;
  }
  std::uint64_t samples = 0;
  std::uint64_t bearable = 0;
  std::uint64_t sum = 0;
  double worst = 1;
  for (std::uint64_t i = 0; i < wanted->seeds; ++i) {
    wanted->plan.seed = wanted->first + i;
    const EclipseOutcome outcome = run_eclipse(wanted->plan);
    std::printf(
        "seed %llu: %.2f %% of samples with two honest neighbours, mean %.1f, %llu events\n",
        static_cast<unsigned long long>(wanted->plan.seed), 100 * outcome.share(),
        static_cast<double>(outcome.sum) / static_cast<double>(outcome.samples),
        static_cast<unsigned long long>(outcome.events));
    std::fflush(stdout);
    samples += outcome.samples;
    bearable += outcome.bearable;
    sum += outcome.sum;
    worst = std::min(worst, outcome.share());
  }
  const double share = static_cast<double>(bearable) / static_cast<double>(samples);
  std::printf(
      "eclipse: %llu seeds, two honest neighbours in %.2f %% of samples (worst seed %.2f %%), "
      "mean %.1f\n",
      static_cast<unsigned long long>(wanted->seeds), 100 * share, 100 * worst,
      static_cast<double>(sum) / static_cast<double>(samples));
  return share >= 0.99 ? 0 : 1;
}
