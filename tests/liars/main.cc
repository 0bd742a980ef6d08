// starling_liars: what one of four neighbours does to a swarm by lying, under each rule of
// aggregation, where a small net learns Fashion-MNIST; a table and one summary line.
#include "tests/liars/training_liars.h"
#include "tests/sim/arguments.h"
#include "tests/sim/seeds.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

namespace {

using namespace starling;
using namespace starling::liars;
using gossip::Aggregator;

constexpr std::array kRules{Aggregator::mean, Aggregator::clip, Aggregator::median,
                            Aggregator::trimmed};
constexpr std::array<std::optional<Lie>, 8> kRows{std::nullopt, Lie::sign_flip, Lie::random,
                                                  Lie::little,  Lie::inner,     Lie::dissensus,
                                                  Lie::delay,   Lie::label_flip};
constexpr std::size_t kCells = kRows.size() * kRules.size();
constexpr double kBar = 0.02;  // of accuracy, that a lie may cost whoever clips

struct Arguments {
  std::uint64_t seeds = 5;
  std::uint64_t jobs = sim::all_processors();
  std::uint64_t steps = TrainingRun{}.steps;
};

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    const auto value = i + 1 < argc ? sim::parse_number(argv[i + 1]) : std::nullopt;
    if (!value || *value == 0) return std::nullopt;
    if (flag == "--seeds") {
      arguments.seeds = *value;
    } else if (flag == "--jobs") {
      arguments.jobs = *value;
    } else if (flag == "--steps") {
      arguments.steps = *value;
    } else {
      return std::nullopt;
    }
  }
  return arguments;
}

std::string name_of_row(std::size_t row) {
  return std::string(kRows[row] ? name_of(*kRows[row]) : "none");
}

// Of one lie under one rule, over the seeds.
struct Cell {
  double sum = 0;
  double smallest = 1;
};

// What the runs told so far came to. Run number n is cell n % kCells, rule by rule, of seed
// n / kCells + 1.
class Summary {
 public:
  explicit Summary(const Arguments& arguments) : arguments_(arguments) {}

  [[nodiscard]] TrainingRun run(std::uint64_t number) const {
    const std::size_t cell = number % kCells;
    return {.seed = number / kCells + 1,
            .rule = kRules[cell / kRows.size()],
            .lie = kRows[cell % kRows.size()],
            .steps = arguments_.steps};
  }

  void take(std::uint64_t number, const Result<Learned>& learned) {
    const std::size_t cell = number % kCells;
    const std::string what = name_of_row(cell % kRows.size()) + ", " +
                             std::string(gossip::name_of(kRules[cell / kRows.size()])) + ", seed " +
                             std::to_string(number / kCells + 1);
    if (!learned) {
      std::fprintf(stderr, "%s: %s\n", what.c_str(), learned.error().detail.c_str());
      sound_ = false;
      return;
    }
    std::fprintf(stderr, "%s: %.1f %%%s\n", what.c_str(), 100 * learned->accuracy,
                 learned->finite ? "" : ", NOT FINITE");
    sound_ = sound_ && learned->finite;
    cells_[cell].sum += learned->accuracy;
    cells_[cell].smallest = std::min(cells_[cell].smallest, learned->accuracy);
  }

  void print_table() const {
    std::printf(
        "Test accuracy of the honest replicas in %%: mean of %llu seeds (smallest), %llu steps a "
        "node\n\n| lie                 |",
        static_cast<unsigned long long>(arguments_.seeds),
        static_cast<unsigned long long>(arguments_.steps));
    for (const Aggregator rule : kRules)
      std::printf(" %-11s |", std::string(gossip::name_of(rule)).c_str());
    std::printf("\n|---|---|---|---|---|\n");
    for (std::size_t row = 0; row < kRows.size(); ++row) {
      std::printf("| %-19s |", name_of_row(row).c_str());
      for (std::size_t column = 0; column < kRules.size(); ++column) {
        const double smallest = cells_[column * kRows.size() + row].smallest;
        std::printf(" %4.1f (%4.1f) |", 100 * mean(row, column), 100 * smallest);
      }
      std::printf("\n");
    }
  }

  // The last line; the exit status.
  [[nodiscard]] int end() const {
    const double clean = mean(0, 0);
    const std::size_t worst = worst_row(1);
    const std::size_t worst_of_mean = worst_row(0);
    const bool good = sound_ && mean(worst, 1) >= clean - kBar;
    std::printf(
        "\nliars: clean %.1f %%  clip loses at most %.1f (%s)  mean loses at most %.1f (%s)  %s\n",
        100 * clean, 100 * (clean - mean(worst, 1)), name_of_row(worst).c_str(),
        100 * (clean - mean(worst_of_mean, 0)), name_of_row(worst_of_mean).c_str(),
        good ? "passed" : "failed");
    return good ? 0 : 1;
  }

 private:
  [[nodiscard]] double mean(std::size_t row, std::size_t column) const {
    return cells_[column * kRows.size() + row].sum / static_cast<double>(arguments_.seeds);
  }
  // The lie that costs most under the rule of this column.
  [[nodiscard]] std::size_t worst_row(std::size_t column) const {
    std::size_t worst = 0;
    for (std::size_t row = 1; row < kRows.size(); ++row)
      if (mean(row, column) < mean(worst, column)) worst = row;
    return worst;
  }

  const Arguments& arguments_;
  std::array<Cell, kCells> cells_;
  bool sound_ = true;  // every run came to an end, and every parameter stayed finite
};

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  if (!arguments) {
    std::cerr << "usage: starling_liars [--seeds N] [--steps N] [--jobs N]\n";
    return 2;
  }
  const auto images = load_images("fashion-mnist", 20'000, 2'000);
  if (!images) {
    std::cerr << "skipped: " << images.error().detail << "\n";
    return 77;
  }
  Summary summary(*arguments);
  sim::over_seeds(
      {.first = 0, .count = arguments->seeds * kCells}, arguments->jobs,
      [&](std::uint64_t number) { return train_with_liar(*images, summary.run(number)); },
      [&](std::uint64_t number, const Result<Learned>& learned) { summary.take(number, learned); });
  summary.print_table();
  return summary.end();
}
