// Bytes of peers inside jobs: packed sums, contributions and result chunks of a small model. The
// first byte chooses the job, the rest is the attachment.
#include "gossip/consensus/contribution.h"
#include "node/base/bytes.h"
#include "node/base/tree_hash.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::gossip::consensus;
  if (size < 1) return 0;
  const ModelShape shape{.parameters = 20, .channels = 3, .counters = 2, .chunk_blocks = 1};
  const ChunkPlan plan(shape);
  const std::vector<float> y(20, 0.75F);
  const std::vector<float> mean(3, 0.5F);
  const std::vector<float> variance(3, 1.0F);
  const std::vector<std::int64_t> counters(2, 9);
  std::vector<float> x(20);
  std::vector<float> result_mean(3);
  std::vector<float> result_variance(3);
  std::vector<std::int64_t> result_counters(2);
  const JobMemory memory{
      y, mean, variance, counters, x, result_mean, result_variance, result_counters, {}};
  const auto bytes = share(to_bytes(std::as_bytes(std::span(data + 1, size - 1))));
  const std::uint32_t chunk = data[0] % plan.count();
  const auto exponents = share(Bytes(plan.exponents(chunk), std::byte{130}));
  const JobTarget target{{{}, Epoch{1}}, chunk};
  const ChildSum child{NodeId{}, bytes, 3, 3};
  ConsensusJob job = StoreJob{target, NodeId{}, tree_hash_of(*bytes), bytes};
  const SumJob sum{target, exponents, 1, {child}};
  switch (data[0] / 64) {
    case 0:
      job = sum;
      break;
    case 1:
      job = DivideJob{sum};
      break;
    case 2:
      if (plan.kind(chunk) == ChunkKind::counters) return 0;
      job = MedianJob{target, Rule::median, {child}};
      break;
    default:
      if (plan.kind(chunk) != ChunkKind::parameters || data[0] % 2 == 0) break;
      job = StoreJob{target, NodeId{}, tree_hash_of(*bytes), bytes, ResultForm::packed};
      break;
  }
  const auto outcome = run_job(job, plan, memory);
  if (!outcome.result && !outcome.culprit) std::abort();  // it can only have been the peer's fault
  if (!outcome.result) return 0;
  for (const float value : x)
    if (!std::isfinite(value)) std::abort();
  return 0;
}
