#include "training/data/cifar10.h"

#include "node/base/hash.h"
#include "training/data/byte_source.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace starling::training {

namespace {

constexpr std::uint32_t kSide = 32;
constexpr std::size_t kPlane = std::size_t{kSide} * kSide;
constexpr std::size_t kRecord = 1 + 3 * kPlane;
constexpr std::size_t kClasses = 10;
constexpr std::array<const char*, kClasses> kClassNames{
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
// A folder with more files than this is not CIFAR-10.
constexpr std::size_t kMaxFiles = 1'000;
// All files together.
constexpr std::uint64_t kMaxRecords = 10'000'000;

std::unexpected<Error> bad_cifar(const std::string& name, const std::string& what) {
  return fail(Errc::data_failed, Doing::loading_data, name + ": " + what);
}

class Cifar10Dataset final : public Dataset {
 public:
  explicit Cifar10Dataset(std::string name)
      : name_(std::move(name)), classes_(kClassNames.begin(), kClassNames.end()) {
    hasher_.add("starling data cifar10");
  }

  // Adds a file whose labels are all in range.
  Result<void> add(std::unique_ptr<ByteSource> file) {
    if (file->size() == 0 || file->size() % kRecord != 0) {
      return bad_cifar(file->name(), std::to_string(file->size()) +
                                         " bytes, no multiple of 3,073: not CIFAR-10 records");
    }
    const std::uint64_t records = file->size() / kRecord;
    if (records > kMaxRecords - size_) return bad_cifar(file->name(), "too many records");
    Bytes labels(static_cast<std::size_t>(records));
    for (std::size_t r = 0; r < labels.size(); ++r) {
      TRY_VOID(file->read_at(r * kRecord, std::span(labels).subspan(r, 1)));
      if (std::to_integer<std::size_t>(labels[r]) >= kClasses) {
        return bad_cifar(file->name(), "record " + std::to_string(r) + " has label " +
                                           std::to_string(std::to_integer<int>(labels[r])));
      }
    }
    hasher_.add(labels);
    size_ += static_cast<std::uint32_t>(records);
    ends_.push_back(size_);
    files_.push_back(std::move(file));
    return {};
  }
  void seal() { id_ = hasher_.finish(); }

  std::uint32_t size() const override { return size_; }
  std::uint32_t channels() const override { return 3; }
  std::optional<ImageSize> uniform_size() const override { return ImageSize{kSide, kSide}; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return name_; }
  Hash id() const override { return id_; }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    const auto [file, record] = locate(index);
    std::array<std::byte, kRecord> bytes;
    TRY_VOID(files_[file]->read_at(std::uint64_t{record} * kRecord, bytes));
    out.label = std::to_integer<std::int64_t>(bytes[0]);
    // The file may have changed since it was opened.
    if (out.label >= static_cast<std::int64_t>(kClasses)) {
      return bad_cifar(sample_name(index), "label " + std::to_string(out.label));
    }
    out.raw = Sample::Raw{{kSide, kSide}, 3};
    out.bytes.resize(3 * kPlane);
    for (std::size_t i = 0; i < kPlane; ++i) {  // planes on disk, interleaved in memory
      for (std::size_t c = 0; c < 3; ++c) out.bytes[3 * i + c] = bytes[1 + c * kPlane + i];
    }
    return {};
  }
  std::string sample_name(std::uint32_t index) const override {
    const auto [file, record] = locate(index);
    return files_[file]->name() + ": record " + std::to_string(record);
  }

 private:
  std::pair<std::size_t, std::uint32_t> locate(std::uint32_t index) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    const auto file = static_cast<std::size_t>(end - ends_.begin());
    return {file, index - (file == 0 ? 0 : ends_[file - 1])};
  }

  std::string name_;
  std::vector<std::string> classes_;
  std::vector<std::unique_ptr<ByteSource>> files_;
  std::vector<std::uint32_t> ends_;  // number of records up to and including each file
  std::uint32_t size_ = 0;
  Hasher hasher_;
  Hash id_;
};

}  // namespace

Result<DataSets> open_cifar10(const DataSpec& spec) {
  std::filesystem::path folder = spec.paths.front();
  std::error_code error;
  if (std::filesystem::is_directory(folder / "cifar-10-batches-bin", error)) {
    folder /= "cifar-10-batches-bin";
  }
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".bin") files.push_back(entry->path());
    if (files.size() > kMaxFiles) return bad_cifar(folder.string(), "too many .bin files");
  }
  if (error) return bad_cifar(folder.string(), error.message());
  std::sort(files.begin(), files.end());
  auto train = std::make_unique<Cifar10Dataset>(spec.text + " train");
  auto val = std::make_unique<Cifar10Dataset>(spec.text + " test");
  for (const std::filesystem::path& path : files) {
    const std::string stem = path.stem().string();
    const bool is_test = stem.find("test") != std::string::npos;
    const bool is_train = stem.starts_with("data_batch") || stem.find("train") != std::string::npos;
    if (!is_test && !is_train) continue;
    TRY(std::unique_ptr<ByteSource> file, open_file(path));
    TRY_VOID((is_test ? val : train)->add(std::move(file)));
  }
  if (train->size() == 0) {
    return bad_cifar(folder.string(), "has no data_batch_1.bin (the binary version of CIFAR-10)");
  }
  train->seal();
  val->seal();
  if (val->size() == 0) val.reset();
  return DataSets{std::move(train), std::move(val)};
}

}  // namespace starling::training
