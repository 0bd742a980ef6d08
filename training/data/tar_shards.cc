#include "training/data/tar_shards.h"

#include "node/base/hash.h"
#include "training/data/decode.h"
#include "training/data/image_folder.h"
#include "training/data/parts.h"
#include "training/data/tar.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::training {

namespace {

// Owners: the training and the validation part, which may lie in the same archives.
using Shards = std::shared_ptr<const std::vector<std::unique_ptr<ByteSource>>>;

// More images than this under one WebDataset key are class folders with dots in their file names.
constexpr std::size_t kMaxPending = 64;
// A class is a small number; more bytes are something else.
constexpr std::uint64_t kMaxClsBytes = 32;
// Folders of images, and their names in all; those in class folders are no classes, so there may be
// more than these. Taken apart a name takes up to sixteen times its size for a moment.
constexpr std::size_t kMaxFolders = 1U << 20;
constexpr std::size_t kMaxFolderBytes = std::size_t{64} << 20;

std::unexpected<Error> bad_shard(const std::string& name, const std::string& what) {
  return fail(Errc::data_failed, Doing::loading_data, name + ": " + what);
}

struct Entry {
  std::uint64_t header_at = 0;
  std::uint64_t data_at = 0;
  std::uint64_t size = 0;
  std::uint32_t shard = 0;
  std::uint32_t label = 0;
};

class TarDataset final : public Dataset {
 public:
  TarDataset(Shards shards, std::string name, std::vector<std::string> classes,
             std::vector<Entry> entries)
      : shards_(std::move(shards)),
        name_(std::move(name)),
        classes_(std::move(classes)),
        entries_(std::move(entries)) {
    Hasher hasher;
    hasher.add("starling data tar");
    for (const std::string& c : classes_) hasher.add(std::uint64_t{c.size()}).add(c);
    for (const Entry& entry : entries_) hasher.add(std::uint64_t{entry.label}).add(entry.size);
    id_ = hasher.finish();
  }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(entries_.size()); }
  std::uint32_t channels() const override { return 3; }
  std::optional<ImageSize> uniform_size() const override { return std::nullopt; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return name_; }
  Hash id() const override { return id_; }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    const Entry& entry = entries_[index];
    if (entry.size > DecodeLimits{}.max_file_bytes) {
      return bad_shard(sample_name(index), std::to_string(entry.size) + " bytes are too many");
    }
    out.label = entry.label;
    out.raw.reset();
    out.bytes.resize(static_cast<std::size_t>(entry.size));
    return (*shards_)[entry.shard]->read_at(entry.data_at, out.bytes);
  }

  // Names are not kept (a million of them take 50 MB): the header is read again.
  std::string sample_name(std::uint32_t index) const override {
    const Entry& entry = entries_[index];
    const ByteSource& shard = *(*shards_)[entry.shard];
    auto member = TarReader(shard, entry.header_at).next();
    if (!member || !*member) return shard.name() + ": byte " + std::to_string(entry.header_at);
    return shard.name() + ": " + (*member)->name;
  }

 private:
  Shards shards_;
  std::string name_;
  std::vector<std::string> classes_;
  std::vector<Entry> entries_;
  Hash id_;
};

// A member's name taken apart.
struct NameParts {
  std::string folder;          // without `.` and doubled slashes; "" at the top
  std::string_view key;        // everything up to the first dot of the base name
  std::string_view extension;  // after that dot
  std::string_view base;
};

using Path = std::vector<std::string_view>;

// Its components but for `.`, which tar writes in front where it packed a folder from inside.
Path path_of(std::string_view folder) {
  Path path;
  while (!folder.empty()) {
    const std::string_view name = folder.substr(0, folder.find('/'));
    folder.remove_prefix(std::min(name.size() + 1, folder.size()));
    if (!name.empty() && name != ".") path.push_back(name);
  }
  return path;
}

NameParts take_apart(std::string_view name) {
  NameParts parts;
  const std::size_t slash = name.rfind('/');
  parts.base = slash == std::string_view::npos ? name : name.substr(slash + 1);
  const std::size_t dot = parts.base.find('.');
  const std::size_t stem = dot == std::string_view::npos ? parts.base.size() : dot;
  parts.key = name.substr(0, name.size() - parts.base.size() + stem);
  if (dot != std::string_view::npos) parts.extension = parts.base.substr(dot + 1);
  if (slash == std::string_view::npos) return parts;
  for (const std::string_view component : path_of(name.substr(0, slash))) {
    if (!parts.folder.empty()) parts.folder += '/';
    parts.folder += component;
  }
  return parts;
}

