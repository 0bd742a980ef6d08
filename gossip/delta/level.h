// The ladder of levels: how many bits of a delta a message carries (design section 5, "Codec").
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace starling::gossip {

enum class Level : std::uint8_t {
  l0,  // the 16 largest of a block, 2-bit values
  l1,  // the 64 largest, 2-bit values
  l2,  // the 256 largest, 2-bit values
  l3,  // all, 1 bit: sign x mean
  l4,  // all, 2 bits: sign x two centroids
  l5,  // all, 4 bits in groups of 256
  l6,  // all, 8 bits in groups of 256: opens and repairs edges
};

inline constexpr std::array<std::string_view, 7> kLevelNames{"L0", "L1", "L2", "L3",
                                                             "L4", "L5", "L6"};

[[nodiscard]] constexpr std::string_view name_of(Level level) {
  return kLevelNames[static_cast<std::size_t>(level)];
}

}  // namespace starling::gossip
