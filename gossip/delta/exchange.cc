#include "gossip/delta/exchange.h"

#include "gossip/delta/kernels.h"
#include "gossip/delta/sparse_stream.h"
#include "node/base/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace starling::gossip {

namespace {

// What rounding of differences and sums may add to a norm.
constexpr double kMargin = 1 + 1e-6;

float float_at(ByteView bytes, std::size_t index) {
  float value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof(float), sizeof(value));
  return value;
}

std::size_t statistics_bytes(const Layout& layout) {
  return 2 * layout.bn_channels() * sizeof(float);
}

DeltaBlock block_of(const DeltaView& delta, std::size_t block) {
  return {delta.layout(), delta.level(), block, delta.from(block)};
}

// Both deltas of one block as values, and what they are added to.
//
// A value on the stack of one walk. Two dense deltas of one level are added from their bytes; two
// sparse ones are written over zeros, which adding them leaves behind.
class BlockPair {
 public:
  BlockPair(Side own_side, Isa isa)
      : own_is_lower_(own_side == Side::lower), isa_(isa), kernels_(kernels_of(isa)) {}

  // What is known of the own half, and of both: see DecodeHints.
  struct Hints {
    const Selection* own_selection = nullptr;
    std::span<const float> x_soon = {};
    std::span<const float> r_soon = {};
  };
  void decode(const DeltaBlock& own, const DeltaView& theirs, const Hints& hints) {
    clears_ = is_sparse(own.level) && is_sparse(theirs.level());
    if (clears_ && !zeros_) {
      lower_.fill(0);
      higher_.fill(0);
    }
    zeros_ = false;
    decode_block(own, own_is_lower_ ? lower_ : higher_, isa_,
                 {hints.x_soon, hints.own_selection, clears_});
    decode_block(block_of(theirs, own.index), own_is_lower_ ? higher_ : lower_, isa_,
                 {hints.r_soon, nullptr, clears_});
  }
  void decode(const DeltaPair& pair, std::size_t block) {
    decode(block_of(pair.own, block), pair.theirs, {});
  }
  // Adds both: see Kernels::apply. Writes them out as values only where it has to.
  double apply(const DeltaBlock& own, const DeltaView& theirs, const Hints& hints, float to_higher,
               const ReplicaValues& to) {
    const std::size_t width = own.layout.width(own.index);
    if (const auto adds = apply_of(own.level, theirs.level())) {
      const auto dense = dense_block(own);
      const auto other = dense_block(block_of(theirs, own.index));
      if (dense && other)
        return adds(own_is_lower_ ? *dense : *other, own_is_lower_ ? *other : *dense, width,
                    to_higher, to);
    }
    decode(own, theirs, hints);
    if (!clears_) return kernels_.apply(lower_.data(), higher_.data(), width, to_higher, to);
    zeros_ = true;
    return kernels_.apply_and_clear(lower_.data(), higher_.data(), width, to_higher, to);
  }
  [[nodiscard]] const float* lower() const { return lower_.data(); }
  [[nodiscard]] const float* higher() const { return higher_.data(); }

 private:
  // What adds blocks of two levels from their bytes, or null.
  [[nodiscard]] ApplyDense apply_of(Level own, Level theirs) const {
    if (own != theirs) return nullptr;
    switch (own) {
      case Level::l3:
        return kernels_.apply_signs;
      case Level::l4:
        return kernels_.apply_two;
      case Level::l5:
        return kernels_.apply4;
      case Level::l6:
        return kernels_.apply8;
      default:
        return nullptr;
    }
  }

  bool own_is_lower_;
  Isa isa_;
  const Kernels& kernels_;
  bool clears_ = false;  // what was decoded last is to be cleared
  bool zeros_ = false;   // both hold nothing but zeros
  alignas(64) std::array<float, kBlock> lower_;
  alignas(64) std::array<float, kBlock> higher_;
};

// By what q_higher - q_lower is multiplied: factor (their - own) is the same float as
// -factor (own - their).
float factor_to_higher(Side own_side, float factor) {
  return own_side == Side::lower ? factor : -factor;
}

