// A decoded image in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace starling::training {

struct ImageSize {
  std::uint32_t height = 0;
  std::uint32_t width = 0;

  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// Pixels, 8 bits a channel, row by row, channels innermost (HWC). Channels are 1 or 3 (RGB).
struct Image {
  std::vector<std::uint8_t> pixels;
  ImageSize size;
  std::uint32_t channels = 0;
};

}  // namespace starling::training
