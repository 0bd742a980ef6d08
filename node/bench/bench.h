// `starling bench NAME`: every figure of the project's tables, repeatable by anybody on any
// machine.
//
// A bench measures and returns one JSON object; the verb prints it, as it is or as a table. Figures
// of one machine are not figures of another: compare ratios of two runs that took turns
// (tests/bench/compare).
#pragma once

#include "node/base/result.h"
#include "node/bench/measure.h"
#include "node/cli/arguments.h"
#include "node/cli/demo_nodes.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace starling::node::bench {

// One bench: what it is called, what it takes, what it does.
struct Bench {
  std::string_view name;
  std::string_view summary;                 // one line
  std::span<const std::string_view> flags;  // of the verb's own flags, besides --json
  std::span<const std::string_view> keys;   // configuration keys that it looks at
  // Its figures, without what all benches have in common. Long ones tell the terminal how far they
  // are.
  Result<Json> (*measure)(const Arguments& arguments, const Terminal& terminal) = nullptr;
  // Instead of it, for a bench that tidies up and ends with cancelled when it is told to stop.
  Result<Json> (*measure_until)(const Arguments& arguments, const Terminal& terminal,
                                StopSignals& stop) = nullptr;
};

// Carries out one bench of the table and prints what it found; the exit code, which is 128 and the
// signal's number after a stop. A flag that the bench does not look at is refused, and so is a key
// that was set anywhere.
[[nodiscard]] int carry_out(std::span<const Bench> table, const Arguments& arguments,
                            const Terminal& terminal);

// Parameters of ResNet-50: the size that every figure without --n is about.
inline constexpr std::uint64_t kResnet50Parameters = 25'557'032;

// Bytes that an optimizer pass over n parameters moves when gradients and working copy have values
// of `type_bytes`: it reads x, v and the gradients of every slice of the batch, and writes x, v and
// w.
[[nodiscard]] constexpr std::uint64_t optimizer_pass_bytes(std::uint64_t n, std::size_t type_bytes,
                                                           std::size_t slices = 1) {
  return n * (16 + (slices + 1) * type_bytes);
}

// The benches that need no LibTorch.
extern const Bench kCodecBench;
extern const Bench kOptimBench;
extern const Bench kDataBench;
extern const Bench kWireBench;
extern const Bench kRoundBench;
extern const Bench kSwarmBench;

}  // namespace starling::node::bench
