#include "training/data/image_folder.h"

#include "node/base/hash.h"
#include "training/data/byte_source.h"
#include "training/data/decode.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

namespace starling::training {

namespace {

namespace fs = std::filesystem;

// Class folders may have folders of their own, but a deeper tree is a mistake.
constexpr int kMaxDepth = 16;

std::unexpected<Error> bad_folder(const fs::path& path, const std::string& what) {
  return fail(Errc::data_failed, Doing::loading_data, path.string() + ": " + what);
}

class ImageFolder final : public Dataset {
 public:
  ImageFolder(fs::path folder, std::string name, std::vector<std::string> classes)
      : folder_(std::move(folder)), name_(std::move(name)), classes_(std::move(classes)) {
    hasher_.add("starling data images");
    for (const std::string& c : classes_) hasher_.add(std::uint64_t{c.size()}).add(c);
  }

  // Adds one class's files, paths relative to the class folder, in order.
  void add(std::uint32_t label, const std::vector<std::pair<std::string, std::uint64_t>>& files) {
    for (const auto& [path, bytes] : files) {
      entries_.push_back({text_.size(), label, static_cast<std::uint32_t>(path.size())});
      text_ += path;
      hasher_.add(std::uint64_t{label}).add(bytes).add(std::uint64_t{path.size()}).add(path);
    }
  }
  void seal() { id_ = hasher_.finish(); }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(entries_.size()); }
  std::uint32_t channels() const override { return 3; }
  std::optional<ImageSize> uniform_size() const override { return std::nullopt; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return name_; }
  Hash id() const override { return id_; }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    out.label = entries_[index].label;
    out.raw.reset();
    TRY(Bytes bytes, read_whole(path_of(index), DecodeLimits{}.max_file_bytes));
    out.bytes = std::move(bytes);
    return {};
  }
  std::string sample_name(std::uint32_t index) const override { return path_of(index).string(); }

 private:
  // The path's text stands in one string for all: a heap block per sample would double the memory.
  struct Entry {
    std::size_t text_at;
    std::uint32_t label;
    std::uint32_t text_size;
  };

  fs::path path_of(std::uint32_t index) const {
    const Entry& entry = entries_[index];
    return folder_ / classes_[entry.label] / text_.substr(entry.text_at, entry.text_size);
  }

  fs::path folder_;
  std::string name_;
  std::vector<std::string> classes_;
  std::string text_;
  std::vector<Entry> entries_;
  Hasher hasher_;
  Hash id_;
};

// Names of the class folders, sorted bytewise.
Result<std::vector<std::string>> find_classes(const fs::path& folder,
                                              const FolderFilter& left_out) {
  std::vector<std::string> classes;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    std::string name = entry->path().filename().string();
    if (name.starts_with('.') || !entry->is_directory(ignored)) continue;
    if (left_out && left_out(name)) continue;
    classes.push_back(std::move(name));
    if (classes.size() > kMaxClasses) {
      return bad_folder(folder, "more than " + std::to_string(kMaxClasses) + " class folders");
    }
  }
  if (error) return bad_folder(folder, error.message());
  std::sort(classes.begin(), classes.end());
  if (classes.size() < 2) {
    return bad_folder(folder, "holds " + std::to_string(classes.size()) +
                                  " class folders; a data set is a folder with one folder of JPEG, "
                                  "PNG or WebP images for each of at least two classes");
  }
  return classes;
}

// Visits the images below `folder` until `visit` says false. Links to files are followed, links to
// folders are not: a loop of them must not multiply the samples.
template <class Visit>
Result<void> visit_images(const fs::path& folder, const Visit& visit) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || entry.depth() >= kMaxDepth) {
      entry.disable_recursion_pending();
      continue;
    }
    if (!has_image_extension(name) || !entry->is_regular_file(ignored)) continue;
    if (!visit(*entry)) return {};
  }
  if (error) return bad_folder(folder, error.message());
  return {};
}

// Images below `folder` with their sizes, paths relative to it, sorted bytewise.
Result<std::vector<std::pair<std::string, std::uint64_t>>> find_images(const fs::path& folder,
                                                                       std::size_t limit,
                                                                       OpeningProgress& progress) {
  std::vector<std::pair<std::string, std::uint64_t>> files;
  bool too_many = false;
  TRY_VOID(visit_images(folder, [&](const fs::directory_entry& entry) {
    too_many = files.size() == limit;
    if (too_many) return false;
    std::error_code ignored;
    const auto bytes = entry.file_size(ignored);
    files.emplace_back(entry.path().lexically_relative(folder).string(),
                       ignored ? 0 : std::uint64_t{bytes});
    progress.found();
    return true;
  }));
  if (too_many) return bad_folder(folder, "more than 2^32 - 1 images");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool has_image_extension(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || name.size() - dot > 5) return false;
  std::string extension(name.substr(dot + 1));
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  constexpr std::array<std::string_view, 4> kKnown{"jpg", "jpeg", "png", "webp"};
  return std::find(kKnown.begin(), kKnown.end(), extension) != kKnown.end();
}

Result<bool> holds_image(const fs::path& folder) {
  bool found = false;
  TRY_VOID(visit_images(folder, [&](const fs::directory_entry&) {
    found = true;
    return false;
  }));
  return found;
}

Result<std::unique_ptr<Dataset>> open_image_folder(const fs::path& folder, std::string name,
                                                   const FolderFilter& left_out, Log& log,
                                                   const Clock& clock) {
  OpeningProgress progress(log, clock, name);
  TRY(std::vector<std::string> classes, find_classes(folder, left_out));
  auto dataset = std::make_unique<ImageFolder>(folder, std::move(name), classes);
  for (std::uint32_t label = 0; label < classes.size(); ++label) {
    const std::size_t room = std::numeric_limits<std::uint32_t>::max() - dataset->size();
    TRY(const auto files, find_images(folder / classes[label], room, progress));
    if (files.empty()) {
      log.warn("data.empty_class", {{"folder", (folder / classes[label]).string()}});
    }
    dataset->add(label, files);
  }
  dataset->seal();
  if (dataset->size() == 0) return bad_folder(folder, "its class folders hold no image");
  return dataset;
}

}  // namespace starling::training
