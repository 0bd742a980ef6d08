// What the programs of the net lab share: how a lab node is told what to do.
#pragma once

#include "node/base/clock.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starling::lab {

// The only model of a lab node. No other build knows the name, and it is in the fingerprint of the
// settings: a lab node and a real one refuse each other.
inline constexpr std::string_view kModelName = "quadratic";
inline constexpr std::size_t kBatch = 16;

// Set by main() before anything runs, from LAB_STEP_MS, LAB_SEED, LAB_STEPS and LAB_SAMPLES.
struct LabOptions {
  Duration step = std::chrono::milliseconds(100);
  std::uint64_t seed = 1;  // of this node's data: where its own optimum lies
  // A file that gets a line for each step: steady clock in seconds, step, loss. Empty: none.
  std::string steps_file;
  // A file that gets a line after each step: every 4096th parameter. How far nodes are from each
  // other, which no node knows. Empty: none.
  std::string samples_file;
};

LabOptions& lab_options();

}  // namespace starling::lab
