// starling_plants: planted bugs one after the other, and which checker finds each; a row of the
// README's table for each, and one summary line.
#include "node/base/clock.h"
#include "tests/sim/arguments.h"
#include "tests/sim/plants.h"

#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace starling;
using namespace starling::sim;

struct Arguments {
  std::uint64_t seeds = 60;
  std::uint64_t first = 1;
  std::vector<const Plant*> plants;
  bool known = false;  // only the seed that is known for each
  bool trace = false;
};

constexpr std::string_view kUsage =
    "usage: starling_plants [--plant NAME]... [--seeds N] [--first N] [--known] [--trace]\n";

bool parse_value(Arguments& arguments, std::string_view flag, std::string_view text) {
  if (flag == "--plant") {
    arguments.plants.push_back(find_plant(text));
    if (arguments.plants.back() != nullptr) return true;
    std::cerr << "starling_plants: no planted bug is called " << text << "; there are:\n";
    for (const auto& plant : all_plants()) std::cerr << "  " << plant.name << '\n';
    return false;
  }
  const auto value = parse_number(text);
  if (!value || (flag != "--seeds" && flag != "--first")) return false;
  (flag == "--seeds" ? arguments.seeds : arguments.first) = *value;
  return true;
}

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--known") {
      arguments.known = true;
    } else if (flag == "--trace") {
      arguments.trace = true;
    } else {
      ++i;
      if (i >= argc || !parse_value(arguments, flag, argv[i])) return std::nullopt;
    }
  }
  if (arguments.plants.empty())
    for (const auto& plant : all_plants()) arguments.plants.push_back(&plant);
  return arguments;
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
  const auto ordinary = small_first(arguments->first, arguments->seeds);
  std::size_t caught = 0;
  for (const auto* plant : arguments->plants) {
    const std::vector<std::uint64_t> known{plant->seed};
    const Catch found =
        hunt(*plant, arguments->known ? known : ordinary, arguments->trace ? &std::cout : nullptr);
    caught += found.seed ? 1 : 0;
    const std::string seed = found.seed ? std::to_string(*found.seed) : "MISSED";
    std::printf("| %s | %s | %s | %s |\n", plant->name, plant->what, seed.c_str(),
                found.seed ? found.checker.c_str()
                           : ("passed " + std::to_string(found.reached) + " times").c_str());
    if (arguments->plants.size() == 1 && found.seed) std::printf("%s\n", found.what.c_str());
    std::fflush(stdout);
  }
  std::printf("plants caught %zu of %zu  %.1f s wall\n", caught, arguments->plants.size(),
              seconds(clock.now() - began));
  return caught == arguments->plants.size() ? 0 : 1;
}
