#include "gossip/delta/sparse_stream.h"

#include "gossip/delta/bits.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

namespace starling::gossip {

namespace {

// Longest stream of any level, in bytes.
constexpr std::size_t kMaxStreamBytes = [] {
  std::size_t most = 0;
  for (std::uint32_t k = 1; k <= kMaxSelected; ++k)
    most = std::max(most, max_stream_bits(Level::l2, k));
  return (most + 7) / 8;
}();

// Most zeros in a row of quotients: they stand for a share of 4,095 each.
constexpr std::uint32_t most_quotient_zeros(std::uint32_t b) {
  return (static_cast<std::uint32_t>(kBlock) - 1) >> b;
}
// Longest row of quotients, in bits: a one for every index besides the zeros.
constexpr std::size_t kMaxQuotientBits = [] {
  std::uint32_t most = 0;
  for (std::uint32_t k = 1; k <= kMaxSelected; ++k)
    most = std::max(most, k + most_quotient_zeros(rice_bits(k)));
  return std::size_t{most};
}();

// Bytes of which words can be loaded at any place that a valid stream can reach. Near their end
// that is a copy with zeros behind: a stream that is cut off reads those, which end in a refusal.
class BitReader {
 public:
  explicit BitReader(ByteView bytes) {
    if (bytes.size() >= copy_.size()) {
      bytes_ = reinterpret_cast<const std::uint8_t*>(bytes.data());
      return;
    }
    copy_.fill(0);
    if (!bytes.empty()) std::memcpy(copy_.data(), bytes.data(), bytes.size());
    bytes_ = copy_.data();
  }
  BitReader(const BitReader&) = delete;
  BitReader& operator=(const BitReader&) = delete;

  // The byte that the place is in; 16 bytes from there on can be read wherever a stream may end.
  [[nodiscard]] const std::uint8_t* at(std::size_t place) const { return bytes_ + place / 8; }
  // The `count` bits from the place on, 57 at most.
  [[nodiscard]] std::uint64_t bits(std::size_t place, std::uint32_t count) const {
    return load_bits(bytes_, place) & ((std::uint64_t{1} << count) - 1);
  }

 private:
  // 8 for the last load, 16 for the longest run of zeros that is looked at before it is refused.
  std::array<std::uint8_t, kMaxStreamBytes + 24> copy_;  // not filled where it is not needed
  const std::uint8_t* bytes_;
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

// The places of the ones in a row of quotients.
class OnePlaces {
 public:
  // How many ones there are among the `count` bits from `place` on, and perhaps some behind.
  std::uint32_t find(const Kernels& kernels, const BitReader& reader, std::size_t place,
                     std::uint32_t count) {
    std::uint32_t copied = 0;
    for (; copied < count; copied += kPutBits) {
      const std::uint64_t word = reader.bits(place + copied, kPutBits);
      std::memcpy(row_.data() + copied / 8, &word, sizeof(word));
    }
    return kernels.ones(row_.data(), (copied + 15) / 16 * 16, places_.data());
  }
  [[nodiscard]] std::uint32_t at(std::uint32_t i) const { return places_[i]; }
  [[nodiscard]] const std::uint16_t* data() const { return places_.data(); }

