// Packing: a data set into one file whose samples cost less to prepare (`starling data pack`).
#pragma once

#include "node/base/result.h"
#include "training/data/dataset.h"
#include "training/data/decode.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace starling::training {

enum class PackedForm : std::uint8_t {
  jpeg,  // a tenth of the bytes; half a millisecond a photograph to decode
  raw,   // pixels: nothing to decode, but the disk has to bring them
};

// The largest shorter side that can be asked for.
inline constexpr std::uint32_t kMaxPackSide = 8'192;

struct PackOptions {
  PackedForm form = PackedForm::jpeg;
  // Pixels of the shorter side; larger images are made smaller, smaller ones are kept. 0: as they
  // are. For training at 224 pixels 256 keeps what a random crop needs.
  std::uint32_t side = 256;
  int quality = 90;  // of JPEG, 1 to 100
  unsigned threads = 1;
  std::uint32_t max_bad = 1'000;  // unreadable samples that are left out before it gives up
  DecodeLimits limits = {};
  // Converted samples that may wait in memory for their turn to be written; one sample of each
  // thread may be beyond it.
  std::uint64_t waiting_bytes = std::uint64_t{256} << 20;
};

// How far packing has come.
struct PackProgress {
  std::uint64_t done = 0;  // samples
  std::uint64_t all = 0;
  std::uint64_t bytes = 0;  // written
};

// What became of it.
struct PackReport {
  std::uint32_t train = 0;
  std::uint32_t val = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> left_out;  // name and reason of each sample that is unreadable
};

// Writes both parts of a data set into `file`, which takes its place when it is whole: beside it
// a crash leaves at most FILE.partial.
//
// Rule:    the order of samples is kept; unreadable ones are left out. Small images that are
//          stored as pixels (IDX, CIFAR-10) stay pixels, and so do gray ones.
// Errors:  bad_argument for a quality or side out of range; data_failed where nothing is left,
//          more than `max_bad` are left out, or one part is gray and the other is not; disk_full,
//          permission, io_failed.
// Cost:    decodes, resizes and encodes every image, on `threads` threads and the caller's, which
//          writes; at most 1,024 samples, of `waiting_bytes`, are in memory at once.
// Source:  the bilinear filter of augment.h.
[[nodiscard]] Result<PackReport> pack(const DataSets& sets, const std::string& origin,
                                      const PackOptions& options, const std::filesystem::path& file,
                                      const std::function<void(const PackProgress&)>& on_progress);

// One sample as it will be stored. Errors: data_failed.
class SampleConverter {
 public:
  explicit SampleConverter(const PackOptions& options);
  ~SampleConverter();
  SampleConverter(SampleConverter&&) noexcept;
  SampleConverter& operator=(SampleConverter&&) = delete;

  // Changes `sample` in place. One thread at a time.
  [[nodiscard]] Result<void> convert(Sample& sample);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace starling::training
