#include "gossip/consensus/arithmetic.h"

#include "node/base/check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

namespace starling::gossip::consensus {
namespace {

__extension__ using Wide = unsigned __int128;

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
  std::uint32_t largest = 0;
  for (const float value : values)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  return static_cast<std::uint8_t>(largest >> 23);
}

void add_quantized(std::span<const float> values, std::uint8_t exponent, std::uint32_t weight,
                   std::span<std::int64_t> out) {
  STARLING_CHECK_OP(values.size(), ==, out.size());
  // 2^(30 - e) lies between 2^-98 and 2^156, so scaling is one exact multiplication in double:
  // llrint(value * scale) is llrint(ldexp(value, 30 - e)).
  const double scale =
      std::ldexp(1.0, kFractionBits - (static_cast<int>(exponent) - kExponentBias));
  const auto factor = static_cast<std::int64_t>(weight);
  for (std::size_t k = 0; k < values.size(); ++k)
    out[k] += factor * std::llrint(static_cast<double>(values[k]) * scale);
}

std::int64_t divide_rounded(std::int64_t sum, std::uint64_t weight) {
  STARLING_CHECK(weight >= 1);
  return divide_away(sum, weight);
}

float dequantize(std::int64_t z, std::uint8_t exponent) {
  const int e = static_cast<int>(exponent) - kExponentBias;
  return static_cast<float>(std::ldexp(static_cast<double>(z), e - kFractionBits));
}

Bytes pack(std::span<const std::int64_t> values, unsigned bits) {
  STARLING_CHECK(bits >= 1 && bits <= 64);
  Bytes bytes((values.size() * bits + 7) / 8);
  const std::uint64_t mask = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  Wide pending = 0;
  unsigned filled = 0;
  std::size_t at = 0;
  for (const std::int64_t value : values) {
    pending |= static_cast<Wide>(static_cast<std::uint64_t>(value) & mask) << filled;
    filled += bits;
    for (; filled >= 8; filled -= 8) {
      bytes[at++] = static_cast<std::byte>(pending & 0xff);
      pending >>= 8;
    }
  }
  if (filled > 0) bytes[at] = static_cast<std::byte>(pending & 0xff);
  return bytes;
}

Result<void> add_packed(ByteView packed, unsigned bits, std::int64_t largest,
                        std::span<std::int64_t> out) {
  STARLING_CHECK(bits >= 1 && bits <= 64);
  constexpr auto kDoing = Doing::reducing;
  const std::size_t expected = (out.size() * bits + 7) / 8;
  if (packed.size() != expected)
    return fail(Errc::bad_message, kDoing,
                std::to_string(packed.size()) + " bytes of packed integers where " +
                    std::to_string(expected) + " belong");
  Wide pending = 0;
  unsigned filled = 0;
  std::size_t at = 0;
  std::int64_t farthest = 0;
  for (auto& sum : out) {
    for (; filled < bits; filled += 8)
      pending |= static_cast<Wide>(static_cast<std::uint8_t>(packed[at++])) << filled;
    const auto raw = static_cast<std::uint64_t>(pending) << (64 - bits);
    const auto value = static_cast<std::int64_t>(raw) >> (64 - bits);  // sign extension
    pending >>= bits;
    filled -= bits;
    if (value > largest || value < -largest) {
      farthest = value;
      break;
    }
    sum += value;
  }
  if (farthest != 0)
    return fail(Errc::bad_message, kDoing,
                "a packed integer of " + std::to_string(farthest) + " where " +
                    std::to_string(largest) + " is the most");
  if (pending != 0)
    return fail(Errc::bad_message, kDoing, "the filling after the packed integers is not zero");
  return {};
}

float moment_about(float mean, float variance, float common_mean) {
  const double away = static_cast<double>(mean) - static_cast<double>(common_mean);
  return static_cast<float>(static_cast<double>(variance) + away * away);
}

}  // namespace starling::gossip::consensus
