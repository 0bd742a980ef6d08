// BlockCoder: one crew makes the bytes of one block, at any level.
//
// The twin of gossip::BlockEncoder, and the same bytes: sums are sums of integers, every fp32
// operation that reaches a byte is one rounding, and where the CPU sorts, digits of the largest
// magnitudes are counted. What differs is the order in which |d|^2 is summed (a figure for the
// level controller, equal to some 1e-13). The format is described in gossip/delta/codec.h.
#pragma once

#include "gossip/delta/centroids.h"
#include "training/cuda/block_shape.h"
#include "training/cuda/crew.h"
#include "training/cuda/sgd.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace starling::training::cuda {

// Words that hold the bits of any sparse block.
inline constexpr std::uint32_t kStreamWords = 128;
static_assert([] {
  for (std::uint32_t k = 1; k <= gossip::kMaxSelected; ++k)
    if (gossip::count_bits(gossip::Level::l2) + gossip::max_index_bits(k) + 2 * k >
        kStreamWords * 32)
      return false;
  return true;
}());

// What the crew shares while it encodes a block: some 27 KB.
struct CoderMemory {
  alignas(16) float d[gossip::kBlock];
  std::uint32_t counts[2'048];         // of digits; the largest of sixteen values each
  std::uint32_t stream[kStreamWords];  // bits of a sparse block
  std::uint16_t indices[gossip::kMaxSelected];
  std::uint16_t scales[kMostGroups];
  std::uint32_t places[kMostGroups];   // where a group's codes begin
  std::uint32_t squares[kMostGroups];  // of a group's codes
  std::uint32_t digit;
  std::uint32_t above;
  std::uint32_t cut;
};

// What load() found. `largest` >= 0x7f800000: some d is not finite.
struct CoderFacts {
  std::uint32_t largest = 0;  // bits of the largest |d|
  double energy = 0;          // |d|^2
};

// What encode() wrote.
struct CoderBytes {
  std::uint32_t size = 0;
  double sent_energy = 0;
};

// Lives in a kernel, a copy in every thread: all members have the same values in all of them.
template <class Crew>
class BlockCoder {
 public:
  STARLING_DEVICE BlockCoder(Crew& crew, CoderMemory& memory, const BlockShape& shape)
      : crew_(crew), m_(memory), shape_(shape) {}

  // Takes d = x - r, both aligned to 16 bytes; r null is zero.
  STARLING_DEVICE CoderFacts load(const float* x, const float* r) {
    using Four = Pack<float, 4>;
    const auto* const x_packs = reinterpret_cast<const Four*>(x);
    const auto* const r_packs = reinterpret_cast<const Four*>(r);
    std::uint32_t largest = 0;  // of this thread's
    facts_.energy = crew_.template sum<double>(shape_.width / 4, [&](std::uint32_t i) {
      Four d = x_packs[i];
      const Four beside = r == nullptr ? Four{} : r_packs[i];
      double energy = 0;
      for (std::uint32_t k = 0; k < 4; ++k) {
        d.at[k] = shape_.is_real(4 * i + k) ? d.at[k] - beside.at[k] : 0.0F;
        energy += gossip::square(d.at[k]);
        const std::uint32_t size = std::bit_cast<std::uint32_t>(d.at[k]) & 0x7fff'ffffU;
        largest = size > largest ? size : largest;
      }
      reinterpret_cast<Four*>(m_.d)[i] = d;
      return energy;
    });
    facts_.largest = crew_.largest_of(largest);
    return facts_;
  }

  // Writes the block at a level, into room for its longest form. `threshold` (in, out) is the
  // carried one of a sparse level, or 0 for exact selection.
  STARLING_DEVICE CoderBytes encode(gossip::Level level, float& threshold, std::uint8_t* out) {
    const GroupForm groups = group_form(level, shape_.is_small);
    if (groups.size != 0) return encode_groups(groups, out);
    if (facts_.largest == 0) return nothing(out);
    if (level == gossip::Level::l4) return encode_two_bits(out);
    if (level == gossip::Level::l3) return encode_one_bit(out);
    return encode_sparse(level, threshold, out);
  }

  // The threshold by which a sparse level would select exactly; 0 where all values are.
  STARLING_DEVICE float exact_threshold(gossip::Level level) {
    if (facts_.largest == 0) return 0;
    float threshold = 0;
    (void)select(level, threshold);
    return threshold;
  }

