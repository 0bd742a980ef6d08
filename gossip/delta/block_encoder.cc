#include "gossip/delta/block_encoder.h"

#include "gossip/delta/bits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace starling::gossip {

namespace {

// Where a search for a threshold begins, in root mean squares: an eighth of a normal distribution
// lies beyond. Then how often, and by what, it is lowered until it selects enough: each time it
// selects two to four times as many in most blocks; where that does not do, all values are looked
// at.
constexpr float kFirst = 1.5F;
constexpr int kLowerings = 4;
constexpr float kLower = 0.75F;

void put_u16(std::uint8_t* out, std::uint16_t value) { std::memcpy(out, &value, sizeof(value)); }

// Longest stream of a block of so many real values.
constexpr std::size_t most_stream_bits(Level level, std::uint32_t real) {
  std::size_t most = 0;
  const std::uint32_t last = std::min(2 * nominal_count(level), real);
  for (std::uint32_t k = std::min(nominal_count(level) / 2, real); k <= last; ++k)
    most = std::max(most, max_stream_bits(level, k));
  return most;
}
constexpr std::array<std::size_t, 3> kMostStreamBits{most_stream_bits(Level::l0, kBlock),
                                                     most_stream_bits(Level::l1, kBlock),
                                                     most_stream_bits(Level::l2, kBlock)};

// Writes the dense groups of a block one after the other: all scales, then the codes.
class GroupWriter {
 public:
  GroupWriter(const Kernels& kernels, int bits, std::uint8_t* out, std::size_t groups)
      : quantize_(bits == 4 ? kernels.quantize4 : kernels.quantize8),
        bits_(bits),
        begin_(out),
        scale_(out),
        codes_(out + 2 * groups) {}

  void write(const float* d, std::size_t n, float largest) {
    const std::uint16_t scale = scale_of(largest, bits_);
    put_u16(scale_, scale);
    scale_ += sizeof(scale);
    if (scale == 0) return;
    sent_ += quantize_(d, n, from_bf16(scale), codes_) * square(from_bf16(scale));
    codes_ += n * static_cast<std::size_t>(bits_) / 8;
  }
  [[nodiscard]] BlockBytes written() const {
    return {static_cast<std::size_t>(codes_ - begin_), sent_};
  }

 private:
  decltype(Kernels::quantize4) quantize_;
  int bits_;
  std::uint8_t* begin_;
  std::uint8_t* scale_;
  std::uint8_t* codes_;
  double sent_ = 0;
};

}  // namespace

std::size_t max_block_bytes(const Layout& layout, std::size_t block, Level level) {
  const std::size_t width = layout.width(block);
  const auto groups = [width](std::size_t group) { return (width + group - 1) / group; };
  if (level == Level::l6) return 2 * groups(kGroup) + width;
  if (layout.is_small(block)) return 2 * groups(kSmallGroup) + width / 2;
  switch (level) {
    case Level::l3:
      return 2 + width / 8;
    case Level::l4:
      return 4 + width / 4;
    case Level::l5:
      return 2 * groups(kGroup) + width / 2;
    default:
      break;
  }
  const auto real = static_cast<std::uint32_t>(layout.real_count(block));
  const std::uint32_t last = 2 * nominal_count(level);
  // All blocks but a few are whole: their bound is a constant.
  const std::size_t most = real >= last ? kMostStreamBits[static_cast<std::size_t>(level)]
                                        : most_stream_bits(level, real);
  return 4 + (most + 7) / 8;
}

const DifferenceFacts& BlockEncoder::load(std::size_t block, const float* x, const float* r,
                                          float threshold) {
  block_ = block;
  width_ = layout_.width(block);
  const auto bits = std::bit_cast<std::uint32_t>(threshold);
  const auto difference = [&](const float* from, const float* what) {
    facts_ = bits == 0 ? kernels_.difference(from, what, width_, d_.data())
                       : kernels_.difference_select(from, what, width_, bits,
                                                    {d_.data(), indices_.data()});
  };
  difference(x, r);
  // Padding is zero at every honest user of this class; a value that strayed there must not reach
  // the wire, where it would be refused.
  if (!layout_.real_mask(block).empty()) {
    layout_.for_each_padding(block, 0, width_, [this](std::size_t i) { d_[i] = 0; });
    const std::array<float, kBlock> zero{};
    difference(d_.data(), zero.data());
  }
  return facts_;
}

