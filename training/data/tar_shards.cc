#include "training/data/tar_shards.h"

#include "node/base/hash.h"
#include "training/data/decode.h"
#include "training/data/image_folder.h"
#include "training/data/tar.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace starling::training {

namespace {

// Owners: the training and the validation part, which may lie in the same archives.
using Shards = std::shared_ptr<const std::vector<std::unique_ptr<ByteSource>>>;

// More images than this under one WebDataset key are class folders with dots in their file names.
constexpr std::size_t kMaxPending = 64;
// A class is a small number; more bytes are something else.
constexpr std::uint64_t kMaxClsBytes = 32;

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
  std::string_view folder;     // the last folder, "" at the top
  std::string_view above;      // the folder above it
  std::string_view key;        // everything up to the first dot of the base name
  std::string_view extension;  // after that dot
  std::string_view base;
};

NameParts take_apart(std::string_view name) {
  NameParts parts;
  const std::size_t slash = name.rfind('/');
  parts.base = slash == std::string_view::npos ? name : name.substr(slash + 1);
  const std::size_t dot = parts.base.find('.');
  const std::size_t stem = dot == std::string_view::npos ? parts.base.size() : dot;
  parts.key = name.substr(0, name.size() - parts.base.size() + stem);
  if (dot != std::string_view::npos) parts.extension = parts.base.substr(dot + 1);
  if (slash == std::string_view::npos) return parts;
  const std::string_view path = name.substr(0, slash);
  const std::size_t second = path.rfind('/');
  parts.folder = second == std::string_view::npos ? path : path.substr(second + 1);
  if (second == std::string_view::npos) return parts;
  const std::string_view rest = path.substr(0, second);
  const std::size_t third = rest.rfind('/');
  parts.above = third == std::string_view::npos ? rest : rest.substr(third + 1);
  return parts;
}

enum class Part : std::uint8_t { train, val };

// Collects samples while the shards are walked.
class Indexer {
 public:
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
    return finish_folders(shards, name);
  }

 private:
  struct PlainImage {
    Entry entry;  // its label is a number in order of appearance until finish()
    Part part = Part::train;
  };
  struct Pending {
    PlainImage image;
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
    Pending pending;
    pending.image.entry = {.header_at = member.header_at,
                           .data_at = member.data_at,
                           .size = member.size,
                           .shard = number,
                           .label = 0};
    pending.web_image = parts.extension.find('.') == std::string_view::npos;
    pending.in_folder = !parts.folder.empty();
    if (pending.in_folder) {
      TRY(const std::uint32_t folder, class_number(shard, parts.folder));
      pending.image.entry.label = folder;
      if (is_validation_name(parts.above)) pending.image.part = Part::val;
    }
    pending_.push_back(pending);
    return {};
  }

  Result<std::uint32_t> class_number(const ByteSource& shard, std::string_view folder) {
    const auto found = folders_.find(folder);
    if (found != folders_.end()) return found->second;
    if (folders_.size() == kMaxClasses) {
      return bad_shard(shard.name(), "more than " + std::to_string(kMaxClasses) + " folders");
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
        image->image.entry.label = *cls_;
        web_.push_back(image->image.entry);
      }
    } else {
      for (const Pending& pending : pending_) {
        if (pending.in_folder) {
          plain_.push_back(pending.image);
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

  Result<DataSets> finish_folders(const Shards& shards, const std::string& name) {
    // A map is sorted: the new label of a folder is its place in it.
    std::vector<std::string> names;
    std::vector<std::uint32_t> label_of(folders_.size());
    for (const auto& [folder, number] : folders_) {
      label_of[number] = static_cast<std::uint32_t>(names.size());
      names.push_back(folder);
    }
    std::vector<Entry> train;
    std::vector<Entry> val;
    for (PlainImage& image : plain_) {
      image.entry.label = label_of[image.entry.label];
      (image.part == Part::train ? train : val).push_back(image.entry);
    }
    plain_.clear();
    DataSets sets;
    if (!train.empty()) {
      sets.train = std::make_unique<TarDataset>(shards, name + " train", names, std::move(train));
    }
    if (!val.empty()) {
      sets.val = std::make_unique<TarDataset>(shards, name + " val", names, std::move(val));
    }
    return sets;
  }

  std::string key_;
  std::vector<Pending> pending_;
  std::optional<std::uint32_t> cls_;
  std::vector<Entry> web_;
  std::vector<PlainImage> plain_;
  std::map<std::string, std::uint32_t, std::less<>> folders_;
  std::size_t skipped_ = 0;
};

}  // namespace

Result<DataSets> open_tar_shards(std::vector<std::unique_ptr<ByteSource>> shards,
                                 const std::string& name, Log& log) {
  // Owners: see Shards.
  const Shards shared =
      std::make_shared<const std::vector<std::unique_ptr<ByteSource>>>(std::move(shards));
  Indexer indexer;
  for (std::uint32_t number = 0; number < shared->size(); ++number) {
    TRY_VOID(indexer.walk(*(*shared)[number], number));
  }
  return indexer.finish(shared, name, log);
}

}  // namespace starling::training
