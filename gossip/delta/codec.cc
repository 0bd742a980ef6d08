#include "gossip/delta/codec.h"

#include "gossip/delta/block_encoder.h"
#include "gossip/delta/centroids.h"
#include "node/base/check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>

namespace starling::gossip {

namespace {

constexpr std::size_t kSampleStride = 64;
constexpr std::size_t kLevels = 7;
alignas(64) constexpr std::array<float, kBlock> kZeroBlock{};

// The blocks of the big part whose number is `phase` modulo 64 (or modulo their count, if smaller);
// a model of small tensors alone is sampled there.
class SampledBlocks {
 public:
  SampledBlocks(const Layout& layout, std::uint32_t phase)
      : end_(layout.first_small_block() > 0 ? layout.first_small_block() : layout.blocks()),
        stride_(std::min(kSampleStride, end_)),
        phase_(phase % stride_) {}

  [[nodiscard]] std::size_t count() const { return (end_ - phase_ + stride_ - 1) / stride_; }
  [[nodiscard]] std::size_t block(std::size_t sample) const { return phase_ + sample * stride_; }

 private:
  std::size_t end_;
  std::size_t stride_;
  std::size_t phase_;
};

// What one of them tells about all.
struct Sample {
  double energy = 0;
  std::array<double, kLevels> sent{};  // of each level, by exact selection
  float drift = 0;  // the threshold that would select exactly, over the carried one; 0: unknown
};

std::array<float, kLevels> unsent_shares(std::span<const Sample> samples) {
  Sample all;
  for (const Sample& one : samples) {
    all.energy += one.energy;
    for (std::size_t level = 0; level < kLevels; ++level) all.sent[level] += one.sent[level];
  }
  std::array<float, kLevels> shares{};
  if (all.energy == 0) return shares;
  for (std::size_t level = 0; level < kLevels; ++level)
    shares[level] = static_cast<float>(std::clamp(1.0 - all.sent[level] / all.energy, 0.0, 1.0));
  return shares;
}

// By how much the thresholds of all blocks have drifted since the last delta. Differences grow with
// the steps since the last exchange, alike in all blocks but for a few per cent, and a tenth more
// or less of a threshold selects half or twice as many values. Few blocks say too little, and to
// select exactly in few is cheap.
float drift_of(std::span<const Sample> samples) {
  std::vector<float> known;
  for (const Sample& one : samples)
    if (one.drift > 0) known.push_back(one.drift);
  if (known.size() < kFewestDrifts) return 1;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((known.size() - 1) / 2);
  std::nth_element(known.begin(), middle, known.end());
  const float median = *middle;
  std::uint64_t counts = 0;
  for (const float drift : known) counts += count_share(drift, median);
  return common_drift(median, counts, static_cast<std::uint32_t>(known.size()));
}

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
  std::vector<std::uint32_t> sizes;  // of each block
  double difference_energy = 0;
  double sent_energy = 0;
  std::optional<Error> refused;
};

struct EncodeInput {
  const Layout& layout;
  const Difference& difference;
  const EncodeOptions& options;

