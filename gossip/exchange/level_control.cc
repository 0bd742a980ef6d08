#include "gossip/exchange/level_control.h"

#include "node/base/check.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace starling::gossip {
namespace {

// The levels between which the controller chooses.
constexpr std::size_t kCheapest = static_cast<std::size_t>(Level::l2);
constexpr std::size_t kDearest = static_cast<std::size_t>(Level::l5);

// Bits a parameter of each level, with its share of scales and indices (design section 5).
constexpr PerLevel kBitsPerParameter{0.06, 0.17, 0.49, 1.02, 2.02, 4.07, 8.07};

// What a node does every tau steps: it makes an offer, applies it, and answers one.
constexpr double kJobsInPeriod = 3;
// Of the codec's share, below which the period may be halved: a cost at its edge changes nothing.
constexpr double kClearlyWithin = 0.75;

bool codec_fits(const PeriodInputs& inputs, double share, std::uint32_t tau) {
  if (inputs.step_time == Duration{}) return true;
  return kJobsInPeriod * seconds(inputs.job_cost) <= share * seconds(inputs.step_time) * tau;
}

std::size_t index_of(Level level) { return static_cast<std::size_t>(level); }

Level cheapest_enough(const PerLevel& unsent, double bound) {
  for (std::size_t level = kCheapest; level < kDearest; ++level)
    if (unsent[level] <= bound) return static_cast<Level>(level);
  return Level::l5;
}

// The dearest level at or below `wanted` that fits.
std::optional<Level> dearest_that_fits(const LevelInputs& inputs, Level wanted,
                                       const LevelOptions& options) {
  for (std::size_t level = index_of(wanted) + 1; level-- > kCheapest;)
    if (fits(inputs.line, options, static_cast<Level>(level), inputs.tau))
      return static_cast<Level>(level);
  return std::nullopt;
}

// What the unsent shares ask for, and by which bound.
std::pair<Level, LevelReason> wish(const LevelInputs& inputs, const PerLevel& unsent,
                                   const LevelOptions& options) {
  if (inputs.progress >= options.late_progress) {
    const Level late = cheapest_enough(unsent, options.unsent_max_late);
    if (fits(inputs.line, options, late, inputs.tau)) return {late, LevelReason::late_phase};
  }
  return {cheapest_enough(unsent, options.unsent_max), LevelReason::enough};
}

}  // namespace

void LevelHistory::on_encode(const EncodeFigures& figures) {
  if (figures.difference_energy <= 0) return;  // replica and reference are equal: no information
  ++encodes_;
  if (!unsent_) {
    unsent_.emplace();
    std::copy(figures.unsent_share.begin(), figures.unsent_share.end(), unsent_->begin());
    return;
  }
  // The plain mean until the window is full, then a moving one of the same length.
  const double gain = 1.0 / std::min(encodes_, window_);
  for (std::size_t level = 0; level < kLevels; ++level)
    (*unsent_)[level] +=
        gain * (static_cast<double>(figures.unsent_share[level]) - (*unsent_)[level]);
}

bool LevelHistory::left_within(Level level, std::uint32_t exchanges) const {
  const auto& left = left_at_[index_of(level)];
  return left && exchanges_ - *left < exchanges;
}

bool fits(const Line& line, const LevelOptions& options, Level level, std::uint32_t tau) {
  if (!line.bytes_per_second || line.step_time == Duration{}) return true;
  const double budget = options.line_share * *line.bytes_per_second * seconds(line.step_time) * tau;
  return 2 * line.message_bytes[index_of(level)] <= budget;
}