 private:
  static constexpr std::size_t kBits = (kMaxQuotientBits + kPutBits + 31) / 16 * 16;
  std::array<std::uint8_t, kBits / 8 + 8> row_;
  std::array<std::uint16_t, kBits + 16> places_;
};

constexpr std::uint32_t kNoPlace = std::numeric_limits<std::uint32_t>::max();

// The place of the k-th one of a row of quotients, from 1, or none if `count` bits have fewer.
// Wide, as what follows, because plain processors do not count ones.
STARLING_WIDE std::uint32_t place_of_one(const std::uint8_t* bytes, std::size_t place,
                                         std::uint32_t count, std::uint32_t k) {
  for (std::uint32_t passed = 0; passed < count; passed += kPutBits) {
    std::uint64_t word = load_bits(bytes, place + passed) & ((std::uint64_t{1} << kPutBits) - 1);
    const auto here = static_cast<std::uint32_t>(std::popcount(word));
    if (here < k) {
      k -= here;
      continue;
    }
    for (; k > 1; --k) word &= word - 1;
    return passed + static_cast<std::uint32_t>(std::countr_zero(word));
  }
  return kNoPlace;
}

// The sum of `count` numbers of b bits each, 1 to 57: the ones of each binary digit, counted in as
// many numbers as a word holds.
STARLING_WIDE std::uint32_t sum_of_numbers(const std::uint8_t* bytes, std::size_t place,
                                           std::uint32_t count, std::uint32_t b) {
  const std::uint32_t together = 57 / b;
  std::uint64_t lowest = 0;
  for (std::uint32_t i = 0; i < together; ++i) lowest |= std::uint64_t{1} << i * b;
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < count; i += together) {
    const std::uint32_t now = std::min(together, count - i);
    const std::uint64_t word =
        load_bits(bytes, place + std::size_t{i} * b) & ((std::uint64_t{1} << now * b) - 1);
    for (std::uint32_t digit = 0; digit < b; ++digit)
      sum += static_cast<std::uint32_t>(std::popcount(word >> digit & lowest)) << digit;
  }
  return sum;
}

// The gaps of a stream: how many there are, how their bits are divided, and where each kind is.
struct GapBits {
  std::uint32_t k = 0;
  std::uint32_t b = 0;
  std::size_t remainders = 0;
  std::size_t quotients = 0;

