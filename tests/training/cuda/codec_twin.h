// The passes of the GPU's codec over a whole model, carried out on the CPU.
#pragma once

#include "gossip/delta/block_encoder.h"
#include "gossip/delta/codec.h"
#include "tests/training/cuda/crews.h"
#include "training/cuda/codec_passes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starling::training::cuda {

// A layout as the kernels see it.
class ShapeTables {
 public:
  explicit ShapeTables(const gossip::Layout& layout) {
    for (std::size_t block = 0; block < layout.blocks(); ++block) {
      widths_.push_back(static_cast<std::uint16_t>(layout.width(block)));
      real_counts_.push_back(static_cast<std::uint16_t>(layout.real_count(block)));
      const auto mask = layout.real_mask(block);
      mask_of_block_.push_back(mask.empty() ? -1 : static_cast<std::int32_t>(masks_.size() / 64));
      masks_.insert(masks_.end(), mask.begin(), mask.end());
    }
    first_small_ = static_cast<std::uint32_t>(layout.first_small_block());
  }
  [[nodiscard]] BlockShapes shapes() const {
    return {widths_.data(),
            real_counts_.data(),
            mask_of_block_.data(),
            masks_.data(),
            static_cast<std::uint32_t>(widths_.size()),
            first_small_};
  }

 private:
  std::vector<std::uint16_t> widths_;
  std::vector<std::uint16_t> real_counts_;
  std::vector<std::int32_t> mask_of_block_;
  std::vector<std::uint64_t> masks_;
  std::uint32_t first_small_ = 0;
};

// What an encode by the passes came to.
struct TwinDelta {
  std::vector<std::uint8_t> bytes;
  std::vector<float> thresholds;
  DeltaFigures figures;
  std::uint32_t by_threshold = 0;  // blocks that the carried threshold selected
};

// run(body) carries out body(crew) with a crew of its choice.
template <class Run>
TwinDelta twin_encode(const gossip::Layout& layout, const gossip::Difference& difference,
                      gossip::Level level, const gossip::Carry& carry, Run run) {
  const ShapeTables tables(layout);
  const auto blocks = static_cast<std::uint32_t>(layout.blocks());
  const auto end = static_cast<std::uint32_t>(
      layout.first_small_block() > 0 ? layout.first_small_block() : layout.blocks());
  const std::uint32_t stride = std::min(64U, end);
  const SampledBlocks sampled{end, stride, carry.sample % stride};
  std::vector<float> thresholds = carry.thresholds;
  thresholds.resize(layout.first_small_block());
  TwinDelta result{{}, thresholds, {}, 0};
  std::vector<std::uint8_t> slots(blocks * std::size_t{kMostBlockBytes});
  std::vector<std::uint32_t> sizes(blocks);
  std::vector<BlockFigures> figures(blocks);
  std::vector<double> sampled_sent(std::size_t{sampled.count()} * kLevels);
  std::vector<float> drifts(sampled.count());
  float drift = 0;
  const EncodeArgs args{difference.parameters.data(),
                        difference.reference.empty() ? nullptr : difference.reference.data(),
                        tables.shapes(),
                        level,
                        thresholds.data(),
                        result.thresholds.data(),
                        slots.data(),
                        kMostBlockBytes,
                        sizes.data(),
                        figures.data(),
                        sampled,
                        sampled_sent.data(),
                        drifts.data(),
                        &drift,
                        nullptr};
  CoderMemory memory;
  ThresholdMemory threshold_memory;
  if (gossip::is_sparse(level)) {
    for (std::uint32_t sample = 0; sample < sampled.count(); ++sample)
      run([&](auto& crew) { look_at_drift(crew, memory, args, sample); });
    run([&](auto& crew) { find_drift(crew, args); });
  }
  for (std::uint32_t block = 0; block < blocks; ++block) {
    bool by_threshold = false;
    run([&](auto& crew) {
      const bool done = encode_by_threshold(crew, threshold_memory, args, block);
      crew.once([&] { by_threshold = done; });
    });
    if (by_threshold) ++result.by_threshold;
    if (!by_threshold)
      run([&](auto& crew) { do_job(crew, memory, args, job_of_block(args, block)); });
  }
  for (std::uint32_t trial = 0; trial < trials(sampled); ++trial)
    run([&](auto& crew) { do_job(crew, memory, args, job_of_trial(args, trial)); });
  for (std::uint32_t part = 0; part < kFigureParts; ++part)
    run([&](auto& crew) { add_figures(crew, args, part, &result.figures); });
  result.bytes.resize(result.figures.bytes);
  StretchPlaces places;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    if (block % kStretch == 0)
      run([&](auto& crew) { place_stretch(crew, places, args, block / kStretch); });
    run([&](auto& crew) { gather_block(crew, places, args, block, result.bytes.data()); });
  }
  return result;
}

// A checked delta as the kernels see it.
class TwinBytes {
 public:
  explicit TwinBytes(const gossip::DeltaView& view) : level_(view.level()) {
    for (std::size_t block = 0; block < view.layout().blocks(); ++block) {
      offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
      for (const std::byte one : view.block(block))
        bytes_.push_back(static_cast<std::uint8_t>(one));
    }
    // What lies behind must not matter: ones are the worst that can be there.
    bytes_.resize(bytes_.size() + kDecoderSlack, 0xff);
  }
  [[nodiscard]] CheckedDelta delta() const { return {level_, bytes_.data(), offsets_.data()}; }

 private:
  gossip::Level level_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint32_t> offsets_;
};

}  // namespace starling::training::cuda
