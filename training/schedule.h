// What changes over a run as a function of the swarm's progress: the learning rate, and the side of
// the images.
#pragma once

#include <cstdint>
#include <vector>

namespace starling::training {

// Warm-up, then a cosine down to the floor. The same on every node of a swarm.
struct ScheduleOptions {
  // Rate at the end of the warm-up. Raising it trains faster until it diverges; 0.1 suits a batch
  // of 64 to 256.
  double peak = 0.1;
  // Share of the budget over which the rate rises in a straight line. Raising it costs time at the
  // full rate; lowering it lets the first steps, whose momentum is cold, go astray.
  double warmup_share = 0.05;
  // Rate at the end, as a share of the peak. Zero lets the replicas stop moving.
  double floor_share = 0.0;
};

// Steps over which a node whose momentum is cold (it has just adopted a replica) reaches the
// schedule's rate (algorithm 5.7).
inline constexpr std::int64_t kAdoptionWarmupSteps = 200;

// The learning rate at a share of the budget; shares outside [0, 1] count as the nearer end.
//
// Rule:    share < warm-up: peak * max(share / warmup, 1 / 1000), so that the first step moves;
//          then floor + (peak - floor) * (1 + cos(pi * t)) / 2, t the share of what is left.
// Source:  Loshchilov & Hutter 2017, "SGDR", without restarts; Goyal et al. 2017 for the warm-up.
// Thread:  any; pure.
[[nodiscard]] double learning_rate(const ScheduleOptions& options, double share);

// The factor by which a node multiplies that rate in its `step`-th step (counted from 1) since it
// adopted a replica: step / 200, at most 1.
[[nodiscard]] double adoption_factor(std::int64_t step);

// Images of this side, up to a share of the budget.
struct ImageStage {
  std::uint32_t side = 0;
  double until_share = 0;

  friend bool operator==(const ImageStage&, const ImageStage&) = default;
};

// The side of the images to train on at a share of the budget: that of the first stage which ends
// later, and after the last stage `full`. A convolutional net costs in proportion to the square of
// the side, and learns most of what it learns early from small images.
//
// Source:  Howard 2018, "Training Imagenet in 3 hours for $25" (fast.ai, DAWNBench).
// Thread:  any; pure.
[[nodiscard]] std::uint32_t image_side(const std::vector<ImageStage>& stages, double share,
                                       std::uint32_t full);

}  // namespace starling::training
