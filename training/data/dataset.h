// Dataset: labelled images on disk (or made up), read one by one in any order.
#pragma once

#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "training/data/image.h"
#include "training/data/spec.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::training {

// One image as it is stored. The caller keeps one per thread, so that reading reuses its memory.
struct Sample {
  Bytes bytes;             // a JPEG, PNG or WebP file; or pixels, HWC, when `raw` says their shape
  std::int64_t label = 0;  // in [0, classes)
  struct Raw {
    ImageSize size;
    std::uint32_t channels = 0;
  };
  std::optional<Raw> raw;
};

// A fixed list of labelled images.
//
// Made by open_data(), owned by whoever asked for it; outlives its loaders. Immutable after it was
// opened: read() may be called by any number of threads at once. Files that change under it make
// single samples bad, never the process.
// Limits:  2^32 - 1 samples, kMaxClasses classes.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual std::uint32_t size() const = 0;
  // Channels of the images as stored: 1 or 3; encoded images count as 3.
  [[nodiscard]] virtual std::uint32_t channels() const = 0;
  // Size of every image where all have the same one, nothing for photographs.
  [[nodiscard]] virtual std::optional<ImageSize> uniform_size() const = 0;
  // Names of the classes; the label of a sample is an index into it.
  [[nodiscard]] virtual const std::vector<std::string>& class_names() const = 0;
  // What a person calls this set: the SPEC and the split ("fashion-mnist train").
  [[nodiscard]] virtual std::string name() const = 0;
  // Equal on two machines exactly if both hold the same samples in the same order, as far as
  // names, sizes and labels tell; pixels are not read. Members that share it can share an epoch.
  [[nodiscard]] virtual Hash id() const = 0;

  // Reads sample `index` (below size()) into `out`, undecoded.
  //
  // Errors:  data_failed with the sample's name.
  // Thread:  any, concurrently.
  [[nodiscard]] virtual Result<void> read(std::uint32_t index, Sample& out) const = 0;
  // What to call a sample in a message: its file, or shard and member.
  [[nodiscard]] virtual std::string sample_name(std::uint32_t index) const = 0;

  [[nodiscard]] std::uint32_t classes() const {
    return static_cast<std::uint32_t>(class_names().size());
  }
};

// Equal on two machines exactly if a label means the same class on both. Nothing where each class
// is named by its label, as IDX and shards with numbers do: those names tell nothing.
[[nodiscard]] std::optional<Hash> names_of_classes(const Dataset& set);

inline constexpr std::uint32_t kMaxClasses = 65'536;

// Training and validation set of a run.
struct DataSets {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> val;  // null where the data has none
};

// How far the opening of a large set is, for the log: a line of the images found so far, at most
// every kEvery. On slow storage a set takes minutes, and nothing else tells that process from one
// that hangs.
//
// Owned by whoever opens, which `log` and `clock` outlive. Cost: one look at the clock an image.
class OpeningProgress {
 public:
  static constexpr Duration kEvery = std::chrono::seconds(10);

  OpeningProgress(Log& log, const Clock& clock, std::string_view data);
  // One more image.
  void found();

 private:
  Log& log_;
  const Clock& clock_;
  std::string data_;
  TimePoint begun_;
  TimePoint due_;
  std::uint64_t images_ = 0;
};

// Opens what the two SPECs name.
//
// Rule:    without `val`: IDX and CIFAR-10 bring their official test sets; a folder or tar splits
//          where it has `train` and `val` (or `valid`, `validation`, `test`) above its classes, or
//          `val` beside them (parts.h); otherwise everything is for training. With `val`, that set
//          is validated on, all of it (or its own `val` part where it has one). Classes are those
//          of the training set; a class that only the validation set has is an error. A tree of
//          images is the same set as a folder and as a tar, or refused.
// Errors:  data_failed naming the file or folder and what it should hold.
// Cost:    folders: one directory walk, and a look for a first image in each where one is called
//          like a part; tar: one small read per member; IDX: unpacked into memory.
[[nodiscard]] Result<DataSets> open_data(const DataSpec& spec, const DataSpec* val, Log& log,
                                         const Clock& clock = SteadyClock());

// The same of two texts; `val` may be empty. Errors: also those of parse_data_spec().
[[nodiscard]] Result<DataSets> open_data(std::string_view spec, std::string_view val, Log& log);

// What `starling eval` measures: the validation part of one SPEC, or all of it where it has none.
[[nodiscard]] Result<std::unique_ptr<Dataset>> open_evaluation_data(const DataSpec& spec, Log& log);

}  // namespace starling::training
