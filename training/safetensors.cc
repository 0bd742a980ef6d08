#include "training/safetensors.h"

#include "node/base/check.h"
#include "training/file_io.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace starling::training {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array kDTypes{
    DTypeRow{DType::f64, "F64", 8}, DTypeRow{DType::f32, "F32", 4},
    DTypeRow{DType::f16, "F16", 2}, DTypeRow{DType::bf16, "BF16", 2},
    DTypeRow{DType::i64, "I64", 8}, DTypeRow{DType::i32, "I32", 4},
    DTypeRow{DType::i16, "I16", 2}, DTypeRow{DType::i8, "I8", 1},
    DTypeRow{DType::u8, "U8", 1},   DTypeRow{DType::boolean, "BOOL", 1},
};
static_assert([] {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}());

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::size_t kMaxMetadataText = 65'536;

std::unexpected<Error> corrupt_tensors(std::string what) {
  return fail(Errc::corrupt, Doing::reading_file, "safetensors: " + std::move(what));
}

// The JSON that a header is made of: objects with text keys, texts, and arrays of whole numbers.
// Anything else is refused where it stands.
class HeaderScanner {
 public:
  explicit HeaderScanner(std::string_view text) : text_(text) {}

  // Skips white space; then whether the next character is `wanted`, which is consumed.
  bool take(char wanted) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  [[nodiscard]] Result<void> expect(char wanted) {
    if (take(wanted)) return {};
    return corrupt_tensors(std::string("expected '") + wanted + "' at byte " + std::to_string(at_) +
                           " of the header");
  }

  [[nodiscard]] Result<std::string> text(std::size_t max) {
    TRY_VOID(expect('"'));
    std::string out;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) break;
      if (c != '\\') {
        out.push_back(c);
      } else {
        TRY_VOID(escape(out));
      }
      if (out.size() > max) return corrupt_tensors("a text is longer than " + std::to_string(max));
    }
    return corrupt_tensors("a text does not end");
  }

  // A whole number without sign, leading zero or exponent.
  [[nodiscard]] Result<std::uint64_t> number() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    std::uint64_t value = 0;
    const auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (problem != std::errc{}) {
      return corrupt_tensors("no whole number at byte " + std::to_string(at_) + " of the header");
    }
    const auto length = static_cast<std::size_t>(end - rest.data());
    if (length > 1 && rest.front() == '0') return corrupt_tensors("a number with a leading zero");
    at_ += length;
    return value;
  }

  [[nodiscard]] Result<std::vector<std::uint64_t>> numbers(std::size_t max) {
    TRY_VOID(expect('['));
    std::vector<std::uint64_t> out;
    if (take(']')) return out;
    do {
      if (out.size() == max) return corrupt_tensors("an array of more than " + std::to_string(max));
      TRY(const std::uint64_t value, number());
      out.push_back(value);
    } while (take(','));
    TRY_VOID(expect(']'));
    return out;
  }

  [[nodiscard]] bool at_end() {
    skip_space();
    return at_ == text_.size();
  }

 private:
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  [[nodiscard]] Result<void> escape(std::string& out) {
    if (at_ >= text_.size()) return corrupt_tensors("an escape does not end");
    const char c = text_[at_++];
    constexpr std::string_view kShort = "\"\\/bfnrt";
    constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
    if (const auto index = kShort.find(c); index != std::string_view::npos) {
      out.push_back(kMeaning[index]);
      return {};
    }
    if (c != 'u' || text_.size() - at_ < 4)
      return corrupt_tensors("an escape that JSON does not know");
    std::uint32_t code = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, problem] = std::from_chars(begin, begin + 4, code, 16);
    // Pairs of surrogates would name characters beyond 16 bits: nobody names a tensor so.
    if (problem != std::errc{} || end != begin + 4 || (code >= 0xd800 && code <= 0xdfff)) {
      return corrupt_tensors("an escape \\u that is no character");
    }
    at_ += 4;
    append_utf8(out, code);
    return {};
  }

  static void append_utf8(std::string& out, std::uint32_t code) {
    const auto push = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      push(code);
    } else if (code < 0x800) {
      push(0xc0 | (code >> 6));
      push(0x80 | (code & 0x3f));
    } else {
      push(0xe0 | (code >> 12));
      push(0x80 | ((code >> 6) & 0x3f));
      push(0x80 | (code & 0x3f));
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The product of the sizes and the element's bytes; nothing if it does not fit in 63 bits.
std::optional<std::uint64_t> size_in_bytes(DType dtype, std::span<const std::int64_t> shape) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t total = bytes_of(dtype);
  for (const std::int64_t size : shape) {
    const auto factor = static_cast<std::uint64_t>(size);
    if (factor != 0 && total > kMax / factor) return std::nullopt;
    total *= factor;
  }
  return total;
}

