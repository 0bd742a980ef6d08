#include "training/data/decode.h"

#include <spng.h>
#include <turbojpeg.h>
#include <webp/decode.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace starling::training {

namespace {

constexpr std::size_t kChannels = 3;
// Ancillary PNG chunks (profiles, texts) beyond this are hostile; none is used.
constexpr std::size_t kMaxPngChunk = std::size_t{8} << 20;
constexpr std::uint32_t kMaxPngSide = 1U << 20;

std::unexpected<Error> bad_image(std::string detail) {
  return fail(Errc::data_failed, Doing::loading_data, std::move(detail));
}

const std::uint8_t* raw(ByteView file) {
  return reinterpret_cast<const std::uint8_t*>(file.data());
}

bool starts_with(ByteView file, std::string_view magic, std::size_t at = 0) {
  return file.size() >= at + magic.size() && as_text(file.subspan(at, magic.size())) == magic;
}

struct FreeSpng {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};
using SpngContext = std::unique_ptr<spng_ctx, FreeSpng>;

struct FreeTurbo {
  void operator()(void* handle) const { tjDestroy(handle); }
};

// A context that has read the header; null with `error` set if that failed.
SpngContext open_png(ByteView file, spng_ihdr& header, std::string& error) {
  SpngContext context(spng_ctx_new(0));
  int code = context ? 0 : 1;
  if (code == 0) code = spng_set_image_limits(context.get(), kMaxPngSide, kMaxPngSide);
  if (code == 0) code = spng_set_chunk_limits(context.get(), kMaxPngChunk, 2 * kMaxPngChunk);
  if (code == 0) code = spng_set_crc_action(context.get(), SPNG_CRC_ERROR, SPNG_CRC_DISCARD);
  if (code == 0) code = spng_set_png_buffer(context.get(), file.data(), file.size());
  if (code == 0) code = spng_get_ihdr(context.get(), &header);
  if (code == 0) return context;
  error = std::string("PNG: ") + spng_strerror(code);
  return nullptr;
}

// Whether pixels came out although libjpeg said this: stray bytes between markers are common in
// ImageNet and harmless. TurboJPEG's code tells nothing here: it calls an error behind a warning a
// warning too, while the text is that of the error.
bool is_warning(std::string_view said) {
  constexpr std::array<std::string_view, 5> kWarnings{
      "Corrupt JPEG data", "Inconsistent progression sequence", "Invalid SOS parameters",
      "Unknown Adobe color transform", "Warning: "};
  return std::ranges::any_of(kWarnings, [&](std::string_view w) { return said.starts_with(w); });
}

// Whether a header is whole and all that TurboJPEG lacks is a name for how the colour planes are
// subsampled, as of a 4:1:1 photograph that was turned: decoding needs no name.
bool lacks_a_name(std::string_view said) {
  return said.find("determine subsampling type") != std::string_view::npos;
}

// Whether an end of image (EOI) follows the last start of scan (SOS). The lower part of a file that
// ends early is gray, and libjpeg does not say so where it warned of something else before. Neither
// marker can stand in the coded data.
bool reaches_end(ByteView jpeg) {
  const std::string_view bytes = as_text(jpeg);
  const std::size_t scan = bytes.rfind("\xff\xda");
  return scan != std::string_view::npos && bytes.find("\xff\xd9", scan) != std::string_view::npos;
}

// Adobe's CMYK JPEGs hold inverted inks, so a channel is ink times black.
void cmyk_to_rgb(const std::vector<std::uint8_t>& cmyk, std::vector<std::uint8_t>& rgb) {
  const std::size_t pixels = cmyk.size() / 4;
  for (std::size_t i = 0; i < pixels; ++i) {
    const unsigned black = cmyk[4 * i + 3];
    for (std::size_t c = 0; c < kChannels; ++c) {
      rgb[kChannels * i + c] = static_cast<std::uint8_t>((cmyk[4 * i + c] * black + 127) / 255);
    }
  }
}

}  // namespace

struct Decoder::Handles {
  std::unique_ptr<void, FreeTurbo> turbo;  // of the JPEG in work
  std::vector<std::uint8_t> cmyk;          // working memory of the rare four-channel JPEG
  bool is_cmyk = false;                    // what the last JPEG header said
};

