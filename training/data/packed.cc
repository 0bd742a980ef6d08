#include "training/data/packed.h"

#include "node/base/hash.h"

#include <zlib.h>

#include <algorithm>
#include <functional>
#include <new>
#include <optional>
#include <utility>

namespace starling::training {

namespace {

// A class's name, or the set's, is at most so long.
constexpr std::size_t kMaxName = 4'096;
// Of the index, read at once.
constexpr std::size_t kIndexPiece = kPackedEntryBytes << 15;

std::unexpected<Error> bad_pack(const std::string& file, const std::string& what) {
  return fail(Errc::data_failed, Doing::loading_data,
              file + ": " + what + "; make it again with `starling data pack`");
}

Bytes encode_fields(const PackedHeader& header) {
  Bytes out;
  ByteWriter writer(out);
  writer.append(std::as_bytes(std::span(kPackedMagic)));
  for (const std::uint32_t field :
       {header.version, header.channels, header.classes, header.train, header.val, header.reserved})
    writer.write(field);
  writer.write(header.index_at);
  writer.write(header.index_bytes);
  return out;
}

// The hash of header and index, without the index.
void begin_hash(Hasher& hasher, const PackedHeader& header) {
  hasher.add("starling packed").add(encode_fields(header));
}

void write_name(ByteWriter& writer, const std::string& name) {
  const auto length = std::min(name.size(), kMaxName);
  writer.write(static_cast<std::uint16_t>(length));
  writer.append(as_bytes(std::string_view(name).substr(0, length)));
}

std::optional<std::string> read_name(ByteReader& reader) {
  const auto length = reader.read<std::uint16_t>();
  if (!length || *length > kMaxName) return std::nullopt;
  const auto text = reader.take(*length);
  if (!text) return std::nullopt;
  return std::string(as_text(*text));
}

Result<PackedHeader> read_header(const ByteSource& file) {
  Bytes bytes(kPackedHeaderBytes);
  if (file.size() < bytes.size()) return bad_pack(file.name(), "too short for a packed file");
  TRY_VOID(file.read_at(0, bytes));
  if (!std::ranges::equal(std::span(bytes).first(kPackedMagic.size()),
                          std::as_bytes(std::span(kPackedMagic))))
    return fail(Errc::data_failed, Doing::loading_data,
                file.name() + ": not a packed file; `starling data pack` makes one");
  ByteReader reader(std::span<const std::byte>(bytes).subspan(kPackedMagic.size()));
  PackedHeader header;
  for (std::uint32_t* field : {&header.version, &header.channels, &header.classes, &header.train,
                               &header.val, &header.reserved})
    *field = *reader.read<std::uint32_t>();
  header.index_at = *reader.read<std::uint64_t>();
  header.index_bytes = *reader.read<std::uint64_t>();
  std::ranges::copy(*reader.take(header.hash.bytes.size()), header.hash.bytes.begin());
  if (header.version != kPackedVersion)
    return bad_pack(file.name(),
                    "version " + std::to_string(header.version) + ", this program reads version 1");
  return header;
}

std::uint64_t entry_bytes(const PackedHeader& header) {
  return (std::uint64_t{header.train} + header.val) * std::uint64_t{kPackedEntryBytes};
}

// What can be said of a header before its index is read.
Result<void> check(const PackedHeader& header, const ByteSource& file) {
  if (header.channels != 1 && header.channels != 3)
    return bad_pack(file.name(), std::to_string(header.channels) + " channels");
  if (header.classes == 0 || header.classes > kMaxClasses)
    return bad_pack(file.name(), std::to_string(header.classes) + " classes");
  if (header.train == 0) return bad_pack(file.name(), "no sample for training");
  if (header.index_at < kPackedHeaderBytes || header.index_at > file.size() ||
      header.index_bytes != file.size() - header.index_at)
    return bad_pack(file.name(), "its index is not at its end: cut short, or not finished");
  const std::uint64_t entries = entry_bytes(header);
  if (entries > header.index_bytes)
    return bad_pack(file.name(), "an index too short for its samples");
  // The file's own size vouches for nothing: a sparse one takes no room. Names are short, and each
  // sample has a byte before the index.
  const std::uint64_t names = (std::uint64_t{header.classes} + 1) * (2 + kMaxName);
  if (header.index_bytes - entries > names ||
      entries / kPackedEntryBytes > header.index_at - kPackedHeaderBytes)
    return bad_pack(file.name(), "an index too long for its " + std::to_string(header.classes) +
                                     " classes and the bytes of its samples");
  return {};
}

// Hands `[at, at + bytes)` of the file to `use`, piece by piece: whole entries, if it begins with
// one.
Result<void> for_pieces(const ByteSource& file, std::uint64_t at, std::uint64_t bytes,
                        const std::function<Result<void>(ByteView)>& use) {
  Bytes piece;
  while (bytes > 0) {
    piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kIndexPiece)));
    TRY_VOID(file.read_at(at, piece));
    TRY_VOID(use(piece));
    at += piece.size();
    bytes -= piece.size();
  }
  return {};
}