Result<std::map<std::string, std::string>> scan_metadata(HeaderScanner& scan) {
  std::map<std::string, std::string> metadata;
  TRY_VOID(scan.expect('{'));
  if (scan.take('}')) return metadata;
  do {
    TRY(std::string key, scan.text(kMaxSafetensorsName));
    TRY_VOID(scan.expect(':'));
    TRY(std::string value, scan.text(kMaxMetadataText));
    if (!metadata.emplace(std::move(key), std::move(value)).second) {
      return corrupt_tensors("a metadata key appears twice");
    }
  } while (scan.take(','));
  TRY_VOID(scan.expect('}'));
  return metadata;
}

// Which of the three keys of a tensor were seen.
struct SeenKeys {
  bool dtype = false;
  bool shape = false;
  bool offsets = false;
};

Result<void> scan_tensor_key(HeaderScanner& scan, TensorEntry& entry, SeenKeys& seen) {
  TRY(const std::string key, scan.text(kMaxSafetensorsName));
  TRY_VOID(scan.expect(':'));
  if (key == "dtype" && !std::exchange(seen.dtype, true)) {
    TRY(const std::string name, scan.text(kMaxSafetensorsName));
    const auto* row = std::ranges::find(kDTypes, name, &DTypeRow::name);
    if (row == kDTypes.end()) return corrupt_tensors("tensor " + entry.name + " has dtype " + name);
    entry.dtype = row->dtype;
    return {};
  }
  if (key == "shape" && !std::exchange(seen.shape, true)) {
    TRY(const auto sizes, scan.numbers(kMaxSafetensorsRank));
    for (const std::uint64_t size : sizes) {
      if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return corrupt_tensors("tensor " + entry.name + " has a size beyond 63 bits");
      }
      entry.shape.push_back(static_cast<std::int64_t>(size));
    }
    return {};
  }
  if (key == "data_offsets" && !std::exchange(seen.offsets, true)) {
    TRY(const auto offsets, scan.numbers(2));
    if (offsets.size() != 2)
      return corrupt_tensors("tensor " + entry.name + " has no two data_offsets");
    entry.begin = offsets[0];
    entry.end = offsets[1];
    return {};
  }
  return corrupt_tensors("tensor " + entry.name + " has the key " + key + " twice or without need");
}

Result<TensorEntry> scan_tensor(HeaderScanner& scan, std::string name) {
  TensorEntry entry;
  entry.name = std::move(name);
  SeenKeys seen;
  TRY_VOID(scan.expect('{'));
  do {
    TRY_VOID(scan_tensor_key(scan, entry, seen));
  } while (scan.take(','));
  TRY_VOID(scan.expect('}'));
  if (!seen.dtype || !seen.shape || !seen.offsets) {
    return corrupt_tensors("tensor " + entry.name + " lacks dtype, shape or data_offsets");
  }
  const auto bytes = size_in_bytes(entry.dtype, entry.shape);
  if (entry.begin > entry.end || !bytes || *bytes != entry.end - entry.begin) {
    return corrupt_tensors("tensor " + entry.name + " has another size than its shape");
  }
  return entry;
}

// Sorts by place and checks that the tensors tile the data exactly.
Result<void> check_tiling(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != at) {
      return corrupt_tensors("tensor " + tensor.name + " starts at " +
                             std::to_string(tensor.begin) + ", expected " + std::to_string(at) +
                             " (a hole or an overlap)");
    }
    at = tensor.end;
  }
  if (at != data_bytes) {
    return corrupt_tensors("the tensors end at " + std::to_string(at) + " but the file holds " +
                           std::to_string(data_bytes) + " bytes of data");
  }
  return {};
}

Result<void> check_names(const std::vector<TensorEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end())
    return corrupt_tensors("tensor " + std::string(*twice) + " appears twice");
  return {};
}

void append_json_text(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      out += "\\u00";
      out.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
      out.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

std::string format_header(const std::vector<TensorEntry>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  std::string out = "{";
  if (!metadata.empty()) {
    out += "\"__metadata__\":{";
    for (bool first = true; const auto& [key, value] : metadata) {
      if (!std::exchange(first, false)) out.push_back(',');
      append_json_text(out, key);
      out.push_back(':');
      append_json_text(out, value);
    }
    out += "}";
  }
  for (const TensorEntry& tensor : tensors) {
    if (out.size() > 1) out.push_back(',');
    append_json_text(out, tensor.name);
    out += ":{\"dtype\":\"" + std::string(name_of(tensor.dtype)) + "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      out += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
    }
    out += "],\"data_offsets\":[" + std::to_string(tensor.begin) + "," +
           std::to_string(tensor.end) + "]}";
  }
  out += "}";
  // The data starts on a multiple of 8, so that a reader may map it.
  out.append((8 - out.size() % 8) % 8, ' ');
  return out;
}

}  // namespace

std::string_view name_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }
std::uint64_t bytes_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].bytes; }

