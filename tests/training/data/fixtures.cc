#include "tests/training/data/fixtures.h"

#include "node/base/check.h"
#include "node/base/log.h"

#include <spng.h>
#include <turbojpeg.h>
#include <unistd.h>
#include <webp/encode.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <span>
#include <system_error>

namespace starling::training {

namespace {

Bytes copy_out(const void* data, std::size_t size) {
  return to_bytes(std::as_bytes(std::span(static_cast<const std::uint8_t*>(data), size)));
}

Bytes compress(const std::uint8_t* pixels, ImageSize size, int format, int subsampling) {
  const tjhandle turbo = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long length = 0;
  const int done =
      tjCompress2(turbo, pixels, static_cast<int>(size.width), 0, static_cast<int>(size.height),
                  format, &out, &length, subsampling, 95, 0);
  STARLING_CHECK(done == 0);
  Bytes bytes = copy_out(out, length);
  tjFree(out);
  tjDestroy(turbo);
  return bytes;
}

}  // namespace

Image smooth_image(ImageSize size, std::uint8_t shade) {
  Image image{.pixels = {}, .size = size, .channels = 3};
  for (std::uint32_t y = 0; y < size.height; ++y) {
    for (std::uint32_t x = 0; x < size.width; ++x) {
      image.pixels.push_back(shade);
      image.pixels.push_back(static_cast<std::uint8_t>(x * 255 / size.width));
      image.pixels.push_back(static_cast<std::uint8_t>(y * 255 / size.height));
    }
  }
  return image;
}

Bytes encode_jpeg(const Image& image) {
  return compress(image.pixels.data(), image.size, TJPF_RGB, TJSAMP_444);
}

Bytes encode_gray_jpeg(const Image& image) {
  return compress(image.pixels.data(), image.size, TJPF_RGB, TJSAMP_GRAY);
}

Bytes encode_cmyk_jpeg(ImageSize size, std::uint8_t ink) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t i = 0; i < std::size_t{size.height} * size.width; ++i) {
    pixels.insert(pixels.end(), {ink, 255, 255, 255});
  }
  return compress(pixels.data(), size, TJPF_CMYK, TJSAMP_444);
}

Bytes encode_png(const Image& image) {
  spng_ctx* context = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(context, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = image.size.width;
  header.height = image.size.height;
  header.bit_depth = 8;
  header.color_type = image.channels == 1 ? SPNG_COLOR_TYPE_GRAYSCALE : SPNG_COLOR_TYPE_TRUECOLOR;
  STARLING_CHECK(spng_set_ihdr(context, &header) == 0);
  STARLING_CHECK(spng_encode_image(context, image.pixels.data(), image.pixels.size(), SPNG_FMT_PNG,
                                   SPNG_ENCODE_FINALIZE) == 0);
  std::size_t length = 0;
  int error = 0;
  void* out = spng_get_png_buffer(context, &length, &error);
  STARLING_CHECK(out != nullptr);
  Bytes bytes = copy_out(out, length);
  std::free(out);
  spng_ctx_free(context);
  return bytes;
}

Bytes encode_webp(const Image& image) {
  std::uint8_t* out = nullptr;
  const std::size_t length = WebPEncodeLosslessRGB(
      image.pixels.data(), static_cast<int>(image.size.width), static_cast<int>(image.size.height),
      static_cast<int>(image.size.width * 3), &out);
  STARLING_CHECK(length > 0);
  Bytes bytes = copy_out(out, length);
  WebPFree(out);
  return bytes;
}

TarBuilder& TarBuilder::add(std::string_view name, ByteView bytes, char type) {
  std::array<char, 12> size{};
  std::snprintf(size.data(), size.size(), "%011lo", static_cast<unsigned long>(bytes.size()));
  const std::size_t header_at = out_.size();
  add_lying(name, {size.data(), 11}, bytes);
  std::byte* block = out_.data() + header_at;
  block[156] = static_cast<std::byte>(type);
  // The type counts in the checksum, where it took the place of '0'.
  unsigned sum = 0;
  std::fill_n(block + 148, 8, std::byte{' '});
  for (std::size_t i = 0; i < 512; ++i) sum += std::to_integer<unsigned>(block[i]);
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "%06o", sum);
  std::memcpy(block + 148, text.data(), 7);
  return *this;
}

TarBuilder& TarBuilder::add_lying(std::string_view name, std::string_view size_field,
                                  ByteView bytes) {
  std::array<std::byte, 512> block{};
  std::memcpy(block.data(), name.data(), std::min<std::size_t>(name.size(), 100));
  std::memcpy(block.data() + 100, "0000644", 7);
  std::memcpy(block.data() + 124, size_field.data(), std::min<std::size_t>(size_field.size(), 12));
  block[156] = std::byte{'0'};
  std::memcpy(block.data() + 257,
              "ustar\0"
              "00",
              8);
  std::fill_n(block.data() + 148, 8, std::byte{' '});
  unsigned sum = 0;
  for (const std::byte b : block) sum += std::to_integer<unsigned>(b);
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "%06o", sum);
  std::memcpy(block.data() + 148, text.data(), 7);
  out_.insert(out_.end(), block.begin(), block.end());
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  out_.resize((out_.size() + 511) / 512 * 512);
  return *this;
}

Bytes TarBuilder::finish() const {
  Bytes out = out_;
  out.resize(out.size() + 1'024);
  return out;
}

std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t body = key.size() + value.size() + 3;  // blank, equals sign, line feed
  std::size_t length = body + 1;
  while (std::to_string(length).size() + body != length) ++length;
  std::string record = std::to_string(length);
  record += ' ';
  record += key;
  record += '=';
  record += value;
  record += '\n';
  return record;
}

Bytes idx_file(const std::vector<std::uint32_t>& shape, ByteView bytes) {
  Bytes out{std::byte{0}, std::byte{0}, std::byte{8}, static_cast<std::byte>(shape.size())};
  for (const std::uint32_t extent : shape) {
    for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<std::byte>(extent >> shift));
  }
  out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

Bytes gzip(ByteView bytes) {
  z_stream stream{};
  STARLING_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) ==
                 Z_OK);
  Bytes in = to_bytes(bytes);
  Bytes out(deflateBound(&stream, static_cast<uLong>(in.size())));
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  STARLING_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

Result<DataSets> open_sets(const std::string& text, const std::string& val) {
  NullLog log;
  const auto spec = parse_data_spec(text);
  STARLING_CHECK(spec.has_value());
  if (val.empty()) return open_data(*spec, nullptr, log);
  const auto val_spec = parse_data_spec(val);
  STARLING_CHECK(val_spec.has_value());
  return open_data(*spec, &*val_spec, log);
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::optional<std::filesystem::path> test_data(const std::string& part) {
  const char* folder = std::getenv("STARLING_TEST_DATA");
  std::error_code ignored;
  if (folder != nullptr && std::filesystem::exists(std::filesystem::path(folder) / part, ignored)) {
    return std::filesystem::path(folder) / part;
  }
  std::cerr << "skipped: set STARLING_TEST_DATA to a folder with " << part << "/\n";
  return std::nullopt;
}

}  // namespace starling::training