// Adds up what the parts of a model come to, in their order.
double sum_of_parts(const Layout& layout, const ForEachPart& parts,
                    const std::function<double(BlockRange)>& sum_of) {
  std::vector<double> sums(part_count(layout.blocks()));
  parts(sums.size(),
        [&](std::size_t part) { sums[part] = sum_of(part_of(layout.blocks(), part)); });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Applies each block of the own delta with the other end's.
class Applier final : public BlockSink {
 public:
  Applier(const TheirHalf& theirs, const ExchangeState& state, const EncodeOptions& options,
          double& energy)
      : theirs_(theirs),
        state_(state),
        level_(options.level),
        energy_(energy),
        values_(theirs.own_side, options.isa) {}

  void take(std::size_t block, ByteView bytes, const Selection* selection) override {
    energy_ += values_.apply(
        {theirs_.delta.layout(), level_, block, bytes}, theirs_.delta, {.own_selection = selection},
        factor_to_higher(theirs_.own_side, theirs_.factor),
        {state_.parameters.data() + block * kBlock, state_.reference.data() + block * kBlock});
  }

 private:
  const TheirHalf& theirs_;
  const ExchangeState& state_;
  Level level_;
  double& energy_;
  BlockPair values_;
};

// Mean and variance of one channel.
struct Channel {
  float mean = 0;
  float variance = 0;
};

// In double, where the square of no float is infinite. A mean ends between the two, so it is
// finite. No root for what is within reach, which is nearly everything.
Channel within_reach(const Channel& own, const Channel& theirs) {
  const double m = own.mean;
  const double size_squared = m * m + std::max(static_cast<double>(own.variance), 0.0) + 1;
  const double most = kStatisticsReach * kStatisticsReach * size_squared;
  const double apart = static_cast<double>(theirs.mean) - m;
  Channel counted = theirs;
  if (apart * apart > most)
    counted.mean = static_cast<float>(m + std::copysign(std::sqrt(most), apart));
  if (static_cast<double>(theirs.variance) > most) counted.variance = static_cast<float>(most);
  return counted;
}

}  // namespace

std::size_t max_payload_bytes(const Layout& layout, Level level, Statistics statistics) {
  return max_bytes(layout, level) +
         (statistics == Statistics::with ? statistics_bytes(layout) : std::size_t{0});
}

Result<PayloadView> parse_payload(const Layout& layout, const Payload& payload) {
  if (payload.bytes == nullptr)
    return fail(Errc::bad_message, Doing::reading_delta, "a payload without bytes");
  const ByteView bytes(*payload.bytes);
  const std::size_t tail =
      payload.statistics == Statistics::with ? statistics_bytes(layout) : std::size_t{0};
  if (bytes.size() < tail)
    return fail(Errc::bad_message, Doing::reading_delta,
                std::to_string(bytes.size()) + " bytes are too few for the statistics");
  TRY(DeltaView delta, parse_delta(layout, payload.level, bytes.first(bytes.size() - tail)));
  const ByteView statistics = bytes.last(tail);
  for (std::size_t i = 0; i < tail / sizeof(float); ++i) {
    const float value = float_at(statistics, i);
    const bool is_variance = i >= layout.bn_channels();
    if (!std::isfinite(value) || (is_variance && value < 0))
      return fail(Errc::bad_message, Doing::reading_delta,
                  std::string(is_variance ? "variance" : "mean") + " of channel " +
                      std::to_string(i % layout.bn_channels()) + " is " + std::to_string(value));
  }
  return PayloadView{std::move(delta), statistics};
}

Result<void> append_statistics(const ChannelStatistics& own, Bytes& out) {
  STARLING_CHECK_OP(own.mean.size(), ==, own.variance.size());
  for (std::size_t i = 0; i < own.mean.size(); ++i)
    if (!std::isfinite(own.mean[i]) || !std::isfinite(own.variance[i]) || own.variance[i] < 0)
      return fail(Errc::diverged, Doing::encoding_delta,
                  "BatchNorm statistics of channel " + std::to_string(i) +
                      " are not finite, nothing of them is sent");
  out.reserve(out.size() + 2 * own.mean.size_bytes());
  ByteWriter writer(out);
  writer.append(std::as_bytes(own.mean));
  writer.append(std::as_bytes(own.variance));
  return {};
}

