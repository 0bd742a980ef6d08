#include "training/data/dataset.h"

#include "node/base/hash.h"
#include "training/data/byte_source.h"
#include "training/data/cifar10.h"
#include "training/data/idx.h"
#include "training/data/image_folder.h"
#include "training/data/packed.h"
#include "training/data/synthetic.h"
#include "training/data/tar_shards.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

namespace starling::training {

namespace {

namespace fs = std::filesystem;

// A validation set with the labels of the training set: classes are matched by name.
class Relabelled final : public Dataset {
 public:
  Relabelled(std::unique_ptr<Dataset> inner, std::vector<std::string> classes,
             std::vector<std::int64_t> label_of)
      : inner_(std::move(inner)), classes_(std::move(classes)), label_of_(std::move(label_of)) {}

  std::uint32_t size() const override { return inner_->size(); }
  std::uint32_t channels() const override { return inner_->channels(); }
  std::optional<ImageSize> uniform_size() const override { return inner_->uniform_size(); }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return inner_->name(); }
  Hash id() const override { return inner_->id(); }
  std::string sample_name(std::uint32_t index) const override { return inner_->sample_name(index); }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    TRY_VOID(inner_->read(index, out));
    out.label = label_of_[static_cast<std::size_t>(out.label)];
    return {};
  }

 private:
  std::unique_ptr<Dataset> inner_;
  std::vector<std::string> classes_;
  std::vector<std::int64_t> label_of_;
};

Result<std::unique_ptr<Dataset>> with_classes_of(const Dataset& train,
                                                 std::unique_ptr<Dataset> val) {
  const std::vector<std::string>& wanted = train.class_names();
  if (val->class_names() == wanted) return val;
  std::unordered_map<std::string_view, std::int64_t> label_by_name;
  for (const std::string& name : wanted) {
    label_by_name.emplace(name, static_cast<std::int64_t>(label_by_name.size()));
  }
  std::vector<std::int64_t> label_of;
  for (const std::string& name : val->class_names()) {
    const auto found = label_by_name.find(name);
    if (found == label_by_name.end()) {
      return fail(Errc::data_failed, Doing::loading_data,
                  val->name() + ": class '" + name + "' is not among the " +
                      std::to_string(wanted.size()) + " classes of " + train.name());
    }
    label_of.push_back(found->second);
  }
  return std::make_unique<Relabelled>(std::move(val), wanted, std::move(label_of));
}

Result<DataSets> open_shards(const std::vector<fs::path>& paths, const std::string& name, Log& log,
                             const Clock& clock) {
  std::vector<std::unique_ptr<ByteSource>> shards;
  for (const fs::path& path : paths) {
    TRY(std::unique_ptr<ByteSource> shard, open_file(path));
    shards.push_back(std::move(shard));
  }
  return open_tar_shards(std::move(shards), name, log, clock);
}

struct FolderContent {
  bool train = false;
  std::string validation;      // name of the folder, "" if there is none
  bool other_folders = false;  // any other folder that does not begin with a dot
  std::vector<fs::path> tars;
};

Result<FolderContent> look_into(const fs::path& folder) {
  FolderContent content;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    if (!entry->is_directory(ignored)) {
      if (name.ends_with(".tar") && content.tars.size() < kMaxShards) {
        content.tars.push_back(entry->path());
      }
    } else if (name == "train") {
      content.train = true;
    } else if (is_validation_name(name)) {
      // `val` before `test` where a set has both: the test set is for later.
      content.validation = std::max(content.validation, name);
    } else {
      content.other_folders = true;
    }
  }
  if (error) {
    return fail(Errc::data_failed, Doing::loading_data, folder.string() + ": " + error.message());
  }
  std::sort(content.tars.begin(), content.tars.end());
  return content;
}

Result<DataSets> open_folder(const DataSpec& spec, Log& log, const Clock& clock) {
  const fs::path& folder = spec.paths.front();
  TRY(const FolderContent content, look_into(folder));
  const bool any_folder = content.train || !content.validation.empty() || content.other_folders;
  if (!any_folder && !content.tars.empty()) return open_shards(content.tars, spec.text, log, clock);
  DataSets sets;
  if (!content.train) {
    TRY(std::unique_ptr<Dataset> all, open_image_folder(folder, spec.text, log, clock));
    sets.train = std::move(all);
    return sets;
  }
  TRY(std::unique_ptr<Dataset> train,
      open_image_folder(folder / "train", spec.text + " train", log, clock));
  sets.train = std::move(train);
  if (!content.validation.empty()) {
    TRY(std::unique_ptr<Dataset> val,
        open_image_folder(folder / content.validation, spec.text + " " + content.validation, log,
                          clock));
    sets.val = std::move(val);
  }
  return sets;
}

// What one SPEC holds; either part may be null, not both.
Result<DataSets> open_parts(const DataSpec& spec, Log& log, const Clock& clock) {
  switch (spec.kind) {
    case DataKind::idx:
      return open_idx(spec);
    case DataKind::cifar10:
      return open_cifar10(spec);
    case DataKind::folder:
      return open_folder(spec, log, clock);
    case DataKind::tar:
      return open_shards(spec.paths, spec.text, log, clock);
    case DataKind::synthetic:
      return open_synthetic(spec);
    case DataKind::packed:
      return open_packed(spec);
  }
  return fail(Errc::internal, Doing::loading_data, "an unknown kind of data");
}

}  // namespace

std::optional<Hash> names_of_classes(const Dataset& set) {
  Hasher hasher;
  bool numbers = true;
  std::size_t label = 0;
  for (const std::string& name : set.class_names()) {
    numbers = numbers && name == std::to_string(label++);
    hasher.add(std::uint64_t{name.size()}).add(name);
  }
  return numbers ? std::nullopt : std::optional(hasher.finish());
}

OpeningProgress::OpeningProgress(Log& log, const Clock& clock, std::string_view data)
    : log_(log), clock_(clock), data_(data), begun_(clock.now()), due_(begun_ + kEvery) {}

void OpeningProgress::found() {
  ++images_;
  const TimePoint now = clock_.now();
  if (now < due_) return;
  due_ = now + kEvery;
  const auto passed = std::chrono::duration_cast<std::chrono::seconds>(now - begun_);
  log_.info("data.found", {{"data", data_}, {"images", images_}, {"seconds", passed.count()}});
}

Result<DataSets> open_data(const DataSpec& spec, const DataSpec* val, Log& log,
                           const Clock& clock) {
  TRY(DataSets sets, open_parts(spec, log, clock));
  if (!sets.train) sets.train = std::move(sets.val);  // shards of a validation part, named as data
  if (val != nullptr) {
    TRY(DataSets other, open_parts(*val, log, clock));
    sets.val = std::move(other.val ? other.val : other.train);
  }
  if (sets.val) {
    TRY(std::unique_ptr<Dataset> matched, with_classes_of(*sets.train, std::move(sets.val)));
    sets.val = std::move(matched);
  }
  return sets;
}

Result<DataSets> open_data(std::string_view spec, std::string_view val, Log& log) {
  TRY(const DataSpec train, parse_data_spec(spec));
  if (val.empty()) return open_data(train, nullptr, log);
  TRY(const DataSpec other, parse_data_spec(val));
  return open_data(train, &other, log);
}

Result<std::unique_ptr<Dataset>> open_evaluation_data(const DataSpec& spec, Log& log) {
  TRY(DataSets sets, open_data(spec, nullptr, log));
  return std::move(sets.val ? sets.val : sets.train);
}

}  // namespace starling::training
