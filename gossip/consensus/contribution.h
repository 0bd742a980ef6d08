// Runs the jobs of a consensus against a frozen contribution and a result buffer.
#pragma once

#include "gossip/consensus/jobs.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling::gossip::consensus {

// One tensor as a range of the flat vector, and the largest |x_i - x_j| over it that this node saw
// in its last 100 exchanges (rulings 37); not finite or 0: never measured, nothing is checked.
struct TensorLimit {
  std::uint64_t first = 0;
  std::uint64_t values = 0;
  float largest_disagreement = 0;
};

// The memory that jobs work on. Owner: the shell. Spans must have the sizes of the plan's shape.
struct JobMemory {
  // The own contribution y, frozen. Empty for a node that only follows.
  std::span<const float> parameters;
  std::span<const float> mean;
  std::span<const float> variance;
  std::span<const std::int64_t> counters;
  // The result x*.
  std::span<float> result_parameters;
  std::span<float> result_mean;
  std::span<float> result_variance;
  std::span<std::int64_t> result_counters;
  std::span<const TensorLimit> tensors;
};

// The result's factor over the largest measured disagreement above which it is refused.
inline constexpr double kSanityFactor = 4.0;

// How many times the size of a BatchNorm channel the common mean may be away from the own one; the
// common variance may be the square of it times as large. The size is the root of the own second
// moment and 1, the variance with which every channel starts: a node whose channel is fresh or dead
// is no judge of the others'. A raised factor lets a liar move a channel further; a lowered one
// turns honest means into medians.
inline constexpr double kStatisticsFactor = 16.0;

// The outcome of one job, to be handed to on_job_done().
//
// Errors:  in the outcome: diverged (the own contribution is not finite), replicas_differ (it is,
//          but infinitely far from the common mean), bad_message (a peer's bytes; `culprit` says
//          whose), corrupt (the result buffer no longer holds what it did).
// Cost:    one pass over at most 64 blocks (CheckJob: two passes over the model); 2 MiB of its own.
// Thread:  any; jobs of one run one after the other, in the order in which they were returned.
[[nodiscard]] JobOutcome run_job(const ConsensusJob& job, const ChunkPlan& plan,
                                 const JobMemory& memory);

}  // namespace starling::gossip::consensus
