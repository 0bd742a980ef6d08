#include "training/data/decode.h"

#include "node/base/random.h"
#include "tests/training/data/fixtures.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <string_view>

using namespace starling;
using namespace starling::training;

namespace {

// Largest difference of two images of one shape.
int distance(const Image& a, const Image& b) {
  REQUIRE(a.pixels.size() == b.pixels.size());
  int worst = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) {
    worst = std::max(worst, std::abs(int{a.pixels[i]} - int{b.pixels[i]}));
  }
  return worst;
}

// A PNG header that promises `width` x `height` and then ends: signature, IHDR with its CRC.
Bytes with_png_size(Bytes png, std::uint32_t width, std::uint32_t height) {
  for (int i = 0; i < 4; ++i) {
    png[static_cast<std::size_t>(16 + i)] = static_cast<std::byte>(width >> (24 - 8 * i));
    png[static_cast<std::size_t>(20 + i)] = static_cast<std::byte>(height >> (24 - 8 * i));
  }
  std::uint32_t crc = 0xffff'ffffU;
  for (std::size_t i = 12; i < 29; ++i) {
    crc ^= std::to_integer<std::uint32_t>(png[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xedb8'8320U : 0);
  }
  crc ^= 0xffff'ffffU;
  for (int i = 0; i < 4; ++i) {
    png[static_cast<std::size_t>(29 + i)] = static_cast<std::byte>(crc >> (24 - 8 * i));
  }
  return png;
}

// Says that it follows a version of JFIF that there is not: libjpeg warns and reads on.
Bytes with_unknown_revision(Bytes jpeg) {
  REQUIRE(as_text(ByteView(jpeg).subspan(6, 4)) == "JFIF");
  jpeg[11] = std::byte{2};
  return jpeg;
}

std::ptrdiff_t place_of_marker(const Bytes& jpeg, std::uint8_t code) {
  for (std::size_t i = 0; i + 1 < jpeg.size(); ++i) {
    if (jpeg[i] == std::byte{0xff} && jpeg[i + 1] == std::byte{code}) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  FAIL("no such marker");
  return 0;
}

Bytes with_stray_bytes(Bytes jpeg) {
  constexpr std::uint8_t kQuantizers = 0xdb;
  jpeg.insert(jpeg.begin() + place_of_marker(jpeg, kQuantizers), 4, std::byte{0});
  return jpeg;
}

// Its first scan asks for Huffman tables that there are not, which its header does not show.
Bytes without_tables(Bytes jpeg) {
  constexpr std::uint8_t kScan = 0xda;
  jpeg[static_cast<std::size_t>(place_of_marker(jpeg, kScan)) + 6] = std::byte{0x33};
  return jpeg;
}

// 32 x 16 pixels of (200, 100, 50) whose colour planes have a quarter of the columns and half the
// rows: jpeg_set_defaults() of libjpeg with 4 x 2 as the first component's sampling factors,
// quality 90, optimised tables. Turbojpeg cannot write one.
Bytes jpeg_with_planes_of_another_kind() {
  constexpr std::string_view kHex =
      "ffd8ffe000104a46494600010100000100010000ffdb004300030202030202030303030403030405080505040405"
      "0a070706080c0a0c0c0b0a0b0b0d0e12100d0e110e0b0b1016101113141515150c0f171816141812141514ffdb00"
      "430103040405040509050509140d0b0d141414141414141414141414141414141414141414141414141414141414"
      "1414141414141414141414141414141414141414ffc00011080010002003014200021101031101ffc40015000101"
      "00000000000000000000000000000004ffc40014100100000000000000000000000000000000ffc4001501010100"
      "000000000000000000000000000708ffc40014110100000000000000000000000000000000ffda000c0301000211"
      "0311003f009000007a907fffd9";
  return from_hex(kHex).value();
}

}  // namespace

TEST_SUITE("training/data/decode") {
  TEST_CASE("PNG and WebP come out bit for bit, JPEG nearly") {
    const Image image = smooth_image({40, 60}, 90);
    Decoder decoder;
    Image out;

    REQUIRE(decoder.decode(encode_png(image), 1, out));
    CHECK(out.size == image.size);
    CHECK(distance(out, image) == 0);
    REQUIRE(decoder.decode(encode_webp(image), 1, out));
    CHECK(distance(out, image) == 0);
    REQUIRE(decoder.decode(encode_jpeg(image), 1, out));
    CHECK(out.size == image.size);
    CHECK(distance(out, image) <= 8);  // quality 95: quantizer steps of a few units
  }

  TEST_CASE("grayscale comes out as three equal channels") {
    Decoder decoder;
    Image out;

    REQUIRE(decoder.decode(encode_gray_jpeg(smooth_image({16, 16}, 200)), 1, out));

    CHECK(out.channels == 3);
    CHECK(out.pixels[0] == out.pixels[1]);
    CHECK(out.pixels[1] == out.pixels[2]);

    const Image gray{.pixels = std::vector<std::uint8_t>(64, 77), .size = {8, 8}, .channels = 1};
    REQUIRE(decoder.decode(encode_png(gray), 1, out));
    CHECK(out.pixels == std::vector<std::uint8_t>(192, 77));
  }

  TEST_CASE("a CMYK JPEG comes out in colour") {
    Decoder decoder;
    Image out;

    REQUIRE(decoder.decode(encode_cmyk_jpeg({16, 16}, 40), 1, out));

    CHECK(out.channels == 3);
    CHECK(std::abs(int{out.pixels[0]} - 40) <= 4);  // cyan ink times full black plate
    CHECK(out.pixels[1] >= 250);
  }

  TEST_CASE("a JPEG whose colour planes have sides that Turbojpeg has no name for decodes") {
    const Bytes file = jpeg_with_planes_of_another_kind();
    Decoder decoder;
    for (const std::uint32_t reduce : {1U, 2U, 4U, 8U}) {
      CAPTURE(reduce);
      Image out;

      const auto done = decoder.decode(file, reduce, out);

      REQUIRE_MESSAGE(done, (done ? "" : done.error().detail));
      CHECK(out.size == ImageSize{16 / reduce, 32 / reduce});
      for (std::size_t c = 0; c < 3; ++c) {
        constexpr int kWanted[] = {200, 100, 50};
        CHECK(std::abs(int{out.pixels[out.pixels.size() - 3 + c]} - kWanted[c]) <= 4);
      }
    }
  }

  TEST_CASE("a reduced JPEG has the size rounded up and the same picture") {
    const Image image = smooth_image({101, 203}, 120);
    const Bytes file = encode_jpeg(image);
    Decoder decoder;
    for (const std::uint32_t reduce : {1U, 2U, 4U, 8U}) {
      CAPTURE(reduce);
      Image out;

      REQUIRE(decoder.decode(file, reduce, out));

      CHECK(out.size.height == (101 + reduce - 1) / reduce);
      CHECK(out.size.width == (203 + reduce - 1) / reduce);
      const std::size_t middle = (out.size.height / 2 * std::size_t{out.size.width}) * 3;
      CHECK(std::abs(int{out.pixels[middle]} - 120) <= 8);
    }
  }

  TEST_CASE("an image larger than the limit is refused before memory is taken") {
    Decoder decoder({.max_pixels = 1'000, .max_file_bytes = 1 << 20});
    Image out;
    for (const Bytes& file :
         {encode_jpeg(smooth_image({40, 40}, 1)), encode_png(smooth_image({40, 40}, 1)),
          encode_webp(smooth_image({40, 40}, 1))}) {
      const auto done = decoder.decode(file, 1, out);

      REQUIRE(!done);
      CHECK(done.error().detail.find("40 x 40") != std::string::npos);
      CHECK(out.pixels.capacity() == 0);
    }
    const Bytes bomb = with_png_size(encode_png(smooth_image({8, 8}, 1)), 1'000'000, 1'000'000);
    CHECK(!decoder.decode(bomb, 1, out));
    CHECK(!Decoder({.max_pixels = 1 << 20, .max_file_bytes = 10})
               .decode(encode_png(smooth_image({8, 8}, 1)), 1, out));
  }

  TEST_CASE("a file that ends early is an error in every format") {
    const Image image = smooth_image({64, 64}, 30);
    Decoder decoder;
    for (const Bytes& file : {encode_jpeg(image), encode_png(image), encode_webp(image)}) {
      for (std::size_t part = 0; part < 10; ++part) {
        CAPTURE(part);
        Image out;

        const auto done = decoder.decode(ByteView(file).first(file.size() * part / 10), 1, out);

        REQUIRE(!done);
        CHECK(done.error().code == Errc::data_failed);
      }
    }
  }

  TEST_CASE("a JPEG whose header earns a warning decodes like the one without") {
    const Bytes good = encode_jpeg(smooth_image({64, 48}, 30));
    Decoder decoder;
    Image wanted;
    REQUIRE(decoder.decode(good, 1, wanted));
    for (const Bytes& file : {with_unknown_revision(good), with_stray_bytes(good)}) {
      Image out;

      const auto header = decoder.probe(file);
      const auto done = decoder.decode(file, 1, out);

      REQUIRE_MESSAGE(header, (header ? "" : header.error().detail));
      CHECK(header->size == ImageSize{64, 48});
      REQUIRE_MESSAGE(done, (done ? "" : done.error().detail));
      CHECK(distance(out, wanted) == 0);
    }
  }

  TEST_CASE("a warning in the header hides neither an early end nor an error") {
    const Bytes good = encode_jpeg(smooth_image({64, 48}, 30));
    Decoder decoder;
    for (const Bytes& file : {with_unknown_revision(good), with_stray_bytes(good)}) {
      for (std::size_t part = 0; part < 20; ++part) {
        CAPTURE(part);
        Image out;
        CHECK(!decoder.decode(ByteView(file).first(file.size() * part / 20), 1, out));
      }
      Image out;
      CHECK(!decoder.decode(without_tables(file), 1, out));
    }
    Image out;
    CHECK(!decoder.decode(without_tables(good), 1, out));
  }

  TEST_CASE("damaged bytes never crash the decoder, and the next good file decodes") {
    const Image image = smooth_image({32, 32}, 60);
    const Bytes files[] = {encode_jpeg(image), encode_png(image), encode_webp(image)};
    Decoder decoder;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      Bytes file = files[seed % 3];
      for (int i = 0; i < 8; ++i) file[rng.below(file.size())] = static_cast<std::byte>(rng());
      Image out;

      (void)decoder.decode(file, 1, out);  // an error or a wrong picture: both are fine

      const auto good = decoder.decode(files[seed % 3], 1, out);
      REQUIRE_MESSAGE(good, (good ? "" : good.error().detail));
      CHECK(out.size == image.size);
    }
  }

  TEST_CASE("a file that is no image says so") {
    Decoder decoder;

    CHECK(decoder.probe({}).error().detail == "empty file");
    CHECK(decoder.probe(as_bytes("GIF89a....")).error().detail == "neither JPEG, PNG nor WebP");
  }
}
