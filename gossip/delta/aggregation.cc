#include "gossip/delta/aggregation.h"

#include "node/base/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace starling::gossip {
namespace {

// Neighbours that are enough where one speaks twice: fewer of three, since this node has a say,
// too.
constexpr std::size_t kEnough = 3;
constexpr std::size_t kEnoughOfThree = 2;

// Checked once when it came: it decodes.
PayloadView view_of(const Layout& layout, const Payload& payload) {
  auto view = parse_payload(layout, payload);
  STARLING_CHECK(view.has_value());
  return std::move(*view);
}

float bounded(float value, float sign) {
  if (std::isfinite(value)) return value;
  return std::copysign(std::numeric_limits<float>::max(), sign);
}

}  // namespace

std::string_view name_of(Aggregator aggregator) {
  switch (aggregator) {
    case Aggregator::mean:
      return "mean";
    case Aggregator::clip:
      return "clip";
    case Aggregator::median:
      return "median";
    case Aggregator::trimmed:
      return "trimmed";
    case Aggregator::unguarded:
      return "unguarded";
  }
  return "?";
}

float middle_of(std::span<float> values) {
  STARLING_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  // Plus zero, because +0 and -0 have no order and must not depend on who sorted them.
  if (values.size() % 2 == 1) return *middle + 0.0F;
  const float lower = *std::max_element(values.begin(), middle);
  return static_cast<float>((static_cast<double>(lower) + static_cast<double>(*middle)) / 2) + 0.0F;
}

float trimmed_mean_of(std::span<float> values) {
  STARLING_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const std::size_t cut = values.size() < 3 ? 0 : std::max<std::size_t>(1, values.size() / 4);
  const auto kept = values.subspan(cut, values.size() - 2 * cut);
  double sum = 0;
  for (const float value : kept) sum += static_cast<double>(value);
  return static_cast<float>(sum / static_cast<double>(kept.size())) + 0.0F;
}

void HeldIncrements::hold(const EdgeEnds& edge, Increment increment) {
  STARLING_CHECK(increment.factor > 0 && std::isfinite(increment.factor));
  const bool first = held_.insert_or_assign(edge, std::move(increment)).second;
  if (!first) spoke_twice_ = true;
}

bool HeldIncrements::complete(std::size_t edges) const {
  if (held_.size() >= edges) return true;
  return spoke_twice_ && held_.size() >= (edges == 3 ? kEnoughOfThree : kEnough);
}

void HeldIncrements::apply(const Layout& layout, Aggregator rule, std::span<float> parameters,
                           Isa isa) {
  STARLING_CHECK(holds_back(rule));
  STARLING_CHECK_OP(parameters.size(), ==, layout.size());
  struct Views {
    DeltaView own;
    DeltaView theirs;
    float factor;
  };
  std::vector<Views> views;
  for (const auto& [edge, one] : held_)
    views.push_back(
        {view_of(layout, one.own).delta, view_of(layout, one.theirs).delta, one.factor});
  alignas(64) std::array<float, kBlock> own{};
  alignas(64) std::array<float, kBlock> theirs{};
  std::vector<float> columns(views.size() * kBlock);
  std::vector<float> row(views.size() + 1);
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    const std::size_t width = layout.width(block);
    for (std::size_t k = 0; k < views.size(); ++k) {
      decode_block(views[k].own, block, own, isa);
      decode_block(views[k].theirs, block, theirs, isa);
      for (std::size_t i = 0; i < width; ++i)
        columns[k * kBlock + i] =
            bounded(views[k].factor * (theirs[i] - own[i]), theirs[i] - own[i]);
    }
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t k = 0; k < views.size(); ++k) row[k] = columns[k * kBlock + i];
      row.back() = 0;
      const float moved = parameters[block * kBlock + i] +
                          (rule == Aggregator::median ? middle_of(row) : trimmed_mean_of(row));
      if (std::isfinite(moved)) parameters[block * kBlock + i] = moved;
    }
  }
  held_.clear();
  spoke_twice_ = false;
}

}  // namespace starling::gossip
