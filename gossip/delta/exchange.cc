#include "gossip/delta/exchange.h"

#include "gossip/delta/kernels.h"
#include "node/base/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

namespace starling::gossip {

namespace {

float float_at(ByteView bytes, std::size_t index) {
  float value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof(float), sizeof(value));
  return value;
}

std::size_t statistics_bytes(const Layout& layout) {
  return 2 * layout.bn_channels() * sizeof(float);
}

// Both deltas of one block as values.
class BlockPair {
 public:
  BlockPair(const DeltaPair& pair, Isa isa) : pair_(pair), isa_(isa) {}
  void decode(std::size_t block) {
    decode_block(pair_.own, block, own_, isa_);
    decode_block(pair_.theirs, block, theirs_, isa_);
  }
  [[nodiscard]] const float* own() const { return own_.data(); }
  [[nodiscard]] const float* theirs() const { return theirs_.data(); }

 private:
  const DeltaPair& pair_;
  Isa isa_;
  alignas(64) std::array<float, kBlock> own_;
  alignas(64) std::array<float, kBlock> theirs_;
};

// Both deltas of one block as lists.
class SparsePair {
 public:
  explicit SparsePair(const DeltaPair& pair) : pair_(pair) {}
  void decode(std::size_t block) {
    decode_sparse(pair_.own, block, own_);
    decode_sparse(pair_.theirs, block, theirs_);
  }
  [[nodiscard]] const SparseBlock& own() const { return own_; }
  [[nodiscard]] const SparseBlock& theirs() const { return theirs_; }

  // Calls use(index, q_their - q_own) for every index of one list or both, ascending.
  template <class Use>
  void for_each_difference(Use use) const {
    std::uint32_t a = 0;
    std::uint32_t b = 0;
    while (a < own_.count || b < theirs_.count) {
      const std::size_t own_index = a < own_.count ? own_.index[a] : kBlock;
      const std::size_t their_index = b < theirs_.count ? theirs_.index[b] : kBlock;
      const float own = own_index <= their_index ? own_.value[a++] : 0.0F;
      const float their = their_index <= own_index ? theirs_.value[b++] : 0.0F;
      use(std::min(own_index, their_index), their - own);
    }
  }

 private:
  const DeltaPair& pair_;
  SparseBlock own_;
  SparseBlock theirs_;
};

bool both_sparse(const DeltaPair& pair, std::size_t block) {
  return is_sparse(pair.own.level()) && is_sparse(pair.theirs.level()) &&
         !pair.own.layout().is_small(block);
}

// The same lanes as Kernels::distance, so that the sum does not depend on the path taken.
double sparse_distance(const SparsePair& lists) {
  std::array<double, 8> lanes{};
  lists.for_each_difference([&](std::size_t index, float difference) {
    const auto wide = static_cast<double>(difference);
    lanes[index % 8] += wide * wide;
  });
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void add_halves(const SparseBlock& list, float* r) {
  for (std::uint32_t i = 0; i < list.count; ++i) r[list.index[i]] += 0.5F * list.value[i];
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

void pool_statistics(ByteView theirs, Weight weight, const ChannelStatistics& own) {
  STARLING_CHECK_OP(theirs.size(), ==, 2 * own.mean.size_bytes());
  const float b = weight.value();
  const float a = 1.0F - b;
  const std::size_t channels = own.mean.size();
  for (std::size_t i = 0; i < channels; ++i) {
    const float mean = float_at(theirs, i);
    const float variance = float_at(theirs, channels + i);
    const float apart = own.mean[i] - mean;
    const float pooled_mean = a * own.mean[i] + b * mean;
    const float pooled = a * own.variance[i] + b * variance + a * b * (apart * apart);
    if (!std::isfinite(pooled_mean) || !std::isfinite(pooled)) continue;
    own.mean[i] = pooled_mean;
    own.variance[i] = pooled;
  }
}

double difference_norm(const DeltaPair& pair, Isa isa) {
  const Layout& layout = pair.own.layout();
  const Kernels& kernels = kernels_of(isa);
  BlockPair values(pair, isa);
  SparsePair lists(pair);
  double energy = 0;
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    if (both_sparse(pair, block)) {
      lists.decode(block);
      energy += sparse_distance(lists);
    } else {
      values.decode(block);
      energy += kernels.distance(values.own(), values.theirs(), layout.width(block));
    }
  }
  return std::sqrt(energy);
}

double apply_exchange(const DeltaPair& pair, float factor, const ExchangeState& state, Isa isa) {
  const Layout& layout = pair.own.layout();
  STARLING_CHECK_OP(state.parameters.size(), ==, layout.size());
  STARLING_CHECK_OP(state.reference.size(), ==, layout.size());
  const Kernels& kernels = kernels_of(isa);
  const bool own_is_lower = pair.own_side == Side::lower;
  BlockPair values(pair, isa);
  SparsePair lists(pair);
  double energy = 0;
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    float* x = state.parameters.data() + block * kBlock;
    float* r = state.reference.data() + block * kBlock;
    if (both_sparse(pair, block)) {
      lists.decode(block);
      energy += sparse_distance(lists);
      lists.for_each_difference([=](std::size_t index, float difference) {
        const float after = x[index] + factor * difference;
        x[index] = std::isfinite(after) ? after : x[index];
      });
      add_halves(own_is_lower ? lists.own() : lists.theirs(), r);
      add_halves(own_is_lower ? lists.theirs() : lists.own(), r);
    } else {
      const std::size_t n = layout.width(block);
      values.decode(block);
      energy += kernels.distance(values.own(), values.theirs(), n);
      kernels.add_increment(values.own(), values.theirs(), n, factor, x);
      kernels.add_halves(own_is_lower ? values.own() : values.theirs(),
                         own_is_lower ? values.theirs() : values.own(), n, r);
    }
  }
  return std::sqrt(energy);
}

}  // namespace starling::gossip