BlockBytes BlockEncoder::encode_from(const Source& from, Level level, float& threshold,
                                     std::uint8_t* out) {
  selection_ = {};
  block_ = from.block;
  width_ = layout_.width(from.block);
  const bool in_groups =
      level >= Level::l5 && !layout_.is_small(block_) && layout_.real_mask(block_).empty();
  if (in_groups) return encode_groups_of(from.x, from.r, level == Level::l6 ? 8 : 4, out);
  load(from.block, from.x, from.r, threshold);
  return facts_.max_abs_bits < kInfinityBits ? encode(level, threshold, out) : BlockBytes{};
}

BlockBytes BlockEncoder::encode(Level level, float& threshold, std::uint8_t* out) {
  selection_ = {};
  if (level == Level::l6) return encode_groups(kGroup, 8, out);
  if (layout_.is_small(block_)) return encode_groups(kSmallGroup, 4, out);
  if (level == Level::l5) return encode_groups(kGroup, 4, out);
  if (facts_.max_abs_bits == 0) {
    put_u16(out, 0);
    return {.size = 2};
  }
  if (level == Level::l4) return encode_two_bits(out);
  if (level == Level::l3) return encode_one_bit(out);
  return encode_sparse(level, threshold, out);
}

BlockEncoder::Exact BlockEncoder::exact(Level level) {
  if (facts_.max_abs_bits == 0) return {};
  if (!is_sparse(level) || layout_.is_small(block_)) {
    std::array<std::uint8_t, kMaxBlockBytes + kBlockSlack> unread;
    float none = 0;
    return {encode(level, none, unread.data()).sent_energy, 0};
  }
  float threshold = 0;
  const std::uint32_t k = select_exactly(level, threshold);
  return {send(k).energy, threshold};
}

BlockBytes BlockEncoder::encode_sparse(Level level, float& threshold, std::uint8_t* out) {
  const std::uint32_t k = select(level, threshold);
  const Sent sent = send(k);
  put_u16(out, sent.centroids.high);
  if (sent.centroids.high == 0) return {.size = 2};
  put_u16(out + 2, sent.centroids.low);
  selection_ = {.indices = {indices_.data(), k}, .signs = signs_.data(), .sizes = sizes_.data()};
  return {4 + write_stream(kernels_, level, selection_, out + 4), sent.energy};
}

BlockEncoder::Sent BlockEncoder::send(std::uint32_t k) {
  const std::uint32_t exponent = exponent_of(facts_.max_abs_bits);
  const std::size_t padded = gather(k, values_);
  const FixedSum all{kernels_.sum_and_signs(values_.data(), padded, exponent, signs_.data()), k};
  const FixedSum above = kernels_.sum_from(values_.data(), padded, exponent,
                                           first_above_mean(all, exponent), sizes_.data());
  const Centroids centroids = centroids_of(all, above, exponent);
  if (centroids.high == 0) return {centroids};
  return {centroids, energy_of(centroids, k - above.count, above.count)};
}

std::size_t BlockEncoder::gather(std::uint32_t k, std::span<float> values) const {
  const std::size_t padded = (k + 15U) / 16 * 16;
  for (std::uint32_t i = 0; i < k; ++i) values[i] = d_[indices_[i]];
  std::ranges::fill(values.subspan(k, padded - k), 0.0F);
  return padded;
}

std::uint32_t BlockEncoder::select_from(float threshold) {
  return kernels_.select(d_.data(), width_, std::bit_cast<std::uint32_t>(threshold),
                         indices_.data());
}

std::uint32_t BlockEncoder::select(Level level, float& threshold) {
  const auto real = static_cast<std::uint32_t>(layout_.real_count(block_));
  const std::uint32_t nominal = nominal_count(level);
  const std::uint32_t count = facts_.selected;
  if (threshold > 0 && count >= std::min(nominal / 2, real) &&
      count <= std::min(2 * nominal, real)) {
    threshold = next_threshold(threshold, count, nominal);
    return count;
  }
  return select_exactly(level, threshold);
}