Decoder::Decoder(DecodeLimits limits) : handles_(std::make_unique<Handles>()), limits_(limits) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Result<ImageHeader> Decoder::probe(ByteView file) {
  ImageHeader header;
  if (file.size() > limits_.max_file_bytes) {
    return bad_image("file of " + std::to_string(file.size()) + " bytes, more than " +
                     std::to_string(limits_.max_file_bytes));
  }
  if (starts_with(file, "\xff\xd8\xff")) {
    int width = 0;
    int height = 0;
    int subsampling = 0;
    int colours = 0;
    // A new handle for each file: an old one keeps the tables of the file before, so that a damaged
    // file spoils the next, and one without tables would depend on which thread read what before.
    handles_->turbo.reset(tjInitDecompress());
    if (!handles_->turbo) return bad_image("JPEG: no decoder");
    const int read = tjDecompressHeader3(handles_->turbo.get(), raw(file),
                                         static_cast<unsigned long>(file.size()), &width, &height,
                                         &subsampling, &colours);
    // A warning leaves the sizes there; an error behind one looks like it and does not.
    if (read != 0) {
      const std::string said = tjGetErrorStr2(handles_->turbo.get());
      const bool fatal = tjGetErrorCode(handles_->turbo.get()) == TJERR_FATAL;
      if ((fatal && !lacks_a_name(said)) || width <= 0 || height <= 0)
        return bad_image("JPEG: " + said);
    }
    handles_->is_cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
    header = {ImageFormat::jpeg,
              {static_cast<std::uint32_t>(std::max(height, 0)),
               static_cast<std::uint32_t>(std::max(width, 0))}};
  } else if (starts_with(file, "\x89PNG\r\n\x1a\n")) {
    spng_ihdr png{};
    std::string error;
    if (!open_png(file, png, error)) return bad_image(std::move(error));
    header = {ImageFormat::png, {png.height, png.width}};
  } else if (starts_with(file, "RIFF") && starts_with(file, "WEBP", 8)) {
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(raw(file), file.size(), &features) != VP8_STATUS_OK) {
      return bad_image("WebP: damaged header");
    }
    if (features.has_animation != 0) return bad_image("WebP: an animation, not an image");
    header = {ImageFormat::webp,
              {static_cast<std::uint32_t>(std::max(features.height, 0)),
               static_cast<std::uint32_t>(std::max(features.width, 0))}};
  } else {
    return bad_image(file.empty() ? "empty file" : "neither JPEG, PNG nor WebP");
  }
  const ImageSize size = header.size;
  if (size.height == 0 || size.width == 0) return bad_image("an image without pixels");
  if (std::uint64_t{size.height} * size.width > limits_.max_pixels) {
    return bad_image("an image of " + std::to_string(size.width) + " x " +
                     std::to_string(size.height) + " pixels, more than " +
                     std::to_string(limits_.max_pixels) + " in all");
  }
  return header;
}

Result<void> Decoder::decode(ByteView file, std::uint32_t reduce, Image& out) {
  TRY(const ImageHeader header, probe(file));
  out.channels = kChannels;
  if (header.format == ImageFormat::jpeg) {
    const std::uint32_t by = reduce >= 8 ? 8 : reduce >= 4 ? 4 : reduce >= 2 ? 2 : 1;
    out.size = {(header.size.height + by - 1) / by, (header.size.width + by - 1) / by};
    const std::size_t pixels = std::size_t{out.size.height} * out.size.width;
    out.pixels.resize(pixels * kChannels);
    const bool cmyk = handles_->is_cmyk;
    if (cmyk) handles_->cmyk.resize(pixels * 4);
    // LIMITSCANS: a progressive file can hold thousands of scans and cost minutes.
    const int done = tjDecompress2(
        handles_->turbo.get(), raw(file), static_cast<unsigned long>(file.size()),
        cmyk ? handles_->cmyk.data() : out.pixels.data(), static_cast<int>(out.size.width), 0,
        static_cast<int>(out.size.height), cmyk ? TJPF_CMYK : TJPF_RGB, TJFLAG_LIMITSCANS);
    if (done != 0) {
      const std::string said = tjGetErrorStr2(handles_->turbo.get());
      const bool fatal = tjGetErrorCode(handles_->turbo.get()) == TJERR_FATAL;
      if (fatal || !is_warning(said)) return bad_image("JPEG: " + said);
      if (!reaches_end(file)) return bad_image("JPEG: ends early; " + said);
    }
    if (cmyk) cmyk_to_rgb(handles_->cmyk, out.pixels);
    return {};
  }

  out.size = header.size;
  out.pixels.resize(std::size_t{out.size.height} * out.size.width * kChannels);
  if (header.format == ImageFormat::png) {
    spng_ihdr png{};
    std::string error;
    const SpngContext context = open_png(file, png, error);
    if (!context) return bad_image(std::move(error));
    const int code =
        spng_decode_image(context.get(), out.pixels.data(), out.pixels.size(), SPNG_FMT_RGB8, 0);
    if (code != 0) return bad_image(std::string("PNG: ") + spng_strerror(code));
    return {};
  }
  if (WebPDecodeRGBInto(raw(file), file.size(), out.pixels.data(), out.pixels.size(),
                        static_cast<int>(out.size.width * kChannels)) == nullptr) {
    return bad_image("WebP: damaged or truncated");
  }
  return {};
}

}  // namespace starling::training