Result<SafetensorsHeader> parse_safetensors_header(ByteView prefix, std::uint64_t file_bytes) {
  ByteReader reader(prefix);
  const auto length = reader.read<std::uint64_t>();
  if (!length || file_bytes < kLengthBytes) return corrupt_tensors("shorter than its length field");
  if (*length > kMaxSafetensorsHeader || *length > file_bytes - kLengthBytes) {
    return corrupt_tensors("a header of " + std::to_string(*length) + " bytes in a file of " +
                           std::to_string(file_bytes));
  }
  const auto text = reader.take(static_cast<std::size_t>(*length));
  if (!text) return corrupt_tensors("the header is cut off");

  SafetensorsHeader header;
  header.data_start = kLengthBytes + *length;
  HeaderScanner scan(as_text(*text));
  bool metadata_seen = false;
  TRY_VOID(scan.expect('{'));
  if (!scan.take('}')) {
    do {
      TRY(std::string name, scan.text(kMaxSafetensorsName));
      TRY_VOID(scan.expect(':'));
      if (name == "__metadata__") {
        if (std::exchange(metadata_seen, true))
          return corrupt_tensors("__metadata__ appears twice");
        TRY(header.metadata, scan_metadata(scan));
        continue;
      }
      if (header.tensors.size() == kMaxSafetensorsTensors)
        return corrupt_tensors("too many tensors");
      TRY(TensorEntry entry, scan_tensor(scan, std::move(name)));
      header.tensors.push_back(std::move(entry));
    } while (scan.take(','));
    TRY_VOID(scan.expect('}'));
  }
  if (!scan.at_end()) return corrupt_tensors("something follows the header's object");
  TRY_VOID(check_names(header.tensors));
  TRY_VOID(check_tiling(header.tensors, file_bytes - header.data_start));
  return header;
}

Result<SafetensorsHeader> read_safetensors_header(const std::filesystem::path& path) {
  TRY(const FilePrefix prefix, read_prefix(path, kLengthBytes + kMaxSafetensorsHeader));
  auto header = parse_safetensors_header(prefix.bytes, prefix.file_bytes);
  if (!header) return corrupt_tensors(path.string() + ": " + header.error().detail);
  return header;
}

SafetensorsFile::SafetensorsFile(Bytes bytes, SafetensorsHeader header)
    : bytes_(std::move(bytes)), header_(std::move(header)) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

Result<SafetensorsFile> SafetensorsFile::read(const std::filesystem::path& path,
                                              std::uint64_t max_bytes) {
  TRY(Bytes bytes, read_whole_file(path, max_bytes));
  auto file = parse(std::move(bytes));
  if (!file) return corrupt_tensors(path.string() + ": " + file.error().detail);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(Bytes bytes) {
  TRY(SafetensorsHeader header, parse_safetensors_header(bytes, bytes.size()));
  return SafetensorsFile(std::move(bytes), std::move(header));
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

ByteView SafetensorsFile::data(const TensorEntry& tensor) const {
  return ByteView(bytes_).subspan(static_cast<std::size_t>(header_.data_start + tensor.begin),
                                  static_cast<std::size_t>(tensor.end - tensor.begin));
}

struct SafetensorsWriter::Impl {
  Impl(OutputFile output, std::vector<TensorEntry> entries, Hasher* sum)
      : file(std::move(output)), tensors(std::move(entries)), hasher(sum) {}

  Result<void> write(ByteView bytes) {
    if (hasher != nullptr) hasher->add(bytes);
    return file.write(bytes);
  }

  OutputFile file;
  std::vector<TensorEntry> tensors;
  std::size_t next = 0;
  Hasher* hasher;
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept = default;

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, std::vector<TensorEntry> tensors,
    const std::map<std::string, std::string>& metadata, Hasher* hasher) {
  std::uint64_t at = 0;
  for (TensorEntry& tensor : tensors) {
    const auto bytes = size_in_bytes(tensor.dtype, tensor.shape);
    STARLING_CHECK(bytes.has_value());
    tensor.begin = at;
    at += *bytes;
    tensor.end = at;
  }
  const std::string header = format_header(tensors, metadata);
  Bytes start;
  ByteWriter(start).write(static_cast<std::uint64_t>(header.size()));
  ByteWriter(start).append(as_bytes(header));

  TRY(OutputFile file, OutputFile::create(path));
  auto impl = std::make_unique<Impl>(std::move(file), std::move(tensors), hasher);
  TRY_VOID(impl->write(start));
  return SafetensorsWriter(std::move(impl));
}

Result<void> SafetensorsWriter::append(ByteView bytes) {
  STARLING_CHECK(impl_->next < impl_->tensors.size());
  const TensorEntry& tensor = impl_->tensors[impl_->next++];
  STARLING_CHECK_OP(bytes.size(), ==, tensor.end - tensor.begin);
  return impl_->write(bytes);
}

Result<void> SafetensorsWriter::finish() {
  STARLING_CHECK_OP(impl_->next, ==, impl_->tensors.size());
  return impl_->file.close_durably();
}

}  // namespace starling::training
