#include "training/data/dataset.h"

#include "node/base/hash.h"
#include "training/data/byte_source.h"
#include "training/data/cifar10.h"
#include "training/data/idx.h"
#include "training/data/image_folder.h"
#include "training/data/packed.h"
#include "training/data/parts.h"
#include "training/data/synthetic.h"
#include "training/data/tar_shards.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
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

// Who is told how far the opening is.
struct Opening {
  Log& log;
  const Clock& clock;
};

struct FolderContent {
  TopFolders top;
  std::set<std::string, std::less<>> empty_parts;  // called like parts, without an image
  bool any_folder = false;                         // that does not begin with a dot
  std::vector<fs::path> tars;
};

// Folders by name, and archives, at the top of `folder`.
Result<std::vector<std::string>> list_folder(const fs::path& folder, FolderContent& content) {
  std::vector<std::string> folders;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    if (entry->is_directory(ignored)) {
      folders.push_back(std::move(name));
    } else if (name.ends_with(".tar") && content.tars.size() < kMaxShards) {
      content.tars.push_back(entry->path());
    }
  }
  if (error) {
    return fail(Errc::data_failed, Doing::loading_data, folder.string() + ": " + error.message());
  }
  content.any_folder = !folders.empty();
  std::sort(content.tars.begin(), content.tars.end());
  return folders;
}

// Whether a folder in `folder` holds an image.
Result<bool> has_class_folders(const fs::path& folder) {
  FolderContent content;
  TRY(const std::vector<std::string> names, list_folder(folder, content));
  for (const std::string& name : names) {
    TRY(const bool holds, holds_image(folder / name));
    if (holds) return true;
  }
  return false;
}

Result<FolderContent> look_into(const fs::path& folder) {
  FolderContent content;
  TRY(const std::vector<std::string> names, list_folder(folder, content));
  // What is in them matters only where one is called like a part, and is not looked for otherwise.
  if (std::ranges::none_of(names, is_part_name)) {
    content.top.others.insert(names.begin(), names.end());
    return content;
  }
  for (const std::string& name : names) {
    bool has_folders = false;
    if (is_part_name(name)) {
      TRY(has_folders, has_class_folders(folder / name));
    }
    bool holds = has_folders;
    if (!holds) {
      TRY(holds, holds_image(folder / name));
    }
    if (holds) {
      content.top.add(name, has_folders);
    } else if (is_part_name(name)) {
      content.empty_parts.insert(name);
    }
  }
  return content;
}

// A part without an image, beside others or alone, is one that should have some: it is opened, and
// refused by name. A tar does not tell of it.
void expect_empty_parts(const FolderContent& content, Parts& parts) {
  if (!content.top.others.empty()) return;
  for (const std::string& name : content.empty_parts) {
    if (name == "train") {
      parts.train = name;
      parts.classes_on_top = false;
    } else if (!content.top.labelled.contains(parts.validation)) {
      parts.validation = std::max(parts.validation, name);
    }
  }
}

// The tree of images at `folder`, which holds `content`.
Result<DataSets> open_tree(const fs::path& folder, const FolderContent& content,
                           const std::string& name, const Opening& opening) {
  TRY(Parts parts, tell_parts(content.top, folder.string()));
  expect_empty_parts(content, parts);
  DataSets sets;
  const auto open_part = [&](const std::string& part) {
    return open_image_folder(folder / part, name + " " + part, nullptr, opening.log, opening.clock);
  };
  if (!parts.train.empty()) {
    TRY(sets.train, open_part(parts.train));
  } else if (parts.classes_on_top) {
    const auto left_out = [&](std::string_view other) {
      return content.top.labelled.contains(other) || content.empty_parts.contains(other);
    };
    TRY(sets.train, open_image_folder(folder, name, left_out, opening.log, opening.clock));
  }
  if (!parts.validation.empty()) {
    TRY(sets.val, open_part(parts.validation));
  }
  if (parts.classes_on_top) {
    for (const std::string& empty : content.empty_parts)
      opening.log.warn("data.empty_class", {{"folder", (folder / empty).string()}});
    return sets;
  }
  for (const std::string& bare : content.top.bare) {
    opening.log.warn("data.no_classes", {{"folder", (folder / bare).string()},
                                         {"did", "leaves it out: it has no class folders"}});
  }
  return sets;
}

Result<DataSets> open_folder(const DataSpec& spec, const Opening& opening) {
  const fs::path& folder = spec.paths.front();
  TRY(const FolderContent content, look_into(folder));
  if (!content.any_folder && !content.tars.empty())
    return open_shards(content.tars, spec.text, opening.log, opening.clock);
  // In a tar the folders around all are not told from the place where it was packed: there as here
  // a data set may itself be called like a part.
  if (content.top.labelled.size() == 1 && content.top.others.empty() && content.top.bare.empty() &&
      content.empty_parts.empty()) {
    const fs::path inner = folder / *content.top.labelled.begin();
    TRY(const FolderContent below, look_into(inner));
    if (!below.top.labelled.empty()) return open_tree(inner, below, spec.text, opening);
  }
  return open_tree(folder, content, spec.text, opening);
}

// What one SPEC holds; either part may be null, not both.
Result<DataSets> open_parts(const DataSpec& spec, Log& log, const Clock& clock) {
  switch (spec.kind) {
    case DataKind::idx:
      return open_idx(spec);
    case DataKind::cifar10:
      return open_cifar10(spec);
    case DataKind::folder:
      return open_folder(spec, {log, clock});
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