LevelDecision decide_level(const LevelInputs& inputs, const LevelHistory& history,
                           const LevelOptions& options) {
  if (options.fixed_level) return {*options.fixed_level, *options.fixed_level, LevelReason::pinned};
  Level wanted = inputs.present;
  LevelReason reason = LevelReason::unmeasured;
  if (history.unsent()) std::tie(wanted, reason) = wish(inputs, *history.unsent(), options);

  const auto fitting = dearest_that_fits(inputs, wanted, options);
  if (!fitting) return {Level::l2, wanted, LevelReason::nothing_fits};
  if (*fitting < wanted) {
    // A step down is demanded by the line; a step up to what fits is a wish like any other.
    if (*fitting > inputs.present && history.left_within(*fitting, options.memory))
      return {inputs.present, wanted, LevelReason::left_before};
    return {*fitting, wanted, LevelReason::line_too_slow};
  }
  if (wanted != inputs.present && history.left_within(wanted, options.memory) &&
      fits(inputs.line, options, inputs.present, inputs.tau))
    return {inputs.present, wanted, LevelReason::left_before};
  return {wanted, wanted, reason};
}

PeriodDecision decide_period(const PeriodInputs& inputs, const LevelOptions& options) {
  if (options.fixed_tau) return {*options.fixed_tau, PeriodReason::pinned};
  STARLING_CHECK(inputs.tau >= 1);
  if (inputs.nothing_fits) {
    if (inputs.tau >= options.max_tau) return {inputs.tau, PeriodReason::longest};
    return {std::min(options.max_tau, inputs.tau * 2), PeriodReason::nothing_fits};
  }
  if (inputs.tau < options.codec_max_tau && !codec_fits(inputs, options.codec_share, inputs.tau))
    return {std::min(options.codec_max_tau, inputs.tau * 2), PeriodReason::codec_time};
  // Half the first period would spend more than the default where nothing asks for it.
  if (inputs.tau <= options.start_tau || inputs.exchanges_with_room == 0)
    return {inputs.tau, PeriodReason::fits};
  if (inputs.tau <= options.codec_max_tau &&
      !codec_fits(inputs, kClearlyWithin * options.codec_share, inputs.tau / 2))
    return {inputs.tau, PeriodReason::codec_time};
  if (inputs.exchanges_with_room < options.window) return {inputs.tau, PeriodReason::waiting};
  if (inputs.exchanges_since_left_half && *inputs.exchanges_since_left_half < options.memory)
    return {inputs.tau, PeriodReason::left_before};
  return {std::max(options.start_tau, inputs.tau / 2), PeriodReason::room_for_half};
}

PerLevel typical_bytes(std::uint32_t blocks) {
  PerLevel bytes{};
  for (std::size_t level = 0; level < kLevels; ++level)
    bytes[level] = kBitsPerParameter[level] * 4096.0 * blocks / 8;
  return bytes;
}

Level level_for_leave(const Line& line, Duration time) {
  if (!line.bytes_per_second) return Level::l5;
  const double bytes = *line.bytes_per_second * seconds(time);
  for (std::size_t level = kDearest; level > 0; --level)
    if (line.message_bytes[level] <= bytes) return static_cast<Level>(level);
  return Level::l0;
}

std::string_view name_of(LevelReason reason) {
  switch (reason) {
    case LevelReason::pinned:
      return "pinned";
    case LevelReason::unmeasured:
      return "unmeasured";
    case LevelReason::enough:
      return "enough";
    case LevelReason::late_phase:
      return "late_phase";
    case LevelReason::line_too_slow:
      return "line_too_slow";
    case LevelReason::nothing_fits:
      return "nothing_fits";
    case LevelReason::left_before:
      return "left_before";
  }
  return "?";
}

std::string_view name_of(PeriodReason reason) {
  switch (reason) {
    case PeriodReason::pinned:
      return "pinned";
    case PeriodReason::fits:
      return "fits";
    case PeriodReason::nothing_fits:
      return "nothing_fits";
    case PeriodReason::codec_time:
      return "codec_time";
    case PeriodReason::room_for_half:
      return "room_for_half";
    case PeriodReason::waiting:
      return "waiting";
    case PeriodReason::left_before:
      return "left_before";
    case PeriodReason::longest:
      return "longest";
  }
  return "?";
}

}  // namespace starling::gossip
