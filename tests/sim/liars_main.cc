// starling_liars: what one of four neighbours does to a swarm by lying, under each rule of
// aggregation; a table and one summary line.
#include "tests/sim/arguments.h"
#include "tests/sim/liars.h"

#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

namespace {

using namespace starling;
using namespace starling::sim;

struct Row {
  std::string_view name;
  std::optional<Lie> lie;
};

void print(const Row& row, std::uint64_t seeds, bool& all_finite) {
  std::printf("| %-20s |", std::string(row.name).c_str());
  for (const auto rule : kRules) {
    Harm sum;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const Harm harm = run_with_liar(seed, rule, row.lie);
      sum.distance += harm.distance / static_cast<double>(seeds);
      sum.disagreement += harm.disagreement / static_cast<double>(seeds);
      all_finite = all_finite && harm.finite;
    }
    std::printf(" %9.3g %9.3g |", sum.distance, sum.disagreement);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seeds = 5;
  if (argc == 3 && std::string_view(argv[1]) == "--seeds" && parse_number(argv[2])) {
    seeds = *parse_number(argv[2]);
  } else if (argc != 1) {
    std::cerr << "usage: starling_liars [--seeds N]\n";
    return 2;
  }
  std::printf(
      "Distance of the honest replicas to the optimum, and between them (root mean square a "
      "coordinate), means of %llu seeds\n\n| lie                  |",
      static_cast<unsigned long long>(seeds));
  for (const auto rule : kRules)
    std::printf(" %-19s |", std::string(gossip::name_of(rule)).c_str());
  std::printf("\n|---|---|---|---|---|---|\n");
  bool all_finite = true;
  print({"none", std::nullopt}, seeds, all_finite);
  for (const auto lie : kLies) print({name_of(lie), lie}, seeds, all_finite);
  std::printf("\nliars: %s\n", all_finite ? "every parameter stayed finite" : "NOT FINITE");
  return all_finite ? 0 : 1;
}
