#include "tests/sim/quadratic.h"

#include "gossip/delta/exchange.h"
#include "node/base/check.h"
#include "node/base/hash.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace starling::sim {
namespace {

constexpr std::size_t kChannels = 32;
constexpr float kRate = 0.1F;
// Width of a gradient's noise, which is uniform about zero.
constexpr double kNoise = 0.4;

gossip::Layout make_layout(std::size_t parameters) {
  auto layout =
      gossip::Layout::make({{"conv.weight", {static_cast<std::int64_t>(parameters / 16), 16}},
                            {"bn.weight", {kChannels}},
                            {"bn.bias", {kChannels}}},
                           kChannels);
  STARLING_CHECK(layout.has_value());
  return std::move(*layout);
}

}  // namespace

Quadratic::Quadratic(const ProblemOptions& options)
    : layout_(make_layout(options.parameters)),
      budget_samples_(options.budget_samples),
      budget_time_(options.budget_time) {
  Rng rng(options.seed * 0x9e37 + 1);
  auto settings = bootstrap::Settings::from({{"budget", std::to_string(options.budget_samples)},
                                             {"model", "quadratic"},
                                             {"seed", std::to_string(options.seed)}});
  STARLING_CHECK(settings.has_value());
  settings_ = std::move(*settings);
  genesis_.assign(layout_.size(), 0.0F);
  optimum_.assign(layout_.size(), 0.0F);
  real_.assign(layout_.size(), 0);
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    if (!layout_.is_real(i / gossip::kBlock, i % gossip::kBlock)) continue;
    real_[i] = 1;
    indices_.push_back(static_cast<std::uint32_t>(i));
    genesis_[i] = static_cast<float>(2 * rng.unit() - 1);
    optimum_[i] = static_cast<float>(2 * rng.unit() - 1);
  }
}

gossip::ModelFacts Quadratic::facts(const Hash& fingerprint) const {
  return {.name = "quadratic",
          .fingerprint = fingerprint,
          .manifest = layout_.manifest(),
          // One block a chunk, so that a small model has several trees.
          .shape = {.parameters = layout_.size(),
                    .channels = kChannels,
                    .counters = 1,
                    .chunk_blocks = 1},
          .blocks = static_cast<std::uint32_t>(layout_.blocks()),
          .max_payload =
              gossip::max_payload_bytes(layout_, gossip::Level::l6, gossip::Statistics::with),
          .budget = {.samples = budget_samples_, .time = budget_time_}};
}

void Quadratic::draw_genesis(std::span<float> parameters) const {
  std::ranges::copy(genesis_, parameters.begin());
}

Weights Quadratic::genesis() const {
  return {.parameters = genesis_,
          .mean = std::vector<float>(kChannels, 0.0F),
          .variance = std::vector<float>(kChannels, 1.0F),
          .batches = 0};
}

void Quadratic::step(Weights& weights, Rng& rng) const {
  for (const auto i : indices_) {
    const auto noise = static_cast<float>((rng.unit() - 0.5) * kNoise);
    float& x = weights.parameters[i];
    x -= kRate * (x - optimum_[i] + noise);
  }
  const auto batch = static_cast<float>(rng.unit());
  for (std::size_t k = 0; k < kChannels; ++k) {
    weights.mean[k] += 0.1F * (batch - weights.mean[k]);
    weights.variance[k] += 0.1F * (0.5F + batch - weights.variance[k]);
  }
  weights.batches += 1;
}

double Quadratic::distance(std::span<const float> parameters) const {
  double squares = 0;
  for (const auto i : indices_) {
    const double d = static_cast<double>(parameters[i]) - static_cast<double>(optimum_[i]);
    squares += d * d;
  }
  return std::sqrt(squares / static_cast<double>(indices_.size()));
}

double Quadratic::bound_after(std::uint64_t steps) {
  // x' = (1 - r) x + r noise: the start shrinks by 1 - r a step; the variance settles at r / (2 -
  // r) of the noise's, which is kNoise^2 / 12: 0.026, and twice that for luck.
  return 2.0 * std::pow(1.0 - static_cast<double>(kRate), static_cast<double>(steps)) + 0.055;
}

Bytes to_bytes(const Weights& weights) {
  Bytes bytes;
  ByteWriter writer(bytes);
  for (const auto* part : {&weights.parameters, &weights.mean, &weights.variance})
    writer.append(std::as_bytes(std::span(*part)));
  writer.write(weights.batches);
  return bytes;
}

bool all_finite(std::span<const float> values) {
  // Without a branch for each the compiler takes several at once: this is asked of every exchange.
  constexpr std::uint32_t kExponent = 0x7f800000;  // all ones: infinite, or not a number
  std::uint32_t found = 0;
  for (const float value : values)
    found |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
  return found == 0;
}

Result<Weights> parse_weights(ByteView bytes, const gossip::Layout& layout) {
  const auto refuse = [](std::string detail) {
    return fail(Errc::bad_message, Doing::transferring_state, std::move(detail));
  };
  Weights weights;
  weights.parameters.resize(layout.size());
  weights.mean.resize(layout.bn_channels());
  weights.variance.resize(layout.bn_channels());
  const std::size_t floats = weights.parameters.size() + 2 * weights.mean.size();
  if (bytes.size() != floats * sizeof(float) + sizeof(weights.batches))
    return refuse("a snapshot of another size");
  ByteReader reader(bytes);
  for (auto* part : {&weights.parameters, &weights.mean, &weights.variance}) {
    const auto raw = reader.take(part->size() * sizeof(float));
    std::memcpy(part->data(), raw->data(), raw->size());
    if (!all_finite(*part)) return refuse("a snapshot with values that are not finite");
  }
  weights.batches = *reader.read<std::int64_t>();
  if (weights.batches < 0) return refuse("a snapshot with a negative count");
  return weights;
}

}  // namespace starling::sim
