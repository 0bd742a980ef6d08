// JPEG, PNG and WebP to pixels, within limits.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"
#include "training/data/image.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace starling::training {

enum class ImageFormat : std::uint8_t { jpeg, png, webp };

// What a file's header promises; checked against the limits before anything is allocated.
struct ImageHeader {
  ImageFormat format = ImageFormat::jpeg;
  ImageSize size;
};

// Raising `max_pixels` admits larger photographs and costs 3 bytes a pixel in every loader thread.
struct DecodeLimits {
  std::uint64_t max_pixels = 64ULL << 20;
  std::size_t max_file_bytes = std::size_t{64} << 20;
};

// Decodes images, always to three channels: grayscale is repeated, CMYK converted, alpha dropped,
// EXIF orientation ignored (as torchvision's loader does).
//
// A value with working memory inside: one per loader thread, used by one thread at a time. Its
// input is any bytes at all; a file that is damaged, too large or of another format is an error
// and leaves the decoder usable.
class Decoder {
 public:
  explicit Decoder(DecodeLimits limits = {});
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Format and size of a file from its first bytes.
  //
  // Errors:  data_failed: unknown format, damaged header, above the limits.
  [[nodiscard]] Result<ImageHeader> probe(ByteView file);

  // Decodes `file` into `out`, whose memory is reused. A JPEG is decoded at 1/`reduce` of its size
  // (1, 2, 4 or 8; sizes round up) by leaving out frequencies, which is faster than decoding all of
  // it and resizing; other formats ignore `reduce`.
  //
  // Errors:  data_failed with what the decoder said; the content of `out` is then unspecified.
  [[nodiscard]] Result<void> decode(ByteView file, std::uint32_t reduce, Image& out);

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
  DecodeLimits limits_;
};

}  // namespace starling::training
