// starling_eclipse: Sybils in a swarm that anybody may join; one line a seed and one summary line.
#include "tests/sim/arguments.h"
#include "tests/sim/eclipse.h"
#include "tests/sim/seeds.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string_view>

namespace {

using namespace starling::sim;

struct Wanted {
  EclipsePlan plan;
  Seeds seeds{.first = 1, .count = 5};
  std::size_t jobs = all_processors();
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
        wanted.seeds.count = *number;
      else if (flag == "--first")
        wanted.seeds.first = *number;
      else if (flag == "--jobs" && *number > 0)
        wanted.jobs = *number;
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
  const auto wanted = parse(argc, argv);
  if (!wanted) {
    std::cerr << "usage: starling_eclipse [--seeds N] [--first N] [--seconds S] [--jobs N] "
                 "[--plain] [--invented]\n";
    return 2;
  }
  std::uint64_t samples = 0;
  std::uint64_t bearable = 0;
  std::uint64_t sum = 0;
  double worst = 1;
  const auto run = [&](std::uint64_t seed) {
    EclipsePlan plan = wanted->plan;
    plan.seed = seed;
    return run_eclipse(plan);
  };
  over_seeds(
      wanted->seeds, wanted->jobs, run, [&](std::uint64_t seed, const EclipseOutcome& outcome) {
        std::printf(
            "seed %llu: %.2f %% of samples with two honest neighbours, mean %.1f, %llu events\n",
            static_cast<unsigned long long>(seed), 100 * outcome.share(),
            static_cast<double>(outcome.sum) / static_cast<double>(outcome.samples),
            static_cast<unsigned long long>(outcome.events));
        std::fflush(stdout);
        samples += outcome.samples;
        bearable += outcome.bearable;
        sum += outcome.sum;
        worst = std::min(worst, outcome.share());
      });
  const double share = static_cast<double>(bearable) / static_cast<double>(samples);
  std::printf(
      "eclipse: %llu seeds, two honest neighbours in %.2f %% of samples (worst seed %.2f %%), "
      "mean %.1f\n",
      static_cast<unsigned long long>(wanted->seeds.count), 100 * share, 100 * worst,
      static_cast<double>(sum) / static_cast<double>(samples));
  return share >= 0.99 ? 0 : 1;
}
