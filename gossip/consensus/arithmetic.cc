#include "gossip/consensus/arithmetic.h"

#include "gossip/delta/bits.h"
#include "node/base/check.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

namespace starling::gossip::consensus {
namespace {

// Values of more than kPutBits bits are written and read as a lower half and the rest.
constexpr unsigned kHalf = 32;

// 2^power, of a normal number.
double power_of_two(int power) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(power + 1023) << 52);
}

// The word that begins at a byte, zeros behind the end.
std::uint64_t word_at(ByteView bytes, std::size_t at) {
  std::uint64_t word = 0;
  if (bytes.size() - at >= sizeof(word))
    std::memcpy(&word, bytes.data() + at, sizeof(word));
  else
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  return word;
}

// The packed integer that begins at a bit.
std::int64_t unpacked(ByteView packed, std::size_t place, unsigned bits) {
  std::uint64_t raw = word_at(packed, place / 8) >> place % 8;
  if (bits > kPutBits) {
    const std::size_t upper = place + kHalf;
    raw = (raw & 0xffff'ffffU) | word_at(packed, upper / 8) >> upper % 8 << kHalf;
  }
  return static_cast<std::int64_t>(raw << (64 - bits)) >> (64 - bits);  // sign extension
}

// The largest of |values| by its bits.
STARLING_WIDE std::uint32_t largest_bits(const float* values, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t k = 0; k < n; ++k) largest = std::max(largest, abs_bits(values[k]));
  return largest;
}

// out += weight * round(values * scale). A double of 2^52 and above has no fraction, so adding
// 1.5 * 2^52 rounds as llrint() does, and the integer, of 32 bits, lies in the lowest ones.
STARLING_WIDE void add_scaled(const float* __restrict values, double scale, std::uint32_t weight,
                              std::int64_t* __restrict out, std::size_t n) {
  constexpr double kWhole = 0x1.8p52;
  for (std::size_t k = 0; k < n; ++k) {
    const double rounded = static_cast<double>(values[k]) * scale + kWhole;
    const std::int64_t whole =
        std::bit_cast<std::int64_t>(rounded) - std::bit_cast<std::int64_t>(kWhole);
    out[k] += whole * static_cast<std::int64_t>(weight);
  }
}

STARLING_WIDE void scale_down(const std::int64_t* __restrict z, double scale, float* __restrict out,
                              std::size_t n) {
  for (std::size_t k = 0; k < n; ++k)
    out[k] = static_cast<float>(static_cast<double>(z[k]) * scale);
}

// Adds n packed integers, each of which begins in a whole word; returns one that is above
// `largest`, or 0.
STARLING_WIDE std::int64_t add_words(const std::uint8_t* __restrict packed, unsigned bits,
                                     std::int64_t largest, std::int64_t* __restrict out,
                                     std::size_t n) {
  std::int64_t highest = 0;
  std::int64_t lowest = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const std::uint64_t raw = load_bits(packed, k * bits);
    const std::int64_t value = static_cast<std::int64_t>(raw << (64 - bits)) >> (64 - bits);
    highest = std::max(highest, value);
    lowest = std::min(lowest, value);
    // Modulo 2^64, because what is too large is refused afterwards.
    out[k] = static_cast<std::int64_t>(static_cast<std::uint64_t>(out[k]) +
                                       static_cast<std::uint64_t>(value));
  }
  if (highest > largest) return highest;
  return lowest < -largest ? lowest : 0;
}

// Rounds a / b half away from zero; b >= 1.
std::int64_t divide_away(std::int64_t a, std::uint64_t b) {
  const bool negative = a < 0;
  // Two's complement: the magnitude of INT64_MIN is representable without a sign.
  const std::uint64_t magnitude =
      negative ? 0 - static_cast<std::uint64_t>(a) : static_cast<std::uint64_t>(a);
  std::uint64_t quotient = magnitude / b;
  const std::uint64_t rest = magnitude % b;
  if (rest >= b - rest) ++quotient;
  return negative ? static_cast<std::int64_t>(0 - quotient) : static_cast<std::int64_t>(quotient);
}

}  // namespace

std::uint8_t block_exponent(std::span<const float> values) {
  return static_cast<std::uint8_t>(largest_bits(values.data(), values.size()) >> 23);
}

