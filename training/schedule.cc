#include "training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace starling::training {

double learning_rate(const ScheduleOptions& options, double share) {
  // A share that is not a number compares false with everything: it counts as the start.
  const double at = share > 0 ? std::min(share, 1.0) : 0.0;
  if (at < options.warmup_share) {
    return options.peak * std::max(at / options.warmup_share, 1e-3);
  }
  const double rest = 1.0 - options.warmup_share;
  const double t = rest > 0 ? (at - options.warmup_share) / rest : 1.0;
  const double floor = options.peak * options.floor_share;
  return floor + (options.peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * t));
}

double adoption_factor(std::int64_t step) {
  const auto done = static_cast<double>(std::clamp<std::int64_t>(step, 1, kAdoptionWarmupSteps));
  return done / static_cast<double>(kAdoptionWarmupSteps);
}

std::uint32_t image_side(const std::vector<ImageStage>& stages, double share, std::uint32_t full) {
  const auto now = std::ranges::find_if(
      stages, [share](const ImageStage& stage) { return share < stage.until_share; });
  return now != stages.end() ? now->side : full;
}

}  // namespace starling::training