  [[nodiscard]] const float* x(std::size_t block) const {
    return difference.parameters.data() + block * kBlock;
  }
  [[nodiscard]] const float* r(std::size_t block) const {
    return difference.reference.empty() ? kZeroBlock.data()
                                        : difference.reference.data() + block * kBlock;
  }
};

Sample sample_of(BlockEncoder& encoder, const EncodeInput& input, std::size_t block,
                 float carried) {
  const DifferenceFacts facts = encoder.load(block, input.x(block), input.r(block), 0);
  Sample sample;
  if (facts.max_abs_bits >= kInfinityBits) return sample;  // the walk refuses it
  sample.energy = facts.energy;
  for (std::size_t level = 0; level < kLevels; ++level) {
    const auto exact = encoder.exact(static_cast<Level>(level));
    sample.sent[level] = exact.sent_energy;
    if (static_cast<Level>(level) == input.options.level && carried > 0)
      sample.drift = exact.threshold / carried;
  }
  return sample;
}

// All samples, before the walk.
std::vector<Sample> samples_of(const EncodeInput& input, const SampledBlocks& sampled,
                               std::span<const float> thresholds) {
  constexpr std::size_t kTogether = 16;  // that one thread looks at
  std::vector<Sample> samples(sampled.count());
  const auto look = [&](std::size_t part) {
    BlockEncoder encoder(input.layout, input.options.isa);
    const std::size_t end = std::min(samples.size(), (part + 1) * kTogether);
    for (std::size_t number = part * kTogether; number < end; ++number) {
      const std::size_t block = sampled.block(number);
      const float carried = block < thresholds.size() ? thresholds[block] : 0.0F;
      samples[number] = sample_of(encoder, input, block, carried);
    }
  };
  const std::size_t parts = (samples.size() + kTogether - 1) / kTogether;
  (input.options.parts == nullptr ? one_after_another : *input.options.parts)(parts, look);
  return samples;
}

std::size_t most_bytes(const Layout& layout, BlockRange range, Level level) {
  std::size_t most = 0;
  for (std::size_t block = range.begin; block < range.end; ++block)
    most += max_block_bytes(layout, block, level);
  return most;
}

// Appends the blocks of a part; thresholds of others are left alone.
void encode_part(const EncodeInput& input, std::size_t number, std::span<float> thresholds,
                 Bytes& out, EncodedPart& part) {
  const Layout& layout = input.layout;
  const EncodeOptions& options = input.options;
  const BlockRange range = part_of(layout.blocks(), number);
  const auto sink = options.sinks == nullptr ? nullptr : (*options.sinks)(number);
  part.sizes.reserve(range.end - range.begin);
  std::array<std::uint8_t, kMaxBlockBytes + kBlockSlack> written;
  BlockEncoder encoder(layout, options.isa);
  const bool sparse = is_sparse(options.level);
  for (std::size_t block = range.begin; block < range.end; ++block) {
    const float* x = input.x(block);
    float unused = 0;
    float& threshold = sparse && !layout.is_small(block) ? thresholds[block] : unused;
    const BlockBytes bytes =
        encoder.encode_from({block, x, input.r(block)}, options.level, threshold, written.data());
    if (encoder.facts().max_abs_bits >= kInfinityBits) {
      part.refused = refuse(block, {x, layout.width(block)}).error();
      return;
    }
    const auto* const from = reinterpret_cast<const std::byte*>(written.data());
    out.insert(out.end(), from, from + bytes.size);
    part.sizes.push_back(static_cast<std::uint32_t>(bytes.size));
    part.difference_energy += encoder.facts().energy;
    part.sent_energy += bytes.sent_energy;
    if (sink != nullptr) sink->take(block, {from, bytes.size}, encoder.selection());
  }
}

// The bytes of all parts, each one's in its place. Room is only reserved: pages that are never
// written cost nothing.
Bytes encode_parts(const EncodeInput& input, std::span<float> thresholds,
                   std::span<EncodedPart> parts) {
  const Layout& layout = input.layout;
  const EncodeOptions& options = input.options;
  Bytes all;
  if (options.parts == nullptr) {
    all.reserve(max_bytes(layout, options.level));
    for (std::size_t part = 0; part < parts.size(); ++part)
      encode_part(input, part, thresholds, all, parts[part]);
    // A sparse delta is often half of the longest one, and it is kept until its answer came.
    all.shrink_to_fit();
    return all;
  }
  std::vector<Bytes> bytes(parts.size());
  (*options.parts)(parts.size(), [&](std::size_t part) {
    bytes[part].reserve(most_bytes(layout, part_of(layout.blocks(), part), options.level));
    encode_part(input, part, thresholds, bytes[part], parts[part]);
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
  const EncodeInput input{layout, difference, options};
  const auto samples = samples_of(input, SampledBlocks(layout, carry.sample), thresholds);
  const float drift = drift_of(samples);
  for (float& threshold : thresholds)
    if (threshold > 0) threshold *= drift;
  std::vector<EncodedPart> parts(part_count(layout.blocks()));
  Encoded result;
  result.bytes = encode_parts(input, thresholds, parts);
  result.offsets.reserve(layout.blocks() + 1);
  result.offsets.push_back(0);
  for (const auto& part : parts) {
    if (part.refused) return std::unexpected(*part.refused);
    for (const std::uint32_t bytes : part.sizes)
      result.offsets.push_back(result.offsets.back() + bytes);
    result.figures.difference_energy += part.difference_energy;
    result.figures.sent_energy += part.sent_energy;
  }
  result.figures.unsent_share = unsent_shares(samples);
  carry.thresholds = std::move(thresholds);
  ++carry.sample;
  return result;
}

}  // namespace starling::gossip