std::size_t pool_statistics(ByteView theirs, Weight weight, const ChannelStatistics& own,
                            StatisticsBound bound) {
  STARLING_CHECK_OP(theirs.size(), ==, 2 * own.mean.size_bytes());
  const float b = weight.value();
  const float a = 1.0F - b;
  const std::size_t channels = own.mean.size();
  std::size_t clipped = 0;
  for (std::size_t i = 0; i < channels; ++i) {
    const Channel stated{float_at(theirs, i), float_at(theirs, channels + i)};
    const Channel mine{own.mean[i], own.variance[i]};
    const auto [mean, variance] =
        bound == StatisticsBound::reach ? within_reach(mine, stated) : stated;
    if (mean != stated.mean || variance != stated.variance) ++clipped;
    const float apart = own.mean[i] - mean;
    const float pooled_mean = a * own.mean[i] + b * mean;
    const float pooled = a * own.variance[i] + b * variance + a * b * (apart * apart);
    if (!std::isfinite(pooled_mean) || !std::isfinite(pooled)) continue;
    own.mean[i] = pooled_mean;
    own.variance[i] = pooled;
  }
  return clipped;
}

double difference_norm(const DeltaPair& pair, Isa isa) {
  const Layout& layout = pair.own.layout();
  const Kernels& kernels = kernels_of(isa);
  return std::sqrt(sum_of_parts(layout, one_after_another, [&](BlockRange range) {
    BlockPair values(pair.own_side, isa);
    double energy = 0;
    for (std::size_t block = range.begin; block < range.end; ++block) {
      values.decode(pair, block);
      energy += kernels.distance(values.lower(), values.higher(), layout.width(block));
    }
    return energy;
  }));
}

double norm_bound(const DeltaView& delta) {
  double energy = 0;
  for (std::size_t block = 0; block < delta.layout().blocks(); ++block)
    energy += energy_bound(delta, block);
  return kMargin * std::sqrt(energy);
}

double difference_norm_bound(const DeltaPair& pair) {
  double energy = 0;
  for (std::size_t block = 0; block < pair.own.layout().blocks(); ++block) {
    const double norm =
        std::sqrt(energy_bound(pair.own, block)) + std::sqrt(energy_bound(pair.theirs, block));
    energy += norm * norm;
  }
  return kMargin * std::sqrt(energy);
}

double apply_exchange(const DeltaPair& pair, float factor, const ExchangeState& state, Isa isa,
                      const ForEachPart& parts) {
  const Layout& layout = pair.own.layout();
  STARLING_CHECK_OP(state.parameters.size(), ==, layout.size());
  STARLING_CHECK_OP(state.reference.size(), ==, layout.size());
  const float to_higher = factor_to_higher(pair.own_side, factor);
  return std::sqrt(sum_of_parts(layout, parts, [&](BlockRange range) {
    BlockPair values(pair.own_side, isa);
    double energy = 0;
    for (std::size_t block = range.begin; block < range.end; ++block) {
      const std::size_t width = layout.width(block);
      const auto x = state.parameters.subspan(block * kBlock, width);
      const auto r = state.reference.subspan(block * kBlock, width);
      energy += values.apply(block_of(pair.own, block), pair.theirs, {.x_soon = x, .r_soon = r},
                             to_higher, {x.data(), r.data()});
    }
    return energy;
  }));
}

Result<Answered> encode_and_apply(const TheirHalf& theirs, const ExchangeState& state,
                                  EncodeOptions options, Carry& carry) {
  std::vector<double> sums(part_count(theirs.delta.layout().blocks()));
  const MakeSink sinks = [&](std::size_t part) {
    return std::make_unique<Applier>(theirs, state, options, sums[part]);
  };
  options.sinks = &sinks;
  TRY(Encoded own,
      encode(theirs.delta.layout(), {state.parameters, state.reference}, options, carry));
  return Answered{std::move(own), std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0))};
}

void add_difference(const DeltaPair& pair, float factor, std::span<float> parameters, Isa isa) {
  const Layout& layout = pair.own.layout();
  const float to_higher = factor_to_higher(pair.own_side, factor);
  BlockPair values(pair.own_side, isa);
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    values.decode(pair, block);
    const auto x = parameters.subspan(block * kBlock, layout.width(block));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float after = x[i] + to_higher * (values.higher()[i] - values.lower()[i]);
      if (std::isfinite(after)) x[i] = after;
    }
  }
}

}  // namespace starling::gossip