enum class Part : std::uint8_t { train, val };

// What the images in a folder are.
struct FolderPlace {
  std::string_view class_name;  // "" where the folder lies above the classes
  Part part = Part::train;
};

// How many components all paths begin with.
std::size_t shared_depth(const std::vector<Path>& paths) {
  if (paths.empty()) return 0;
  const Path& first = paths.front();
  std::size_t depth = first.size();
  for (const Path& path : paths) {
    const auto differ = std::ranges::mismatch(first, path).in1;
    depth = std::min(depth, static_cast<std::size_t>(differ - first.begin()));
  }
  return depth;
}

// Which component names the class: the first in which paths differ, or `of_one` where fewer than
// two classes would lie there.
std::size_t class_depth(const std::vector<Path>& paths, std::size_t of_one) {
  const std::size_t depth = shared_depth(paths);
  std::string_view one;
  for (const Path& path : paths) {
    if (path.size() <= depth) continue;
    if (!one.empty() && path[depth] != one) return depth;
    one = path[depth];
  }
  return of_one;
}

// Which component names the part: the first below what all share, where that holds parts. Otherwise
// everything may lie in one, whose class is below.
std::optional<std::size_t> find_part(const Path& path, std::size_t shared, const Parts& parts) {
  if (!parts.train.empty() || !parts.validation.empty()) {
    const bool inside = path.size() > shared + 1 &&
                        (path[shared] == parts.train || path[shared] == parts.validation);
    return inside ? std::optional(shared) : std::nullopt;
  }
  for (std::size_t at = std::min(shared, path.size() - 1); at-- > 0;) {
    if (is_part_name(path[at])) return at;
  }
  return std::nullopt;
}

// The folders below what all share, or the last of it where that is all there is.
TopFolders top_of(const std::vector<Path>& folders, std::size_t shared) {
  TopFolders top;
  for (const Path& folder : folders) {
    if (folder.size() > shared) top.add(folder[shared], folder.size() > shared + 1);
  }
  if (folders.size() == 1 && !find_part(folders.front(), shared, {}))
    top.add(folders.front().back(), false);
  return top;
}

// What each folder is, known only once all are: class folders may have folders of their own, and
// lie in others. As a folder on disk (parts.h), as far as a list of files tells.
Result<std::vector<FolderPlace>> places_of(const std::vector<Path>& folders,
                                           const std::string& data) {
  const std::size_t shared = shared_depth(folders);
  const TopFolders top = top_of(folders, shared);
  TRY(const Parts parts, tell_parts(top, data));
  std::vector<std::optional<std::size_t>> part_at;
  std::vector<Path> in_parts;  // from below the part
  std::vector<Path> outside;
  // Beside parts only classes count: no test set for later, and no image that lies in between.
  const auto passed_over = [&](const Path& folder) {
    if (top.labelled.empty()) return false;
    return !parts.classes_on_top || folder.size() <= shared || is_part_name(folder[shared]);
  };
  for (const Path& folder : folders) {
    part_at.push_back(find_part(folder, shared, parts));
    if (part_at.back()) {
      const auto below = static_cast<std::ptrdiff_t>(*part_at.back() + 1);
      in_parts.emplace_back(folder.begin() + below, folder.end());
    } else if (!passed_over(folder)) {
      outside.push_back(folder);
    }
  }
  const std::size_t depth_in_part = class_depth(in_parts, 0);
  const std::size_t top_outside = shared_depth(outside);
  const std::size_t depth_outside = class_depth(outside, top_outside > 0 ? top_outside - 1 : 0);
  std::vector<FolderPlace> places(folders.size());
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const Path& folder = folders[i];
    if (!part_at[i] && passed_over(folder)) continue;
    const std::size_t at = part_at[i] ? *part_at[i] + 1 + depth_in_part : depth_outside;
    if (at >= folder.size()) continue;
    // Images beside the class folders of the one part.
    if (!part_at[i] && top.labelled.empty() && !in_parts.empty()) continue;
    places[i].class_name = folder[at];
    if (part_at[i] && is_validation_name(folder[*part_at[i]])) places[i].part = Part::val;
  }
  return places;
}

