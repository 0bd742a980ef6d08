#include "gossip/consensus/packing.h"

#include "gossip/delta/bits.h"
#include "node/base/check.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace starling::gossip::consensus {
namespace {

// What put_eights() may write behind the packed integers.
constexpr std::size_t kRegister = 64;  // bytes
// Integers that are packed at a time, in memory that stays in the nearest cache. However many bits
// they have, they end with a whole byte.
constexpr std::size_t kTogether = 2048;

// Values of more than kPutBits bits are written and read as a lower half and the rest.
constexpr unsigned kHalf = 32;

// The word that begins at a byte, zeros behind the end.
std::uint64_t word_at(ByteView bytes, std::size_t at) {
  std::uint64_t word = 0;
  if (bytes.size() - at >= sizeof(word))
    std::memcpy(&word, bytes.data() + at, sizeof(word));
  else
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  return word;
}

// The lowest bits of a word as a two's complement integer.
inline std::int64_t extended(std::uint64_t raw, unsigned bits) {
  return static_cast<std::int64_t>(raw << (64 - bits)) >> (64 - bits);
}

// The packed integer that begins at a bit.
std::int64_t unpacked(ByteView packed, std::size_t place, unsigned bits) {
  std::uint64_t raw = word_at(packed, place / 8) >> place % 8;
  if (bits > kPutBits) {
    const std::size_t upper = place + kHalf;
    raw = (raw & 0xffff'ffffU) | word_at(packed, upper / 8) >> upper % 8 << kHalf;
  }
  return extended(raw, bits);
}

// The largest and smallest of some integers and 0.
struct Extremes {
  std::int64_t highest = 0;
  std::int64_t lowest = 0;
};

// Modulo 2^64, because what is too large is refused afterwards.
inline void add(std::int64_t value, std::int64_t& out, Extremes& extremes) {
  extremes.highest = std::max(extremes.highest, value);
  extremes.lowest = std::min(extremes.lowest, value);
  out = static_cast<std::int64_t>(static_cast<std::uint64_t>(out) +
                                  static_cast<std::uint64_t>(value));
}

// Adds n packed integers, each of which begins in a whole word.
STARLING_WIDE void add_words(const std::uint8_t* __restrict packed, unsigned bits,
                             std::int64_t* __restrict out, std::size_t n, Extremes* extremes) {
  Extremes found = *extremes;
  for (std::size_t k = 0; k < n; ++k)
    add(extended(load_bits(packed, k * bits), bits), out[k], found);
  *extremes = found;
}

void put_all(std::span<const std::int64_t> values, unsigned bits, std::byte* out) {
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

#ifdef __x86_64__

// Eight integers of b bits take b bytes, so in each eight the same bytes are in the same places:
// integer k begins in byte k b / 8, at its bit k b mod 8.
constexpr std::size_t kEight = 8;
// Below, two integers that are not neighbours could share a byte.
constexpr unsigned kFewestBits = 8;

#define STARLING_PERMUTES_BYTES [[gnu::target("avx512f,avx512bw,avx512vbmi")]]

// Adds `eights` times eight integers of at most kPutBits bits, each of which begins in a whole
// word.
STARLING_PERMUTES_BYTES void add_eights(const std::uint8_t* packed, unsigned bits,
                                        std::int64_t* out, std::size_t eights, Extremes* extremes) {
  std::array<std::uint8_t, kRegister> from;
  std::array<std::uint64_t, kEight> offsets;
  for (std::size_t k = 0; k < kEight; ++k) {
    offsets[k] = k * bits % 8;
    for (std::size_t byte = 0; byte < 8; ++byte)
      from[8 * k + byte] = static_cast<std::uint8_t>(k * bits / 8 + byte);
  }
  const __m512i source = _mm512_loadu_si512(from.data());
  const __m512i offset = _mm512_loadu_si512(offsets.data());
  const __mmask64 read = ~__mmask64{0} >> (kRegister - ((kEight - 1) * bits / 8 + 8));
  const __m128i sign = _mm_cvtsi32_si128(static_cast<int>(64 - bits));
  __m512i highest = _mm512_setzero_si512();
  __m512i lowest = highest;
  for (std::size_t at = 0; at < eights; ++at, packed += bits, out += kEight) {
    const __m512i bytes = _mm512_maskz_loadu_epi8(read, packed);
    const __m512i raw = _mm512_srlv_epi64(_mm512_permutexvar_epi8(source, bytes), offset);
    const __m512i value = _mm512_sra_epi64(_mm512_sll_epi64(raw, sign), sign);
    highest = _mm512_max_epi64(highest, value);
    lowest = _mm512_min_epi64(lowest, value);
    _mm512_storeu_si512(out, _mm512_add_epi64(_mm512_loadu_si512(out), value));
  }
  extremes->highest = _mm512_reduce_max_epi64(highest);
  extremes->lowest = _mm512_reduce_min_epi64(lowest);
}

// Packs `eights` times eight integers of kFewestBits to kPutBits bits. Integers with even and with
// odd numbers come into their bytes by themselves, because neighbours share one.
STARLING_PERMUTES_BYTES void put_eights(const std::int64_t* values, unsigned bits, std::byte* out,
                                        std::size_t eights) {
  std::array<std::uint64_t, kEight> offsets;
  std::array<std::array<std::uint8_t, kRegister>, 2> from{};
  std::array<__mmask64, 2> covered{};
  for (std::size_t k = 0; k < kEight; ++k) {
    offsets[k] = k * bits % 8;
    const std::size_t first = k * bits / 8;
    for (std::size_t to = first; to <= (k * bits + bits - 1) / 8; ++to) {
      from[k % 2][to] = static_cast<std::uint8_t>(8 * k + to - first);
      covered[k % 2] |= __mmask64{1} << to;
    }
  }
  const __m512i even = _mm512_loadu_si512(from[0].data());
  const __m512i odd = _mm512_loadu_si512(from[1].data());
  const __m512i offset = _mm512_loadu_si512(offsets.data());
  const __m512i mask = _mm512_set1_epi64(static_cast<long long>(~std::uint64_t{0} >> (64 - bits)));
  for (std::size_t at = 0; at < eights; ++at, values += kEight, out += bits) {
    const __m512i value = _mm512_and_si512(_mm512_loadu_si512(values), mask);
    const __m512i raw = _mm512_sllv_epi64(value, offset);
    const __m512i bytes = _mm512_or_si512(_mm512_maskz_permutexvar_epi8(covered[0], even, raw),
                                          _mm512_maskz_permutexvar_epi8(covered[1], odd, raw));
    _mm512_storeu_si512(out, bytes);  // what is too much lies in the room behind
  }
}

#undef STARLING_PERMUTES_BYTES

#endif

// Packs into memory with room for kRegister bytes more.
void pack_into(std::span<const std::int64_t> values, unsigned bits, std::byte* out,
               [[maybe_unused]] bool wide) {
#ifdef __x86_64__
  if (wide && bits >= kFewestBits && bits <= kPutBits) {
    const std::size_t eights = values.size() / kEight;
    put_eights(values.data(), bits, out, eights);
    values = values.subspan(eights * kEight);
    out += eights * bits;
  }
#endif
  put_all(values, bits, out);
}

}  // namespace

bool has_wide_packing() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
#else
  return false;
#endif
}

std::size_t packed_bytes(std::size_t values, unsigned bits) { return (values * bits + 7) / 8; }

Bytes pack(std::span<const std::int64_t> values, unsigned bits) {
  Bytes bytes;
  bytes.reserve(packed_bytes(values.size(), bits));
  append_packed(values, bits, bytes);
  return bytes;
}

void append_packed(std::span<const std::int64_t> values, unsigned bits, Bytes& out, bool wide) {
  STARLING_CHECK(bits >= 1 && bits <= 64);
  // Zeros that a longer vector would begin with are not written first.
  std::array<std::byte, kTogether * sizeof(std::int64_t) + kRegister> room;
  while (!values.empty()) {
    const auto part = values.first(std::min(kTogether, values.size()));
    values = values.subspan(part.size());
    pack_into(part, bits, room.data(), wide);
    const ByteView packed = ByteView(room).first(packed_bytes(part.size(), bits));
    out.insert(out.end(), packed.begin(), packed.end());
  }
}

Result<void> add_packed(ByteView packed, unsigned bits, PackedRange range,
                        std::span<std::int64_t> out, [[maybe_unused]] bool wide) {
  STARLING_CHECK(bits >= 1 && bits <= 64);
  constexpr auto kDoing = Doing::reducing;
  const std::size_t expected = packed_bytes(out.size(), bits);
  if (packed.size() != expected)
    return fail(Errc::bad_message, kDoing,
                std::to_string(packed.size()) + " bytes of packed integers where " +
                    std::to_string(expected) + " belong");
  Extremes extremes;
  // Those that lie in one whole word each, without a question about the end.
  std::size_t k = 0;
  if (bits <= kPutBits && packed.size() >= sizeof(std::uint64_t)) {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(packed.data());
    const std::size_t words =
        std::min(out.size(), (packed.size() - sizeof(std::uint64_t)) * 8 / bits + 1);
#ifdef __x86_64__
    if (wide) {
      k = words / kEight * kEight;
      add_eights(begin, bits, out.data(), words / kEight, &extremes);
    }
#endif
    // k is a multiple of eight, so this begins with a byte.
    add_words(begin + k * bits / 8, bits, out.data() + k, words - k, &extremes);
    k = words;
  }
  for (; k < out.size(); ++k) add(unpacked(packed, k * bits, bits), out[k], extremes);
  const bool too_high = extremes.highest > range.most;
  if (too_high || extremes.lowest < range.least)
    return fail(Errc::bad_message, kDoing,
                "a packed integer of " +
                    std::to_string(too_high ? extremes.highest : extremes.lowest) + " where " +
                    std::to_string(range.least) + " to " + std::to_string(range.most) + " belong");
  const std::size_t over = out.size() * bits % 8;  // bits in the last byte, unless it is full
  if (over != 0 && static_cast<unsigned>(packed.back()) >> over != 0)
    return fail(Errc::bad_message, kDoing, "the filling after the packed integers is not zero");
  return {};
}

}  // namespace starling::gossip::consensus