// Among those that a threshold at or below the wanted one selects: a few hundred can be looked at
// often. Padding counts as zeros, which come last.
std::uint32_t BlockEncoder::select_exactly(Level level, float& threshold) {
  const std::uint32_t wanted =
      std::min(nominal_count(level), static_cast<std::uint32_t>(layout_.real_count(block_)));
  std::uint32_t found = facts_.selected;
  if (threshold == 0) {
    threshold = kFirst * static_cast<float>(std::sqrt(facts_.energy / static_cast<double>(width_)));
    found = select_from(threshold);
  }
  for (int lowered = 0; found < wanted; ++lowered) {
    threshold = lowered < kLowerings ? kLower * threshold : 0;
    found = select_from(threshold);
  }
  const std::size_t padded = gather(found, candidates_);
  const std::uint32_t least = kernels_.kth_largest(candidates_.data(), padded, wanted);
  threshold = std::bit_cast<float>(least);
  const std::uint32_t count = select_from(threshold);
  if (count == wanted && least != 0) return count;

  // Of the values that equal the least one those with the higher indices go, and padding first.
  std::uint32_t equal = wanted;
  for (std::uint32_t i = 0; i < count; ++i) equal -= abs_bits(d_[indices_[i]]) > least ? 1 : 0;
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint16_t index = indices_[i];
    const bool is_least = abs_bits(d_[index]) == least;
    if (is_least && (equal == 0 || (least == 0 && !layout_.is_real(block_, index)))) continue;
    if (is_least) --equal;
    indices_[kept++] = index;
  }
  return kept;
}

BlockBytes BlockEncoder::encode_one_bit(std::uint8_t* out) {
  const std::uint32_t exponent = exponent_of(facts_.max_abs_bits);
  const auto count = static_cast<std::uint32_t>(layout_.real_count(block_));
  const FixedSum all{kernels_.sum_and_signs(d_.data(), width_, exponent, out + 2), count};
  const std::uint16_t mean = mean_as_bf16(all, exponent);
  put_u16(out, mean);
  if (mean == 0) return {.size = 2};
  return {2 + width_ / 8, count * square(from_bf16(mean))};
}

BlockBytes BlockEncoder::encode_two_bits(std::uint8_t* out) {
  const std::uint32_t exponent = exponent_of(facts_.max_abs_bits);
  const auto count = static_cast<std::uint32_t>(layout_.real_count(block_));
  const FixedSum all{kernels_.sum_and_signs(d_.data(), width_, exponent, out + 4), count};
  const FixedSum above = kernels_.sum_from(d_.data(), width_, exponent,
                                           first_above_mean(all, exponent), out + 4 + width_ / 8);
  const Centroids centroids = centroids_of(all, above, exponent);
  put_u16(out, centroids.high);
  if (centroids.high == 0) return {.size = 2};
  put_u16(out + 2, centroids.low);
  return {4 + width_ / 4, energy_of(centroids, count - above.count, above.count)};
}

BlockBytes BlockEncoder::encode_groups(std::size_t group, int bits, std::uint8_t* out) {
  GroupWriter writer(kernels_, bits, out, (width_ + group - 1) / group);
  for (std::size_t begin = 0; begin < width_; begin += group) {
    const float* d = d_.data() + begin;
    const std::size_t n = std::min(group, width_ - begin);
    writer.write(d, n, std::bit_cast<float>(kernels_.max_abs(d, n)));
  }
  return writer.written();
}

BlockBytes BlockEncoder::encode_groups_of(const float* x, const float* r, int bits,
                                          std::uint8_t* out) {
  GroupWriter writer(kernels_, bits, out, (width_ + kGroup - 1) / kGroup);
  facts_ = {};
  for (std::size_t begin = 0; begin < width_; begin += kGroup) {
    const std::size_t n = std::min(kGroup, width_ - begin);
    const DifferenceFacts found = kernels_.difference(x + begin, r + begin, n, d_.data());
    facts_.max_abs_bits = std::max(facts_.max_abs_bits, found.max_abs_bits);
    facts_.energy += found.energy;
    if (found.max_abs_bits >= kInfinityBits) return {};
    writer.write(d_.data(), n, std::bit_cast<float>(found.max_abs_bits));
  }
  return writer.written();
}

}  // namespace starling::gossip
