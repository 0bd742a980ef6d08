// The benches that need LibTorch.
#pragma once

#include "node/bench/bench.h"

namespace starling::node::bench {

extern const Bench kStepBench;

}  // namespace starling::node::bench
