#include "gossip/delta/codec.h"

#include "gossip/delta/block_encoder.h"
#include "node/base/check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

namespace starling::gossip {

namespace {

constexpr std::uint32_t kInfinityBits = 0x7f800000U;
constexpr std::size_t kSampleStride = 64;
constexpr std::size_t kLevels = 7;
alignas(64) constexpr std::array<float, kBlock> kZeroBlock{};

// Estimates for every level what it would leave unsent, from the blocks that it is shown.
class Sampler {
 public:
  // Blocks of the big part whose number is `phase` modulo 64 (or modulo their count, if smaller);
  // a model of small tensors alone is sampled there.
  Sampler(const Layout& layout, std::uint32_t phase)
      : end_(layout.first_small_block() > 0 ? layout.first_small_block() : layout.blocks()),
        stride_(std::min(kSampleStride, end_)),
        phase_(phase % stride_) {}

  [[nodiscard]] bool wants(std::size_t block) const {
    return block < end_ && block % stride_ == phase_;
  }

  // Encodes the block that the encoder has loaded at each level, by exact selection.
  void look(BlockEncoder& encoder, double energy) {
    energy_ += energy;
    for (std::size_t level = 0; level < kLevels; ++level) {
      float threshold = 0;
      sent_[level] +=
          encoder.encode(static_cast<Level>(level), threshold, scratch_.data()).sent_energy;
    }
  }

  [[nodiscard]] std::array<float, kLevels> unsent_shares() const {
    std::array<float, kLevels> shares{};
    if (energy_ == 0) return shares;
    for (std::size_t level = 0; level < kLevels; ++level)
      shares[level] = static_cast<float>(std::clamp(1.0 - sent_[level] / energy_, 0.0, 1.0));
    return shares;
  }

 private:
  std::size_t end_;
  std::size_t stride_;
  std::size_t phase_;
  double energy_ = 0;
  std::array<double, kLevels> sent_{};
  std::array<std::uint8_t, kMaxBlockBytes + kBlockSlack> scratch_{};
};

// Whose fault a difference is that cannot be sent.
std::unexpected<Error> refuse(std::size_t block, std::span<const float> x) {
  const bool x_is_finite = std::ranges::all_of(x, [](float value) { return std::isfinite(value); });
  if (!x_is_finite)
    return fail(Errc::diverged, Doing::encoding_delta,
                "parameters in block " + std::to_string(block) +
                    " are not finite, nothing of them is sent");
  return fail(Errc::corrupt, Doing::encoding_delta,
              "the difference to the reference in block " + std::to_string(block) +
                  " is not finite, the edge needs a new reference");
}

}  // namespace

std::size_t max_bytes(const Layout& layout, Level level) {
  std::size_t most = 0;
  for (std::size_t block = 0; block < layout.blocks(); ++block)
    most += max_block_bytes(layout, block, level);
  return most;
}

Result<Encoded> encode(const Layout& layout, Difference difference, EncodeOptions options,
                       Carry& carry) {
  STARLING_CHECK_OP(difference.parameters.size(), ==, layout.size());
  STARLING_CHECK(difference.reference.empty() || difference.reference.size() == layout.size());
  const bool sparse = is_sparse(options.level);
  std::vector<float> thresholds = carry.thresholds;
  thresholds.resize(layout.first_small_block());
  Encoded result;
  // Only reserved: pages that are never written cost nothing.
  result.bytes.reserve(max_bytes(layout, options.level));
  result.offsets.reserve(layout.blocks() + 1);
  result.offsets.push_back(0);
  std::array<std::uint8_t, kMaxBlockBytes + kBlockSlack> written;
  BlockEncoder encoder(layout, options.isa);
  Sampler sampler(layout, carry.sample);

  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    const float* x = difference.parameters.data() + block * kBlock;
    const float* r = difference.reference.empty() ? kZeroBlock.data()
                                                  : difference.reference.data() + block * kBlock;
    float unused = 0;
    float& threshold = sparse && !layout.is_small(block) ? thresholds[block] : unused;
    const DifferenceFacts facts = encoder.load(block, x, r, threshold);
    if (facts.max_abs_bits >= kInfinityBits) return refuse(block, {x, layout.width(block)});
    const BlockBytes bytes = encoder.encode(options.level, threshold, written.data());
    const auto* const from = reinterpret_cast<const std::byte*>(written.data());
    result.bytes.insert(result.bytes.end(), from, from + bytes.size);
    result.offsets.push_back(static_cast<std::uint32_t>(result.bytes.size()));
    result.figures.difference_energy += facts.energy;
    result.figures.sent_energy += bytes.sent_energy;
    if (sampler.wants(block)) sampler.look(encoder, facts.energy);
  }

  result.figures.unsent_share = sampler.unsent_shares();
  // A sparse delta is often half of the longest one, and it is kept until its answer came.
  result.bytes.shrink_to_fit();
  carry.thresholds = std::move(thresholds);
  ++carry.sample;
  return result;
}

}  // namespace starling::gossip