// A map is sorted: the label of a class is its place in it.
using LabelOf = std::map<std::string_view, std::uint32_t>;

// The classes of the training part, or of the validation part where it is alone.
Result<LabelOf> number_classes(const std::vector<FolderPlace>& places, const std::string& name) {
  LabelOf train;
  LabelOf val;
  for (const FolderPlace& place : places) {
    if (place.class_name.empty()) continue;
    (place.part == Part::train ? train : val).emplace(place.class_name, 0);
  }
  LabelOf& classes = train.empty() ? val : train;
  if (classes.size() > kMaxClasses)
    return bad_shard(name, "more than " + std::to_string(kMaxClasses) + " class folders");
  std::uint32_t next = 0;
  for (auto& [class_name, label] : classes) label = next++;
  for (const auto& entry : val) {
    if (classes.contains(entry.first)) continue;
    return bad_shard(name + " val", "class '" + std::string(entry.first) + "' is not among the " +
                                        std::to_string(classes.size()) + " classes of " + name +
                                        " train");
  }
  return std::move(classes);
}

// Collects samples while the shards are walked.
class Indexer {
 public:
  explicit Indexer(OpeningProgress& progress) : progress_(progress) {}

  Result<void> walk(const ByteSource& shard, std::uint32_t number) {
    TarReader reader(shard);
    while (true) {
      TRY(const std::optional<TarMember> member, reader.next());
      if (!member) break;
      TRY_VOID(add(shard, number, *member));
    }
    return flush(shard);
  }

  Result<DataSets> finish(const Shards& shards, const std::string& name, Log& log) {
    if (!web_.empty()) {
      if (skipped_ + plain_.size() > 0) {
        log.warn("data.incomplete_samples", {{"data", name}, {"count", skipped_ + plain_.size()}});
      }
      return finish_web(shards, name);
    }
    if (plain_.empty()) {
      return bad_shard(name,
                       "no sample found: neither WebDataset samples (KEY.jpg with KEY.cls) nor "
                       "images in class folders");
    }
    return finish_folders(shards, name, log);
  }

 private:
  struct Pending {
    Entry entry;
    bool in_folder = false;
    bool web_image = false;  // KEY.jpg, not KEY.mask.jpg
  };

  Result<void> add(const ByteSource& shard, std::uint32_t number, const TarMember& member) {
    const NameParts parts = take_apart(member.name);
    if (parts.base.starts_with('.')) return {};
    const bool image = has_image_extension(parts.base);
    const bool cls = parts.extension == "cls";
    if (!image && !cls) return {};
    if (parts.key != key_ || pending_.size() >= kMaxPending) {
      TRY_VOID(flush(shard));
      key_ = parts.key;
    }
    if (cls) {
      TRY(const std::uint32_t label, read_cls(shard, member));
      cls_ = label;
      return {};
    }
    progress_.found();
    Pending pending;
    pending.entry = {.header_at = member.header_at,
                     .data_at = member.data_at,
                     .size = member.size,
                     .shard = number,
                     .label = 0};
    pending.web_image = parts.extension.find('.') == std::string_view::npos;
    pending.in_folder = !parts.folder.empty();
    if (pending.in_folder) {
      TRY(const std::uint32_t folder, folder_number(shard, parts.folder));
      pending.entry.label = folder;
    }
    pending_.push_back(pending);
    return {};
  }

  Result<std::uint32_t> folder_number(const ByteSource& shard, std::string_view folder) {
    const auto found = folders_.find(folder);
    if (found != folders_.end()) return found->second;
    folder_bytes_ += folder.size();
    if (folders_.size() == kMaxFolders || folder_bytes_ > kMaxFolderBytes) {
      return bad_shard(shard.name(), "more than " + std::to_string(kMaxFolders) + " folders, or " +
                                         std::to_string(kMaxFolderBytes) + " bytes of their names");
    }
    const auto number = static_cast<std::uint32_t>(folders_.size());
    folders_.emplace(std::string(folder), number);
    return number;
  }