  [[nodiscard]] std::uint32_t longest_row() const { return k + most_quotient_zeros(b); }
  // From the sum of all remainders and the place of the last one in the row of quotients: the zeros
  // before the i-th one are the sum of the quotients up to there, so an index is that sum 2^b
  // times, the sum of the remainders and i.
  [[nodiscard]] std::uint32_t last_index(std::uint32_t sum, std::uint32_t end) const {
    return ((end - (k - 1)) << b) + sum + k - 1;
  }
};

const char* find_gaps(const BitReader& reader, const StreamBounds& bounds, GapBits& out) {
  const std::size_t start = count_bits(bounds.level);
  const std::uint32_t k = static_cast<std::uint32_t>(reader.bits(0, count_bits(bounds.level))) + 1;
  const std::uint32_t nominal = nominal_count(bounds.level);
  if (k < std::min(nominal / 2, bounds.real_count) || k > std::min(2 * nominal, bounds.real_count))
    return "number of selected values out of range";
  const std::uint32_t b = rice_bits(k);
  out = {.k = k, .b = b, .remainders = start, .quotients = start + std::size_t{k} * b};
  return nullptr;
}

constexpr const char* kBehindBlock = "index behind the block";

// What is wrong with the end of a stream whose last bit is before `end`.
const char* check_end(const BitReader& reader, std::size_t end, ByteView bytes) {
  if ((end + 7) / 8 > bytes.size()) return "cut off";
  if (end % 8 != 0 && reader.bits(end, 8 - static_cast<std::uint32_t>(end % 8)) != 0)
    return "bits set behind the last value";
  return nullptr;
}

// Where indices go, and what is needed next.
struct JoinTo {
  std::uint16_t* indices;
  std::span<const float> soon;
};

// The indices, from the ones of the quotients; returns the sum of the remainders.
std::uint32_t join(const Kernels& kernels, const BitReader& reader, const GapBits& gaps,
                   const OnePlaces& ones, const JoinTo& to) {
  // As many as memory can be asked for between.
  constexpr std::uint32_t kTogether = 32;
  const auto offset = static_cast<std::uint32_t>(gaps.remainders % 8);
  if (gaps.b > kMostGapBits) {  // one or two values
    return scalar_kernels().join_gaps(reader.at(gaps.remainders), {offset, gaps.b, 0, gaps.k, 0},
                                      ones.data(), to.indices);
  }
  Ahead ahead(to.soon, (gaps.k + kTogether - 1) / kTogether);
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < gaps.k; i += kTogether) {
    ahead.step();
    sum = kernels.join_gaps(reader.at(gaps.remainders),
                            {offset, gaps.b, i, std::min(i + kTogether, gaps.k), sum}, ones.data(),
                            to.indices);
  }
  return sum;
}

// Four numbers of b <= 11 bits as 4 b bits, the first lowest.
std::uint64_t joined(const std::uint16_t* four, std::uint32_t b) {
  std::uint64_t word = 0;
  std::memcpy(&word, four, sizeof(word));
  word = (word & 0x0000'ffff'0000'ffffU) | (word & 0xffff'0000'ffff'0000U) >> (16 - b);
  return (word & 0xffff'ffffU) | word >> 32 << 2 * b;
}

}  // namespace

std::size_t write_stream(const Kernels& kernels, Level level, const Selection& selection,
                         std::uint8_t* out) {
  const auto k = static_cast<std::uint32_t>(selection.indices.size());
  const std::uint32_t b = rice_bits(k);
  std::array<std::uint16_t, kMaxSelected + 8> cut;
  std::array<std::uint16_t, kMaxSelected + 8> places;
  kernels.cut_gaps(selection.indices.data(), k, b, {cut.data(), places.data()});
  BitWriter writer(out);
  writer.put(k - 1, count_bits(level));
  const std::uint16_t* remainders = cut.data();
  if (8 * b <= kPutBits) {
    for (std::uint32_t i = 0; i < k; i += 8)
      writer.put(joined(remainders + i, b) | joined(remainders + i + 4, b) << 4 * b,
                 std::min(8U, k - i) * b);
  } else {
    for (std::uint32_t i = 0; i < k; i += 4)
      writer.put(joined(remainders + i, b), std::min(4U, k - i) * b);
  }
  // A byte for each bit: stores that do not wait for each other.
  std::array<std::uint8_t, kMaxQuotientBits + 16> flags;
  const std::uint32_t quotient_bits = places[k - 1] + 1U;
  const std::size_t padded = (quotient_bits + 15) / 16 * 16;
  std::memset(flags.data(), 0, padded);
  for (std::uint32_t i = 0; i < k; ++i) flags[places[i]] = 1;
  std::array<std::uint8_t, kMaxQuotientBits / 8 + 16> quotients;
  kernels.pack_flags(flags.data(), padded, quotients.data());
  writer.put_all(quotients.data(), quotient_bits);
  writer.put_all(selection.signs, k);
  writer.put_all(selection.sizes, k);
  return writer.finish();
}

std::uint32_t selected_count(Level level, ByteView bytes) {
  return static_cast<std::uint32_t>(BitReader(bytes).bits(0, count_bits(level))) + 1;
}

const char* read_stream(const Kernels& kernels, ByteView bytes, const StreamBounds& bounds,
                        SparseStream& out, std::span<const float> soon) {
  const BitReader reader(bytes);
  GapBits gaps;
  if (const char* wrong = find_gaps(reader, bounds, gaps)) return wrong;
  const std::uint32_t k = gaps.k;
  OnePlaces ones;
  if (ones.find(kernels, reader, gaps.quotients, gaps.longest_row()) < k) return kBehindBlock;
  const std::uint32_t sum = join(kernels, reader, gaps, ones, {out.index.data(), soon});
  // Indices rise, so that only the last needs a look.
  if (gaps.last_index(sum, ones.at(k - 1)) >= bounds.width) return kBehindBlock;
  const std::size_t signs = gaps.quotients + ones.at(k - 1) + 1;
  const std::size_t end = signs + 2 * std::size_t{k};
  out.count = k;
  out.bytes = (end + 7) / 8;
  read_bits(reader, signs, k, out.signs);
  read_bits(reader, signs + k, k, out.sizes);
  return check_end(reader, end, bytes);
}

const char* check_stream(ByteView bytes, const StreamBounds& bounds, std::size_t& length) {
  const BitReader reader(bytes);
  GapBits gaps;
  if (const char* wrong = find_gaps(reader, bounds, gaps)) return wrong;
  const std::uint32_t last = place_of_one(reader.at(0), gaps.quotients, gaps.longest_row(), gaps.k);
  if (last == kNoPlace) return kBehindBlock;
  const std::uint32_t sum = sum_of_numbers(reader.at(0), gaps.remainders, gaps.k, gaps.b);
  if (gaps.last_index(sum, last) >= bounds.width) return kBehindBlock;
  const std::size_t end = gaps.quotients + last + 1 + 2 * std::size_t{gaps.k};
  length = (end + 7) / 8;
  return check_end(reader, end, bytes);
}

}  // namespace starling::gossip
