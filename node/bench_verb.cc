// `starling bench`: the table of what can be measured.
#include "node/bench/torch_bench.h"

#include <array>

namespace starling::node {

int bench_verb(const Arguments& arguments, const Terminal& terminal) {
  const std::array table{bench::kStepBench, bench::kOptimBench, bench::kCodecBench,
                         bench::kWireBench, bench::kRoundBench, bench::kSwarmBench,
                         bench::kDataBench};
  return bench::carry_out(table, arguments, terminal);
}

}  // namespace starling::node