// Before memory is taken for what the index tells.
Result<void> check_hash(const PackedHeader& header, const ByteSource& file) {
  Hasher hasher;
  begin_hash(hasher, header);
  TRY_VOID(for_pieces(file, header.index_at, header.index_bytes,
                      [&hasher](ByteView piece) -> Result<void> {
                        hasher.add(piece);
                        return {};
                      }));
  if (hasher.finish() != header.hash)
    return bad_pack(file.name(), "header and index do not have their hash");
  return {};
}

std::optional<PackedEntry> read_entry(ByteReader& reader) {
  const auto at = reader.read<std::uint64_t>();
  const auto bytes = reader.read<std::uint32_t>();
  const auto label = reader.read<std::uint32_t>();
  const auto height = reader.read<std::uint16_t>();
  const auto width = reader.read<std::uint16_t>();
  const auto crc = reader.read<std::uint32_t>();
  if (!crc) return std::nullopt;
  return PackedEntry{*at, *bytes, *label, *height, *width, *crc};
}

// The sample's bytes lie between header and index and are as many as its pixels need.
bool is_sound(const PackedEntry& entry, const PackedHeader& header) {
  if (entry.label >= header.classes) return false;
  if (entry.at < kPackedHeaderBytes || entry.at > header.index_at ||
      entry.bytes > header.index_at - entry.at)
    return false;
  if ((entry.height == 0) != (entry.width == 0)) return false;
  if (entry.height == 0) return entry.bytes > 0 && header.channels == 3;
  return entry.bytes == std::uint64_t{entry.height} * entry.width * header.channels;
}

// What stands before the entries.
Result<void> read_names(const ByteSource& file, PackedIndex& index) {
  const PackedHeader& header = index.header;
  Bytes bytes(static_cast<std::size_t>(header.index_bytes - entry_bytes(header)));
  TRY_VOID(file.read_at(header.index_at, bytes));
  ByteReader reader(bytes);
  const auto malformed = [&file] { return bad_pack(file.name(), "a malformed index"); };
  auto origin = read_name(reader);
  if (!origin) return malformed();
  index.origin = std::move(*origin);
  for (std::uint32_t c = 0; c < header.classes; ++c) {
    auto name = read_name(reader);
    if (!name) return malformed();
    index.classes.push_back(std::move(*name));
  }
  if (reader.left() != 0) return malformed();
  return {};
}

Result<void> read_entries(const ByteSource& file, PackedIndex& index) {
  const PackedHeader& header = index.header;
  const std::uint64_t bytes = entry_bytes(header);
  index.entries.reserve(static_cast<std::size_t>(bytes / kPackedEntryBytes));
  const auto use = [&](ByteView piece) -> Result<void> {
    ByteReader reader(piece);
    while (reader.left() > 0) {
      const auto entry = read_entry(reader);
      if (!entry || !is_sound(*entry, header))
        return bad_pack(file.name(),
                        "sample " + std::to_string(index.entries.size()) + " lies outside of it");
      index.entries.push_back(*entry);
    }
    return {};
  };
  return for_pieces(file, header.index_at + header.index_bytes - bytes, bytes, use);
}

// One part of a packed file.
class PackedDataset final : public Dataset {
 public:
  // Owners of `file` and `index`: the two parts.
  PackedDataset(std::shared_ptr<const ByteSource> file, std::shared_ptr<const PackedIndex> index,
                std::string name, std::size_t begin, std::uint32_t size)
      : file_(std::move(file)),
        index_(std::move(index)),
        name_(std::move(name)),
        begin_(begin),
        size_(size) {
    // What was packed and how is told by sizes and checksums: pixels that differ are another set.
    Hasher hasher;
    hasher.add("starling data packed").add(std::uint64_t{size_});
    for (const std::string& name_of_class : index_->classes) hasher.add(name_of_class);
    for (const PackedEntry& entry : entries())
      hasher.add(std::uint64_t{entry.label}).add(std::uint64_t{entry.bytes} << 32 | entry.crc32);
    id_ = hasher.finish();
  }

