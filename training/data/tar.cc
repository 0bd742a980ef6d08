#include "training/data/tar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

namespace starling::training {

namespace {

constexpr std::uint64_t kBlock = 512;

using Block = std::array<std::byte, kBlock>;

std::string_view field(const Block& block, std::size_t at, std::size_t size) {
  return as_text(ByteView(block).subspan(at, size));
}

std::string_view until_zero(std::string_view text) { return text.substr(0, text.find('\0')); }

// Octal digits with blanks and zeros around them, or GNU's base 256 (first bit set).
std::optional<std::uint64_t> parse_number(std::string_view text) {
  if (!text.empty() && (static_cast<unsigned char>(text[0]) & 0x80U) != 0) {
    std::uint64_t value = static_cast<unsigned char>(text[0]) & 0x7fU;
    for (const char c : text.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;  // larger than any file
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::uint64_t value = 0;
  std::size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '7'; ++digits) {
    value = value << 3 | static_cast<std::uint64_t>(text[digits] - '0');
  }
  text.remove_prefix(digits);
  const bool clean = text.find_first_not_of(std::string_view(" \0", 2)) == std::string_view::npos;
  if (!clean) return std::nullopt;
  return value;
}

// Sum of all bytes with the checksum field as blanks; ancient tars summed signed characters.
bool checksum_matches(const Block& block, std::uint64_t stored) {
  std::uint64_t sum = 0;
  std::int64_t signed_sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool blank = i >= 148 && i < 156;
    const auto value = blank ? std::uint8_t{' '} : std::to_integer<std::uint8_t>(block[i]);
    sum += value;
    signed_sum += static_cast<std::int8_t>(value);
  }
  return sum == stored || (signed_sum >= 0 && static_cast<std::uint64_t>(signed_sum) == stored);
}

std::uint64_t padded(std::uint64_t size) { return (size + kBlock - 1) / kBlock * kBlock; }

}  // namespace

struct TarReader::Header {
  std::uint64_t at = 0;
  char type = '0';
  std::uint64_t size = 0;
  std::string name;
};

// What the headers in front of a member say about it.
struct TarReader::Extensions {
  std::optional<std::string> name;
  std::optional<std::uint64_t> size;
  bool sparse = false;
};

std::unexpected<Error> TarReader::damaged(std::uint64_t at, const std::string& what) const {
  return fail(Errc::data_failed, Doing::loading_data,
              source_.name() + ": at byte " + std::to_string(at) + ": " + what);
}

Result<std::optional<TarReader::Header>> TarReader::read_header() {
  if (at_ == source_.size()) return std::nullopt;
  if (source_.size() - at_ < kBlock) return damaged(at_, "truncated inside a header");
  Block block;
  TRY_VOID(source_.read_at(at_, block));
  if (std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; })) {
    at_ = source_.size();
    return std::nullopt;
  }
  const auto stored = parse_number(field(block, 148, 8));
  if (!stored || !checksum_matches(block, *stored)) {
    return damaged(at_, at_ == 0 ? "not a tar archive" : "damaged header");
  }
  Header header;
  header.at = at_;
  header.type = static_cast<char>(block[156]);
  const auto size = parse_number(field(block, 124, 12));
  if (!size) return damaged(at_, "damaged size");
  header.size = *size;
  header.name = until_zero(field(block, 0, 100));
  // GNU's own format has other things where ustar has the prefix.
  if (field(block, 257, 6) == std::string_view("ustar\0", 6)) {
    const std::string_view prefix = until_zero(field(block, 345, 155));
    if (!prefix.empty()) header.name = std::string(prefix) + "/" + header.name;
  }
  at_ += kBlock;
  return header;
}

Result<std::string> TarReader::read_text(std::uint64_t at, std::uint64_t size,
                                         std::uint64_t limit) const {
  if (size > limit) return damaged(at, "an extension of " + std::to_string(size) + " bytes");
  Bytes bytes(static_cast<std::size_t>(size));
  TRY_VOID(source_.read_at(at, bytes));
  return std::string(as_text(bytes));
}

// PAX records: "<length> <key>=<value>\n", length in decimal over the whole record.
Result<void> TarReader::read_pax(const Header& header, Extensions& extensions) const {
  TRY(const std::string text, read_text(header.at + kBlock, header.size, kMaxTarExtension));
  std::string_view rest = text;
  while (!rest.empty() && rest.front() != '\0') {
    std::size_t length = 0;
    const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<std::size_t>(end - rest.data());
    if (code != std::errc{} || digits == rest.size() || rest[digits] != ' ' ||
        length > rest.size() || length < digits + 2 || rest[length - 1] != '\n') {
      return damaged(header.at, "damaged PAX record");
    }
    const std::string_view record = rest.substr(digits + 1, length - digits - 2);
    rest.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return damaged(header.at, "damaged PAX record");
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    if (key == "path") {
      if (value.size() > kMaxTarName) return damaged(header.at, "a name that is too long");
      extensions.name = std::string(value);
    } else if (key == "size") {
      std::uint64_t size = 0;
      const auto parsed = std::from_chars(value.data(), value.data() + value.size(), size);
      if (parsed.ec != std::errc{} || parsed.ptr != value.data() + value.size()) {
        return damaged(header.at, "damaged PAX size");
      }
      extensions.size = size;
    } else if (key.starts_with("GNU.sparse.")) {
      extensions.sparse = true;
    }
  }
  return {};
}

Result<std::optional<TarMember>> TarReader::next() {
  Extensions extensions;
  std::uint64_t first_header = at_;
  bool extended = false;
  while (true) {
    TRY(std::optional<Header> header, read_header());
    if (!header) {
      if (extended) return damaged(first_header, "truncated after an extension");
      return std::nullopt;
    }
    const bool member = header->type == '0' || header->type == '\0' || header->type == '7';
    if (member && extensions.size) header->size = *extensions.size;
    // Links, devices and folders carry no data whatever their size field says.
    if (header->type >= '1' && header->type <= '6') header->size = 0;
    if (header->size > source_.size() - at_) {
      return damaged(header->at, "truncated: '" + header->name.substr(0, 200) + "' needs " +
                                     std::to_string(header->size) + " bytes, " +
                                     std::to_string(source_.size() - at_) + " are left");
    }
    const std::uint64_t data_at = at_;
    at_ += std::min(padded(header->size), source_.size() - at_);
    switch (header->type) {
      case 'x':
        extended = true;
        TRY_VOID(read_pax(*header, extensions));
        continue;
      case 'L': {
        extended = true;
        TRY(const std::string name, read_text(data_at, header->size, kMaxTarName + 1));
        extensions.name = std::string(until_zero(name));
        continue;
      }
      case 'S':
        return damaged(header->at, "a sparse file, which is not supported");
      case 'g':
      case 'K':
        continue;  // defaults for all members and long link targets: nothing that we use
      default:
        break;
    }
    if (!member) {
      extensions = {};
      extended = false;
      first_header = at_;
      continue;
    }
    if (extensions.sparse) return damaged(header->at, "a sparse file, which is not supported");
    return TarMember{
        .name = extensions.name ? std::move(*extensions.name) : std::move(header->name),
        .header_at = first_header,
        .data_at = data_at,
        .size = header->size};
  }
}

}  // namespace starling::training
