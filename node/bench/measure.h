// Measuring honestly: wall and CPU time of one piece of work, the spread of many repeats, and what
// the memory of this machine can do in the same minute.
#pragma once

#include "node/base/clock.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starling::node::bench {

using Json = nlohmann::ordered_json;

// Repeats that are carried out first and not counted.
inline constexpr int kWarmUps = 3;

// What one piece of work cost its thread.
struct Cost {
  double wall_s = 0;
  double cpu_s = 0;  // user and system time of the calling thread
  std::uint64_t minor_faults = 0;
};

// What the calling thread, or the whole process with all its threads, has used so far.
[[nodiscard]] Cost thread_cost();
[[nodiscard]] Cost process_cost();

// Carries out `work` and says what it cost the calling thread.
template <class Work>
[[nodiscard]] Cost cost_of(Work&& work) {
  const Cost before = thread_cost();
  std::forward<Work>(work)();
  const Cost after = thread_cost();
  return {after.wall_s - before.wall_s, after.cpu_s - before.cpu_s,
          after.minor_faults - before.minor_faults};
}

// Repeats of one figure. Quantiles are interpolated between the two nearest values.
class Repeats {
 public:
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] double quantile(double share) const;
  [[nodiscard]] double median() const { return quantile(0.5); }
  // {"median", "q1", "q3", "min", "max"}, five significant digits; all zero without a value.
  [[nodiscard]] Json json() const;

 private:
  std::vector<double> values_;
};

// A number with five significant digits, so that JSON does not pretend to know more.
[[nodiscard]] double rounded(double value);

// Memory-bound passes that only a benchmark needs: the least that any codec or optimizer of this
// many values must do. Each uses the widest vectors of the machine.
//
// Reads both once; the return value depends on every one of them, so that nothing is left out.
float read_two(std::span<const float> a, std::span<const float> b);
// a += 0.5 b: two reads, one write.
void triad(std::span<float> a, std::span<const float> b);

// CPU model, cores, instruction set of the codec: what a figure depends on besides the program.
[[nodiscard]] Json machine_json();

}  // namespace starling::node::bench
