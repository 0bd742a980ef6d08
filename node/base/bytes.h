// Byte buffers, and bounds-checked reading and writing of little-endian numbers.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

// Bytes that nobody changes any more: the edge that may have to send them again, the session that
// sends them and the codec job that reads them own them together.
using SharedBytes = std::shared_ptr<const Bytes>;

static_assert(std::endian::native == std::endian::little,
              "Starling runs on little-endian machines");

[[nodiscard]] inline ByteView as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
[[nodiscard]] inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
[[nodiscard]] inline SharedBytes share(Bytes bytes) {
  // Owners: whoever got a copy of the pointer, see SharedBytes.
  return std::make_shared<const Bytes>(std::move(bytes));
}
[[nodiscard]] inline Bytes to_bytes(ByteView view) { return {view.begin(), view.end()}; }

// Asks the system for pages of 2 MiB where [data, data + bytes) covers whole ones: a page fault
// each instead of 512. Nobody has to grant it. Cost: a system call; memory is taken when it is
// touched, 2 MiB at a time.
void prefer_huge_pages(void* data, std::size_t bytes);

// Lower-case hexadecimal, two characters a byte.
[[nodiscard]] std::string to_hex(ByteView bytes);
// The bytes of a hexadecimal text; nothing if a character or the length is wrong.
[[nodiscard]] std::optional<Bytes> from_hex(std::string_view text);

// Reads little-endian numbers and spans from a buffer it does not own. Every read says whether it
// was possible; after the first impossible one all further reads fail as well.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

  template <class T>
    requires std::is_arithmetic_v<T>
  [[nodiscard]] std::optional<T> read() {
    const auto raw = take(sizeof(T));
    if (!raw) return std::nullopt;
    T value;
    std::memcpy(&value, raw->data(), sizeof(T));
    return value;
  }

  [[nodiscard]] std::optional<ByteView> take(std::size_t count) {
    if (failed_ || count > bytes_.size() - at_) {
      failed_ = true;
      return std::nullopt;
    }
    const auto view = bytes_.subspan(at_, count);
    at_ += count;
    return view;
  }

  [[nodiscard]] std::size_t left() const { return failed_ ? 0 : bytes_.size() - at_; }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  ByteView bytes_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

// Appends little-endian numbers and spans to a buffer it does not own.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}

  template <class T>
    requires std::is_arithmetic_v<T>
  void write(T value) {
    // Not insert(): g++ 12 sees an overflow in it that is not there.
    const auto at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }

  void append(ByteView bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

 private:
  Bytes& out_;
};

}  // namespace starling