  std::uint32_t size() const override { return size_; }
  std::uint32_t channels() const override { return index_->header.channels; }
  std::optional<ImageSize> uniform_size() const override {
    const PackedEntry& first = entries().front();
    const bool uniform = std::ranges::all_of(entries(), [&first](const PackedEntry& entry) {
      return entry.height == first.height && entry.width == first.width;
    });
    if (!uniform || first.height == 0) return std::nullopt;
    return ImageSize{first.height, first.width};
  }
  const std::vector<std::string>& class_names() const override { return index_->classes; }
  std::string name() const override { return name_; }
  Hash id() const override { return id_; }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    const PackedEntry& entry = entries()[index];
    out.bytes.resize(entry.bytes);
    TRY_VOID(file_->read_at(entry.at, out.bytes));
    if (crc32_of(out.bytes) != entry.crc32)
      return fail(Errc::corrupt, Doing::loading_data, sample_name(index) + ": wrong checksum");
    out.label = entry.label;
    out.raw.reset();
    if (entry.height > 0)
      out.raw = Sample::Raw{{entry.height, entry.width}, index_->header.channels};
    return {};
  }
  std::string sample_name(std::uint32_t index) const override {
    return file_->name() + ": sample " + std::to_string(begin_ + index);
  }

 private:
  std::span<const PackedEntry> entries() const {
    return std::span(index_->entries).subspan(begin_, size_);
  }

  // Owners: the two parts of the file.
  std::shared_ptr<const ByteSource> file_;
  // Owners: the two parts of the file.
  std::shared_ptr<const PackedIndex> index_;
  std::string name_;
  std::size_t begin_;
  std::uint32_t size_;
  Hash id_;
};

}  // namespace

std::uint32_t crc32_of(ByteView bytes) {
  return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()),
                                              static_cast<z_size_t>(bytes.size())));
}

Hash hash_of(const PackedHeader& header, ByteView index) {
  Hasher hasher;
  begin_hash(hasher, header);
  return hasher.add(index).finish();
}

Bytes encode_header(const PackedHeader& header) {
  Bytes out = encode_fields(header);
  ByteWriter(out).append(header.hash.bytes);
  out.resize(kPackedHeaderBytes);
  return out;
}

Bytes encode_index(const PackedIndex& index) {
  Bytes out;
  ByteWriter writer(out);
  write_name(writer, index.origin);
  for (const std::string& name : index.classes) write_name(writer, name);
  for (const PackedEntry& entry : index.entries) {
    writer.write(entry.at);
    writer.write(entry.bytes);
    writer.write(entry.label);
    writer.write(entry.height);
    writer.write(entry.width);
    writer.write(entry.crc32);
  }
  return out;
}

Result<PackedIndex> read_packed_index(const ByteSource& file) {
  PackedIndex index;
  TRY(index.header, read_header(file));
  TRY_VOID(check(index.header, file));
  TRY_VOID(check_hash(index.header, file));
  try {
    TRY_VOID(read_names(file, index));
    TRY_VOID(read_entries(file, index));
  } catch (const std::bad_alloc&) {
    return fail(Errc::no_memory, Doing::loading_data,
                file.name() + ": no memory left for its index of " +
                    std::to_string(index.header.index_bytes) +
                    " bytes; allow this process more, or pack fewer samples");
  }
  return index;
}

Result<DataSets> open_packed(const DataSpec& spec) {
  TRY(auto file, open_file(spec.paths.front()));
  return open_packed(std::move(file), spec.text);
}

Result<DataSets> open_packed(std::unique_ptr<ByteSource> file, const std::string& name) {
  TRY(PackedIndex read, read_packed_index(*file));
  // Owners: both parts.
  const auto index = std::make_shared<const PackedIndex>(std::move(read));
  const std::shared_ptr<const ByteSource> bytes = std::move(file);
  const auto [train, val] = std::pair(index->header.train, index->header.val);
  DataSets sets;
  sets.train = std::make_unique<PackedDataset>(bytes, index, name + " train", 0, train);
  if (val > 0) sets.val = std::make_unique<PackedDataset>(bytes, index, name + " val", train, val);
  return sets;
}

}  // namespace starling::training
