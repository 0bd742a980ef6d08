// Small files made for a test: images in three formats, archives, IDX arrays, a folder that goes
// away.
#pragma once

#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/result.h"
#include "tests/support/temp_folder.h"
#include "training/data/dataset.h"
#include "training/data/image.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::training {

// A smooth image whose mean colour depends on `shade`.
[[nodiscard]] Image smooth_image(ImageSize size, std::uint8_t shade);

[[nodiscard]] Bytes encode_jpeg(const Image& image);
[[nodiscard]] Bytes encode_gray_jpeg(const Image& image);
[[nodiscard]] Bytes encode_cmyk_jpeg(ImageSize size, std::uint8_t ink);
[[nodiscard]] Bytes encode_png(const Image& image);
[[nodiscard]] Bytes encode_webp(const Image& image);  // lossless

// Each look at it takes four seconds.
class SlowClock final : public Clock {
 public:
  TimePoint now() const override { return now_ += std::chrono::seconds(4); }

 private:
  mutable TimePoint now_{};
};

// Builds an archive member by member.
class TarBuilder {
 public:
  TarBuilder& add(std::string_view name, ByteView bytes) { return add(name, bytes, '0'); }
  TarBuilder& add(std::string_view name, std::string_view text) {
    return add(name, as_bytes(text), '0');
  }
  TarBuilder& add(std::string_view name, ByteView bytes, char type);
  // A member in whose header `size` stands instead of the true size.
  TarBuilder& add_lying(std::string_view name, std::string_view size_field, ByteView bytes);
  // The archive, with its two zero blocks.
  [[nodiscard]] Bytes finish() const;
  // The archive as it is, cut off after the last member.
  [[nodiscard]] const Bytes& bytes() const { return out_; }

 private:
  Bytes out_;
};

// "<length> <key>=<value>\n".
[[nodiscard]] std::string pax_record(std::string_view key, std::string_view value);

[[nodiscard]] Bytes idx_file(const std::vector<std::uint32_t>& shape, ByteView bytes);
[[nodiscard]] Bytes gzip(ByteView bytes);

// The training and validation sets that `--data` (and `--val`) open; their form must be right.
[[nodiscard]] Result<DataSets> open_sets(const std::string& text, const std::string& val = "");
[[nodiscard]] bool mentions(const std::string& text, const std::string& part);

// The folder of real data that STARLING_TEST_DATA names, if it holds `part`; otherwise says what to
// set, and the test has nothing to do.
[[nodiscard]] std::optional<std::filesystem::path> test_data(const std::string& part);

}  // namespace starling::training
