// What a kernel knows of one block of the canonical order (gossip/delta/layout.h).
#pragma once

#include "gossip/delta/format.h"
#include "training/cuda/crew.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

// The bits of |value|: as integers they are in the order of the magnitudes, and a NaN is the
// largest.
STARLING_DEVICE inline std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fff'ffffU;
}

// One block.
struct BlockShape {
  std::uint32_t width = 0;
  std::uint32_t real_count = 0;
  bool is_small = false;
  const std::uint64_t* mask = nullptr;  // of real values; null: all are

  STARLING_DEVICE bool is_real(std::uint32_t i) const {
    return mask == nullptr || (mask[i / 64] >> (i % 64) & 1U) != 0;
  }
  // n values, or all that are real.
  STARLING_DEVICE std::uint32_t at_most_all(std::uint32_t n) const {
    return n < real_count ? n : real_count;
  }
};

// All blocks, as arrays on the device.
struct BlockShapes {
  const std::uint16_t* widths;
  const std::uint16_t* real_counts;
  const std::int32_t* mask_of_block;  // -1: none
  const std::uint64_t* masks;         // 64 words each
  std::uint32_t blocks;
  std::uint32_t first_small;

  STARLING_DEVICE BlockShape at(std::uint32_t block) const {
    const std::int32_t mask = mask_of_block[block];
    return {widths[block], real_counts[block], block >= first_small,
            mask < 0 ? nullptr : masks + std::size_t{64} * static_cast<std::size_t>(mask)};
  }
};

// How the dense groups of a block are written; size 0: it has none.
struct GroupForm {
  std::uint32_t size = 0;
  std::uint32_t bits = 0;

  STARLING_DEVICE std::uint32_t count(std::uint32_t width) const {
    return (width + size - 1) / size;
  }
  STARLING_DEVICE std::uint32_t bytes(std::uint32_t width, std::uint32_t group) const {
    const std::uint32_t rest = width - group * size;
    return (rest < size ? rest : size) * bits / 8;
  }
};
STARLING_DEVICE inline GroupForm group_form(gossip::Level level, bool is_small) {
  if (level == gossip::Level::l6) return {static_cast<std::uint32_t>(gossip::kGroup), 8};
  if (is_small) return {static_cast<std::uint32_t>(gossip::kSmallGroup), 4};
  if (level == gossip::Level::l5) return {static_cast<std::uint32_t>(gossip::kGroup), 4};
  return {};
}
inline constexpr std::uint32_t kMostGroups = gossip::kBlock / gossip::kSmallGroup;

}  // namespace starling::training::cuda