 private:
  STARLING_DEVICE std::uint32_t bits(std::uint32_t i) const {
    return std::bit_cast<std::uint32_t>(m_.d[i]);
  }
  STARLING_DEVICE std::uint32_t magnitude(std::uint32_t i) const { return bits(i) & 0x7fff'ffffU; }
  STARLING_DEVICE bool is_negative(std::uint32_t i) const { return bits(i) >> 31 != 0; }

  STARLING_DEVICE static void put_u16(std::uint8_t* out, std::uint32_t value) {
    out[0] = static_cast<std::uint8_t>(value);
    out[1] = static_cast<std::uint8_t>(value >> 8);
  }
  STARLING_DEVICE CoderBytes nothing(std::uint8_t* out) {
    crew_.once([&] { put_u16(out, 0); });
    return {2, 0};
  }

  // One bit for each of n values, eight a byte.
  template <class Test>
  STARLING_DEVICE void put_plane(std::uint32_t n, std::uint8_t* out, Test test) {
    crew_.each(n / 8, [&](std::uint32_t byte) {
      std::uint32_t all = 0;
      for (std::uint32_t bit = 0; bit < 8; ++bit) all |= test(byte * 8 + bit) ? 1U << bit : 0U;
      out[byte] = static_cast<std::uint8_t>(all);
    });
  }

  // Sum and count of those of n values, value i being d[at(i)], whose |d| is at least `from`.
  template <class At>
  STARLING_DEVICE gossip::FixedSum sum_from(std::uint32_t n, std::uint32_t from, At at) {
    const std::uint32_t exponent = gossip::exponent_of(facts_.largest);
    gossip::FixedSum found{};
    found.sum = crew_.template sum<std::uint64_t>(n, [&](std::uint32_t i) {
      const std::uint32_t own = magnitude(at(i));
      return own >= from ? std::uint64_t{gossip::fixed_point(own, exponent)} : std::uint64_t{0};
    });
    found.count = crew_.template sum<std::uint32_t>(
        n, [&](std::uint32_t i) { return magnitude(at(i)) >= from ? 1U : 0U; });
    return found;
  }

  STARLING_DEVICE CoderBytes encode_one_bit(std::uint8_t* out) {
    const auto all = sum_from(shape_.width, 0, [](std::uint32_t i) { return i; });
    const std::uint16_t mean =
        gossip::mean_as_bf16({all.sum, shape_.real_count}, gossip::exponent_of(facts_.largest));
    if (mean == 0) return nothing(out);
    crew_.once([&] { put_u16(out, mean); });
    put_plane(shape_.width, out + 2, [&](std::uint32_t i) { return is_negative(i); });
    return {2 + shape_.width / 8, shape_.real_count * gossip::square(gossip::from_bf16(mean))};
  }

  STARLING_DEVICE CoderBytes encode_two_bits(std::uint8_t* out) {
    const std::uint32_t exponent = gossip::exponent_of(facts_.largest);
    const auto same = [](std::uint32_t i) { return i; };
    const gossip::FixedSum all{sum_from(shape_.width, 0, same).sum, shape_.real_count};
    const std::uint32_t from = gossip::first_above_mean(all, exponent);
    const gossip::FixedSum above = sum_from(shape_.width, from, same);
    const gossip::Centroids centroids = gossip::centroids_of(all, above, exponent);
    if (centroids.high == 0) return nothing(out);
    crew_.once([&] {
      put_u16(out, centroids.high);
      put_u16(out + 2, centroids.low);
    });
    put_plane(shape_.width, out + 4, [&](std::uint32_t i) { return is_negative(i); });
    put_plane(shape_.width, out + 4 + shape_.width / 8,
              [&](std::uint32_t i) { return magnitude(i) >= from; });
    return {4 + shape_.width / 4,
            gossip::energy_of(centroids, shape_.real_count - above.count, above.count)};
  }

  STARLING_DEVICE CoderBytes encode_sparse(gossip::Level level, float& threshold,
                                           std::uint8_t* out) {
    const std::uint32_t exponent = gossip::exponent_of(facts_.largest);
    const std::uint32_t k = select(level, threshold);
    const auto chosen = [&](std::uint32_t i) { return std::uint32_t{m_.indices[i]}; };
    const gossip::FixedSum all = sum_from(k, 0, chosen);
    const std::uint32_t from = gossip::first_above_mean(all, exponent);
    const gossip::FixedSum above = sum_from(k, from, chosen);
    const gossip::Centroids centroids = gossip::centroids_of(all, above, exponent);
    if (centroids.high == 0) return nothing(out);
    crew_.once([&] {
      put_u16(out, centroids.high);
      put_u16(out + 2, centroids.low);
    });
    const std::uint32_t bytes = write_stream(level, k, from);
    crew_.each(bytes, [&](std::uint32_t i) {
      out[4 + i] = static_cast<std::uint8_t>(m_.stream[i / 4] >> (i % 4 * 8));
    });
    return {4 + bytes, gossip::energy_of(centroids, k - above.count, above.count)};
  }

  // Count, remainders, quotients, signs, sizes; returns the bytes of the stream.
  STARLING_DEVICE std::uint32_t write_stream(gossip::Level level, std::uint32_t k,
                                             std::uint32_t from) {
    const std::uint32_t b = gossip::rice_bits(k);
    const auto gap = [&](std::uint32_t i) {
      return m_.indices[i] - (i == 0 ? 0U : m_.indices[i - 1] + 1U);
    };
    crew_.each(kStreamWords, [&](std::uint32_t i) { m_.stream[i] = 0; });
    std::uint32_t place = gossip::count_bits(level);
    crew_.each(k, [&](std::uint32_t i) {
      if (i == 0) put_bits(0, k - 1);
      put_bits(place + i * b, gap(i) & ((1U << b) - 1));
    });
    place += k * b;
    const std::uint32_t zeros = crew_.running_sum(
        k, [&](std::uint32_t i) { return gap(i) >> b; },
        [&](std::uint32_t i, std::uint32_t before, std::uint32_t own) {
          put_bits(place + before + own + i, 1);
        });
    place += zeros + k;
    crew_.each(k, [&](std::uint32_t i) {
      const std::uint32_t index = m_.indices[i];
      put_bits(place + i, is_negative(index) ? 1 : 0);
      put_bits(place + k + i, magnitude(index) >= from ? 1 : 0);
    });
    return (place + 2 * k + 7) / 8;
  }

  // At most 32 bits; only ones are written.
  STARLING_DEVICE void put_bits(std::uint32_t place, std::uint32_t value) {
    const std::uint64_t shifted = std::uint64_t{value} << (place % 32);
    const auto low = static_cast<std::uint32_t>(shifted);
    const auto high = static_cast<std::uint32_t>(shifted >> 32);
    if (low != 0) crew_.set_bits(m_.stream[place / 32], low);
    if (high != 0) crew_.set_bits(m_.stream[place / 32 + 1], high);
  }

  // Leaves the indices of what is sent in memory, rising; returns their number.
  STARLING_DEVICE std::uint32_t select(gossip::Level level, float& threshold) {
    const std::uint32_t nominal = gossip::nominal_count(level);
    const auto bounded = [&](std::uint32_t n) {
      return n < shape_.real_count ? n : shape_.real_count;
    };
    if (threshold > 0) {
      const auto least = std::bit_cast<std::uint32_t>(threshold);
      const std::uint32_t count = keep([&](std::uint32_t i) { return magnitude(i) >= least; });
      if (count >= bounded(nominal / 2) && count <= bounded(2 * nominal)) {
        threshold = gossip::next_threshold(threshold, count, nominal);
        return count;
      }
    }
    return select_exactly(bounded(nominal), threshold);
  }

  // The digits of the wanted-th largest magnitude, from the top: 11, 10 and 10 bits. Of those that
  // equal it the ones with the higher indices go, and padding first.
  STARLING_DEVICE std::uint32_t select_exactly(std::uint32_t wanted, float& threshold) {
    std::uint32_t least = 0;
    std::uint32_t equal = wanted;  // how many of the values that have these digits are wanted
    for (std::uint32_t shift = 20;; shift -= 10) {
      least = least << (shift == 20 ? 11 : 10) | find_digit(shift, least, equal);
      equal -= m_.above;
      if (shift == 0) break;
    }
    threshold = std::bit_cast<float>(least);
    const auto is_equal = [&](std::uint32_t i) {
      return magnitude(i) == least && (least != 0 || shape_.is_real(i));
    };
    crew_.running_count(shape_.width, is_equal, [&](std::uint32_t i, std::uint32_t before) {
      if (before + 1 == equal) m_.cut = i;
    });
    return keep(
        [&](std::uint32_t i) { return magnitude(i) > least || (is_equal(i) && i <= m_.cut); });
  }

  // The digit at `shift` of the wanted-th largest of the values whose digits above are `prefix`;
  // how many of them have a larger digit is left in memory.
  STARLING_DEVICE std::uint32_t find_digit(std::uint32_t shift, std::uint32_t prefix,
                                           std::uint32_t wanted) {
    const std::uint32_t width = shift == 20 ? 11 : 10;
    const std::uint32_t digits = 1U << width;
    crew_.each(digits, [&](std::uint32_t i) { m_.counts[i] = 0; });
    crew_.each(shape_.width, [&](std::uint32_t i) {
      const std::uint32_t own = magnitude(i) >> shift;
      if (own >> width == prefix) crew_.add(m_.counts[own & (digits - 1)], 1);
    });
    crew_.running_sum(
        digits, [&](std::uint32_t i) { return m_.counts[digits - 1 - i]; },
        [&](std::uint32_t i, std::uint32_t before, std::uint32_t own) {
          if (before >= wanted || before + own < wanted) return;
          m_.digit = digits - 1 - i;
          m_.above = before;
        });
    return m_.digit;
  }

  // Indices of those that pass the test, as many as there is room for; returns how many do.
  template <class Test>
  STARLING_DEVICE std::uint32_t keep(Test test) {
    return crew_.running_count(shape_.width, test, [&](std::uint32_t i, std::uint32_t before) {
      if (before < gossip::kMaxSelected) m_.indices[before] = static_cast<std::uint16_t>(i);
    });
  }

  STARLING_DEVICE CoderBytes encode_groups(const GroupForm& form, std::uint8_t* out) {
    const std::uint32_t groups = form.count(shape_.width);
    crew_.each(shape_.width / 16, [&](std::uint32_t part) {
      std::uint32_t largest = 0;
      for (std::uint32_t i = part * 16; i < part * 16 + 16; ++i)
        largest = magnitude(i) > largest ? magnitude(i) : largest;
      m_.counts[part] = largest;
    });
    crew_.each(groups, [&](std::uint32_t g) {
      const std::uint32_t end =
          (g + 1) * form.size < shape_.width ? (g + 1) * form.size : shape_.width;
      std::uint32_t largest = 0;
      for (std::uint32_t part = g * form.size / 16; part < end / 16; ++part)
        largest = m_.counts[part] > largest ? m_.counts[part] : largest;
      const std::uint16_t scale =
          gossip::scale_of(std::bit_cast<float>(largest), static_cast<int>(form.bits));
      m_.scales[g] = scale;
      m_.squares[g] = 0;
      put_u16(out + 2 * g, scale);
    });
    const std::uint32_t bytes = crew_.running_sum(
        groups,
        [&](std::uint32_t g) { return m_.scales[g] == 0 ? 0U : form.bytes(shape_.width, g); },
        [&](std::uint32_t g, std::uint32_t before, std::uint32_t) { m_.places[g] = before; });
    const std::uint32_t in_byte = 8 / form.bits;
    crew_.each(shape_.width / 4, [&](std::uint32_t four) {
      const std::uint32_t first = 4 * four;
      const std::uint32_t g = first / form.size;
      if (m_.scales[g] == 0) return;
      std::uint8_t* const to = out + 2 * groups + m_.places[g] + (first - g * form.size) / in_byte;
      const Codes codes =
          codes_of(form, m_.scales[g], reinterpret_cast<const Pack<float, 4>*>(m_.d)[four]);
      for (std::uint32_t byte = 0; byte < 4 / in_byte; ++byte)
        to[byte] = static_cast<std::uint8_t>(codes.bytes >> (8 * byte));
      crew_.add(m_.squares[g], codes.squares);
    });
    // In the order of the CPU, so that the sum of doubles is the same.
    double sent = 0;
    for (std::uint32_t g = 0; g < groups; ++g)
      if (m_.scales[g] != 0)
        sent += m_.squares[g] * gossip::square(gossip::from_bf16(m_.scales[g]));
    return {2 * groups + bytes, sent};
  }

  // Four codes, the first one lowest, and the sum of their squares.
  struct Codes {
    std::uint32_t bytes;
    std::uint32_t squares;
  };
  STARLING_DEVICE static Codes codes_of(const GroupForm& form, std::uint16_t stored_scale,
                                        const Pack<float, 4>& d) {
    const float scale = gossip::from_bf16(stored_scale);
    const int largest = form.bits == 8 ? gossip::kMaxCode8 : gossip::kMaxCode4;
    Codes codes{0, 0};
    for (std::uint32_t k = 0; k < 4; ++k) {
      // rintf rounds half to even, as lrint does on the CPU.
      const int rounded = static_cast<int>(rintf(d.at[k] / scale));
      const int code = rounded > largest ? largest : rounded < -largest ? -largest : rounded;
      codes.bytes |= (static_cast<std::uint32_t>(code) & ((1U << form.bits) - 1))
                     << (form.bits * k);
      codes.squares += static_cast<std::uint32_t>(code * code);
    }
    return codes;
  }

  Crew& crew_;
  CoderMemory& m_;
  BlockShape shape_;
  CoderFacts facts_;
};

}  // namespace starling::training::cuda
