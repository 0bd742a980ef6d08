#include "gossip/delta/codec.h"

#include "gossip/delta/block_encoder.h"
#include "node/base/check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
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
    std::array<std::uint8_t, kMaxBlockBytes + kBlockSlack> scratch;
    energy_ += energy;
    for (std::size_t level = 0; level < kLevels; ++level) {
      float threshold = 0;
      sent_[level] +=
          encoder.encode(static_cast<Level>(level), threshold, scratch.data()).sent_energy;
    }
  }

  // What another one saw as well.
  void add(const Sampler& other) {
    energy_ += other.energy_;
    for (std::size_t level = 0; level < kLevels; ++level) sent_[level] += other.sent_[level];
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

// What some blocks that follow each other became, but for their bytes.
struct EncodedPart {
  explicit EncodedPart(const Sampler& begin) : sampler(begin) {}

  Sampler sampler;
  std::vector<std::uint32_t> sizes;  // of each block
  double difference_energy = 0;
  double sent_energy = 0;
  std::optional<Error> refused;
};

struct EncodeInput {
  const Layout& layout;
  const Difference& difference;
  const EncodeOptions& options;
};

std::size_t most_bytes(const Layout& layout, BlockRange range, Level level) {
  std::size_t most = 0;
  for (std::size_t block = range.begin; block < range.end; ++block)
    most += max_block_bytes(layout, block, level);
  return most;
}

// Appends the blocks of `range`; thresholds of others are left alone.
void encode_part(const EncodeInput& input, BlockRange range, std::span<float> thresholds,
                 Bytes& out, EncodedPart& part) {
  const auto& [layout, difference, options] = input;
  part.sizes.reserve(range.end - range.begin);
  std::array<std::uint8_t, kMaxBlockBytes + kBlockSlack> written;
  BlockEncoder encoder(layout, options.isa);
  const bool sparse = is_sparse(options.level);
  for (std::size_t block = range.begin; block < range.end; ++block) {
    const float* x = difference.parameters.data() + block * kBlock;
    const float* r = difference.reference.empty() ? kZeroBlock.data()
                                                  : difference.reference.data() + block * kBlock;
    float unused = 0;
    float& threshold = sparse && !layout.is_small(block) ? thresholds[block] : unused;
    const DifferenceFacts facts = encoder.load(block, x, r, threshold);
    if (facts.max_abs_bits >= kInfinityBits) {
      part.refused = refuse(block, {x, layout.width(block)}).error();
      return;
    }
    const BlockBytes bytes = encoder.encode(options.level, threshold, written.data());
    const auto* const from = reinterpret_cast<const std::byte*>(written.data());
    out.insert(out.end(), from, from + bytes.size);
    part.sizes.push_back(static_cast<std::uint32_t>(bytes.size));
    part.difference_energy += facts.energy;
    part.sent_energy += bytes.sent_energy;
    if (part.sampler.wants(block)) part.sampler.look(encoder, facts.energy);
    if (options.sink != nullptr) (*options.sink)(block, {from, bytes.size});
  }
}

// The bytes of all parts, each one's in its place. Room is only reserved: pages that are never
// written cost nothing.
Bytes encode_parts(const EncodeInput& input, std::span<float> thresholds,
                   std::span<EncodedPart> parts) {
  const auto& [layout, difference, options] = input;
  const auto range_of = [&layout](std::size_t part) { return part_of(layout.blocks(), part); };
  Bytes all;
  if (options.parts == nullptr) {
    all.reserve(max_bytes(layout, options.level));
    for (std::size_t part = 0; part < parts.size(); ++part)
      encode_part(input, range_of(part), thresholds, all, parts[part]);
    // A sparse delta is often half of the longest one, and it is kept until its answer came.
    all.shrink_to_fit();
    return all;
  }
  std::vector<Bytes> bytes(parts.size());
  (*options.parts)(parts.size(), [&](std::size_t part) {
    bytes[part].reserve(most_bytes(layout, range_of(part), options.level));
    encode_part(input, range_of(part), thresholds, bytes[part], parts[part]);
  });
  std::size_t size = 0;
  for (const auto& some : bytes) size += some.size();
  all.reserve(size);
  for (auto& some : bytes) {
    all.insert(all.end(), some.begin(), some.end());
    some = {};  // the later ones would all be there twice
  }
  return all;
}

}  // namespace

std::size_t max_bytes(const Layout& layout, Level level) {
  return most_bytes(layout, {0, layout.blocks()}, level);
}

Result<Encoded> encode(const Layout& layout, Difference difference, EncodeOptions options,
                       Carry& carry) {
  STARLING_CHECK_OP(difference.parameters.size(), ==, layout.size());
  STARLING_CHECK(difference.reference.empty() || difference.reference.size() == layout.size());
  std::vector<float> thresholds = carry.thresholds;
  thresholds.resize(layout.first_small_block());
  const EncodedPart begin{Sampler(layout, carry.sample)};
  std::vector<EncodedPart> parts(part_count(layout.blocks()), begin);
  Encoded result;
  result.bytes = encode_parts({layout, difference, options}, thresholds, parts);
  result.offsets.reserve(layout.blocks() + 1);
  result.offsets.push_back(0);
  Sampler sampler = begin.sampler;
  for (const auto& part : parts) {
    if (part.refused) return std::unexpected(*part.refused);
    for (const std::uint32_t bytes : part.sizes)
      result.offsets.push_back(result.offsets.back() + bytes);
    result.figures.difference_energy += part.difference_energy;
    result.figures.sent_energy += part.sent_energy;
    sampler.add(part.sampler);
  }
  result.figures.unsent_share = sampler.unsent_shares();
  carry.thresholds = std::move(thresholds);
  ++carry.sample;
  return result;
}

}  // namespace starling::gossip
