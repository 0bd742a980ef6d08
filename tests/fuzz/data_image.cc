// Any bytes as an image file: an error or an image within the limits, never anything else.
#include "node/base/check.h"
#include "training/data/decode.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::training;
  constexpr std::uint64_t kPixels = 1 << 18;
  Decoder decoder({.max_pixels = kPixels, .max_file_bytes = 1 << 20});
  Image image;
  for (const std::uint32_t reduce : {1U, 4U}) {
    if (!decoder.decode(std::as_bytes(std::span(data, size)), reduce, image)) continue;
    STARLING_CHECK(image.channels == 3);
    STARLING_CHECK(std::uint64_t{image.size.height} * image.size.width <= kPixels);
    STARLING_CHECK(image.pixels.size() ==
                   std::size_t{image.size.height} * image.size.width * image.channels);
  }
  return 0;
}
