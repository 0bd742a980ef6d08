#include "gossip/delta/sparse_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace starling::gossip {

namespace {

// Longest stream of any level, in bytes.
constexpr std::size_t kMaxStreamBytes = [] {
  std::size_t most = 0;
  for (std::uint32_t k = 1; k <= kMaxSelected; ++k)
    most = std::max(most, max_stream_bits(Level::l2, k));
  return (most + 7) / 8;
}();

// Appends bits from the lowest bit of each byte upwards; writes whole words, so the output needs
// eight bytes of room behind the end.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* out) : begin_(out), at_(out) {}

  // Units:   count <= 32; the bits of value above count are zero.
  void put(std::uint64_t value, std::uint32_t count) {
    word_ |= value << filled_;
    filled_ += count;
    if (filled_ < 32) return;
    std::memcpy(at_, &word_, 4);
    at_ += 4;
    word_ >>= 32;
    filled_ -= 32;
  }
  std::size_t finish() {
    std::memcpy(at_, &word_, 8);
    at_ += (filled_ + 7) / 8;
    return static_cast<std::size_t>(at_ - begin_);
  }

 private:
  std::uint8_t* begin_;
  std::uint8_t* at_;
  std::uint64_t word_ = 0;
  std::uint32_t filled_ = 0;
};

// A copy of the start of the bytes with zeros behind: words can be loaded at any place that a valid
// stream can reach, and a stream that is cut off reads zeros, which end in a refusal.
class BitReader {
 public:
  explicit BitReader(ByteView bytes) {
    std::memcpy(bytes_.data(), bytes.data(), std::min(bytes.size(), kMaxStreamBytes));
  }

  // At least 57 bits from the place on.
  [[nodiscard]] std::uint64_t word(std::size_t place) const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes_.data() + place / 8, sizeof(word));
    return word >> place % 8;
  }
  [[nodiscard]] std::uint32_t bits(std::size_t place, std::uint32_t count) const {
    return static_cast<std::uint32_t>(word(place) & ((std::uint64_t{1} << count) - 1));
  }

 private:
  // 8 for the last load, 16 for the longest run of zeros that is looked at before it is refused.
  std::array<std::uint8_t, kMaxStreamBytes + 24> bytes_{};
};

// `count` bits from a place on, 64 in a word.
void read_bits(const BitReader& reader, std::size_t place, std::uint32_t count,
               std::span<std::uint64_t> out) {
  for (std::uint32_t done = 0; done < count; done += 32) {
    const std::uint32_t now = std::min(32U, count - done);
    const std::uint64_t half = reader.bits(place + done, now);
    if (done % 64 == 0)
      out[done / 64] = half;
    else
      out[done / 64] |= half << 32;
  }
}

constexpr std::uint32_t kWordBits = 57;

}  // namespace

std::size_t write_stream(Level level, const Selection& selection, std::uint8_t* out) {
  const auto& indices = selection.indices;
  const auto k = static_cast<std::uint32_t>(indices.size());
  const std::uint32_t b = rice_bits(k);
  BitWriter writer(out);
  writer.put(k - 1, count_bits(level));

  std::uint32_t next = 0;
  for (const std::uint32_t index : indices) {
    writer.put((index - next) & ((1U << b) - 1), b);
    next = index + 1;
  }
  next = 0;
  for (const std::uint32_t index : indices) {
    std::uint32_t quotient = (index - next) >> b;
    for (; quotient >= 32; quotient -= 32) writer.put(0, 32);
    writer.put(std::uint64_t{1} << quotient, quotient + 1);
    next = index + 1;
  }
  for (const std::uint16_t index : indices)
    writer.put(std::bit_cast<std::uint32_t>(selection.d[index]) >> 31, 1);
  for (const std::uint16_t index : indices) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(selection.d[index]) & 0x7fffffffU;
    writer.put(bits >= selection.high_from ? 1 : 0, 1);
  }
  return writer.finish();
}

const char* read_stream(ByteView bytes, const StreamBounds& bounds, SparseStream& out) {
  const BitReader reader(bytes);
  const std::uint32_t k = reader.bits(0, count_bits(bounds.level)) + 1;
  const std::uint32_t nominal = nominal_count(bounds.level);
  if (k < std::min(nominal / 2, bounds.real_count) || k > std::min(2 * nominal, bounds.real_count))
    return "number of selected values out of range";
  const std::uint32_t b = rice_bits(k);
  std::size_t remainder_at = count_bits(bounds.level);
  std::size_t place = remainder_at + std::size_t{k} * b;

  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < k; ++i) {
    std::uint32_t quotient = 0;
    std::uint64_t word = reader.word(place);
    while ((word & ((std::uint64_t{1} << kWordBits) - 1)) == 0) {
      quotient += kWordBits;
      if (next + (quotient << b) >= bounds.width) return "index behind the block";
      place += kWordBits;
      word = reader.word(place);
    }
    const auto zeros = static_cast<std::uint32_t>(std::countr_zero(word));
    quotient += zeros;
    const std::uint32_t index = next + (quotient << b) + reader.bits(remainder_at, b);
    if (index >= bounds.width) return "index behind the block";
    out.index[i] = static_cast<std::uint16_t>(index);
    next = index + 1;
    place += zeros + 1;
    remainder_at += b;
  }
  out.count = k;
  read_bits(reader, place, k, out.signs);
  read_bits(reader, place + k, k, out.sizes);
  place += 2 * std::size_t{k};
  out.bytes = (place + 7) / 8;
  if (out.bytes > bytes.size()) return "cut off";
  if (place % 8 != 0 && reader.bits(place, 8 - static_cast<std::uint32_t>(place % 8)) != 0)
    return "bits set behind the last value";
  return nullptr;
}

}  // namespace starling::gossip
