// The benches of a GPU's kernels: what `optim` and `codec` do with --device cuda.
#pragma once

#include "gossip/delta/layout.h"
#include "gossip/delta/level.h"
#include "node/bench/bench.h"

#include <optional>
#include <vector>

namespace starling::node::bench {

// The CUDA device that --device names; nothing for auto and cpu: these two benches are of one CPU
// thread unless a GPU is asked for.
[[nodiscard]] std::optional<int> device_asked_for(const Arguments& arguments);

// Errors:  unsupported where this build or machine has no such device, with what to do.
[[nodiscard]] Result<Json> measure_device_optim(int device, std::uint64_t n, std::uint64_t repeats);
[[nodiscard]] Result<Json> measure_device_codec(int device, const gossip::Layout& layout,
                                                const std::vector<gossip::Level>& levels,
                                                std::uint64_t repeats);

}  // namespace starling::node::bench
