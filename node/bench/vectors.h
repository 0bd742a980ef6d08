// The vectors that benches of deltas work on: a model's layout, and replicas that drift apart.
#pragma once

#include "gossip/delta/layout.h"
#include "gossip/delta/level.h"
#include "node/base/random.h"
#include "node/base/result.h"
#include "node/cli/arguments.h"

#include <span>

namespace starling::node::bench {

// What a replica moves before a repeat, against what it was apart at the start.
inline constexpr float kDrift = 0.25F;
inline constexpr float kScale = 1e-3F;

// One tensor of --n values, or ResNet-50 without the flag.
//
// Errors:  bad_argument.
[[nodiscard]] Result<gossip::Layout> layout_of(const Arguments& arguments);

// The level that --level names, or `fallback` without the flag.
//
// Errors:  bad_argument.
[[nodiscard]] Result<gossip::Level> level_of(const Arguments& arguments, gossip::Level fallback);

// Adds about normal noise of deviation `sigma` to the real values; padding stays.
void add_noise(const gossip::Layout& layout, Rng& rng, float sigma, std::span<float> values);

}  // namespace starling::node::bench