  static Result<std::uint32_t> read_cls(const ByteSource& shard, const TarMember& member) {
    Bytes bytes(static_cast<std::size_t>(std::min(member.size, kMaxClsBytes)));
    TRY_VOID(shard.read_at(member.data_at, bytes));
    std::string_view text = as_text(bytes);
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
      text.remove_suffix(1);
    }
    std::uint32_t label = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), label);
    if (code != std::errc{} || end != text.data() + text.size() || label >= kMaxClasses) {
      return bad_shard(shard.name(), member.name + ": its class is not a number below " +
                                         std::to_string(kMaxClasses));
    }
    return label;
  }

  // Ends the sample in work.
  Result<void> flush(const ByteSource& shard) {
    if (plain_.size() + web_.size() + pending_.size() > std::numeric_limits<std::uint32_t>::max()) {
      return bad_shard(shard.name(), "more than 2^32 - 1 samples");
    }
    if (cls_) {
      const auto image = std::find_if(pending_.begin(), pending_.end(),
                                      [](const Pending& p) { return p.web_image; });
      if (image == pending_.end()) {
        ++skipped_;
      } else {
        image->entry.label = *cls_;
        web_.push_back(image->entry);
      }
    } else {
      for (const Pending& pending : pending_) {
        if (pending.in_folder) {
          plain_.push_back(pending.entry);
        } else {
          ++skipped_;
        }
      }
    }
    pending_.clear();
    cls_.reset();
    key_.clear();
    return {};
  }

  Result<DataSets> finish_web(const Shards& shards, const std::string& name) {
    std::uint32_t classes = 2;
    for (const Entry& entry : web_) classes = std::max(classes, entry.label + 1);
    std::vector<std::string> names;
    for (std::uint32_t c = 0; c < classes; ++c) names.push_back(std::to_string(c));
    DataSets sets;
    sets.train =
        std::make_unique<TarDataset>(shards, name, std::move(names), std::exchange(web_, {}));
    return sets;
  }

  Result<DataSets> finish_folders(const Shards& shards, const std::string& name, Log& log) {
    std::vector<Path> folders(folders_.size());
    for (const auto& [folder, number] : folders_) folders[number] = path_of(folder);
    TRY(const std::vector<FolderPlace> places, places_of(folders, name));
    TRY(const LabelOf label_of, number_classes(places, name));
    std::vector<std::string> names;
    for (const auto& entry : label_of) names.emplace_back(entry.first);
    std::vector<Entry> train;
    std::vector<Entry> val;
    for (Entry& image : plain_) {
      const FolderPlace& place = places[image.label];
      if (place.class_name.empty()) {
        ++skipped_;
        continue;
      }
      image.label = label_of.find(place.class_name)->second;
      (place.part == Part::train ? train : val).push_back(image);
    }
    plain_.clear();
    if (skipped_ > 0) log.warn("data.incomplete_samples", {{"data", name}, {"count", skipped_}});
    DataSets sets;
    if (!train.empty()) {
      sets.train = std::make_unique<TarDataset>(shards, name + " train", names, std::move(train));
    }
    if (!val.empty()) {
      sets.val = std::make_unique<TarDataset>(shards, name + " val", names, std::move(val));
    }
    return sets;
  }

  OpeningProgress& progress_;
  std::string key_;
  std::vector<Pending> pending_;
  std::optional<std::uint32_t> cls_;
  std::vector<Entry> web_;
  std::vector<Entry> plain_;  // in folders; the label is the folder's number until finish()
  std::map<std::string, std::uint32_t, std::less<>> folders_;
  std::size_t folder_bytes_ = 0;
  std::size_t skipped_ = 0;
};

}  // namespace

Result<DataSets> open_tar_shards(std::vector<std::unique_ptr<ByteSource>> shards,
                                 const std::string& name, Log& log, const Clock& clock) {
  // Owners: see Shards.
  const Shards shared =
      std::make_shared<const std::vector<std::unique_ptr<ByteSource>>>(std::move(shards));
  OpeningProgress progress(log, clock, name);
  Indexer indexer(progress);
  for (std::uint32_t number = 0; number < shared->size(); ++number) {
    TRY_VOID(indexer.walk(*(*shared)[number], number));
  }
  return indexer.finish(shared, name, log);
}

}  // namespace starling::training