void add_quantized(std::span<const float> values, FixedPoint point, std::uint32_t weight,
                   std::span<std::int64_t> out) {
  STARLING_CHECK_OP(values.size(), ==, out.size());
  // 2^(f - e) lies between 2^-104 and 2^156, so scaling is one exact multiplication in double.
  const int e = static_cast<int>(point.exponent) - kExponentBias;
  add_scaled(values.data(), power_of_two(point.fraction - e), weight, out.data(), values.size());
}

std::int64_t divide_rounded(std::int64_t sum, std::uint64_t weight) {
  STARLING_CHECK(weight >= 1);
  return divide_away(sum, weight);
}

float dequantize(std::int64_t z, FixedPoint point) {
  const int e = static_cast<int>(point.exponent) - kExponentBias;
  return static_cast<float>(static_cast<double>(z) * power_of_two(e - point.fraction));
}

void dequantize(std::span<const std::int64_t> z, FixedPoint point, std::span<float> out) {
  STARLING_CHECK_OP(z.size(), ==, out.size());
  const int e = static_cast<int>(point.exponent) - kExponentBias;
  scale_down(z.data(), power_of_two(e - point.fraction), out.data(), z.size());
}

void pack_into(std::span<const std::int64_t> values, unsigned bits, std::byte* out) {
  STARLING_CHECK(bits >= 1 && bits <= 64);
  BitWriter writer(reinterpret_cast<std::uint8_t*>(out));
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - bits);
  if (bits <= kPutBits / 2) {
    // Two at a time, because each put waits for the one before.
    std::size_t k = 0;
    for (; k + 1 < values.size(); k += 2)
      writer.put((static_cast<std::uint64_t>(values[k]) & mask) |
                     (static_cast<std::uint64_t>(values[k + 1]) & mask) << bits,
                 2 * bits);
    if (k < values.size()) writer.put(static_cast<std::uint64_t>(values[k]) & mask, bits);
    return;
  }
  for (const std::int64_t value : values) {
    const std::uint64_t raw = static_cast<std::uint64_t>(value) & mask;
    if (bits <= kPutBits) {
      writer.put(raw, bits);
    } else {
      writer.put(raw & 0xffff'ffffU, kHalf);
      writer.put(raw >> kHalf, bits - kHalf);
    }
  }
}

Bytes pack(std::span<const std::int64_t> values, unsigned bits) {
  const std::size_t size = (values.size() * bits + 7) / 8;
  Bytes bytes(size + kPackingRoom);
  pack_into(values, bits, bytes.data());
  bytes.resize(size);
  return bytes;
}

Result<void> add_packed(ByteView packed, unsigned bits, std::int64_t largest,
                        std::span<std::int64_t> out) {
  STARLING_CHECK(bits >= 1 && bits <= 64);
  constexpr auto kDoing = Doing::reducing;
  const std::size_t total = out.size() * bits;
  const std::size_t expected = (total + 7) / 8;
  if (packed.size() != expected)
    return fail(Errc::bad_message, kDoing,
                std::to_string(packed.size()) + " bytes of packed integers where " +
                    std::to_string(expected) + " belong");
  std::int64_t too_large = 0;
  // Those that lie in one whole word each, without a question about the end.
  std::size_t k = 0;
  if (bits <= kPutBits && packed.size() >= sizeof(std::uint64_t)) {
    k = std::min(out.size(), (packed.size() - sizeof(std::uint64_t)) * 8 / bits + 1);
    too_large = add_words(reinterpret_cast<const std::uint8_t*>(packed.data()), bits, largest,
                          out.data(), k);
  }
  for (; k < out.size(); ++k) {
    const std::int64_t value = unpacked(packed, k * bits, bits);
    if (value > largest || value < -largest) too_large = value;
    out[k] = static_cast<std::int64_t>(static_cast<std::uint64_t>(out[k]) +
                                       static_cast<std::uint64_t>(value));
  }
  if (too_large != 0)
    return fail(Errc::bad_message, kDoing,
                "a packed integer of " + std::to_string(too_large) + " where " +
                    std::to_string(largest) + " is the most");
  if (total % 8 != 0 && static_cast<unsigned>(packed.back()) >> total % 8 != 0)
    return fail(Errc::bad_message, kDoing, "the filling after the packed integers is not zero");
  return {};
}

float moment_about(float mean, float variance, float common_mean) {
  const double away = static_cast<double>(mean) - static_cast<double>(common_mean);
  return static_cast<float>(static_cast<double>(variance) + away * away);
}

}  // namespace starling::gossip::consensus
