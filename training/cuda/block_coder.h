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
#include "training/cuda/difference.h"
#include "training/cuda/sparse_writer.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace starling::training::cuda {

// What the crew shares while it encodes a block: some 28 KB.
struct CoderMemory {
  alignas(16) float d[gossip::kBlock];
  std::uint32_t counts[2'048];  // of digits; the largest of sixteen values each
  SelectedMemory selected;
  std::uint16_t scales[kMostGroups];
  std::uint32_t places[kMostGroups];   // where a group's codes begin
  std::uint32_t squares[kMostGroups];  // of a group's codes
  std::uint32_t digit;
  std::uint32_t above;
  std::uint32_t cut;
};

// Lives in a kernel, a copy in every thread: all members have the same values in all of them.
template <class Crew>
class BlockCoder {
 public:
  STARLING_DEVICE BlockCoder(Crew& crew, CoderMemory& memory, const BlockShape& shape)
      : crew_(crew), m_(memory), shape_(shape) {}

  // Takes the differences of the block.
  STARLING_DEVICE DifferenceFacts load(const BlockValues& values) {
    facts_ = take_difference(crew_, shape_, values, [&](std::uint32_t four, const FourValues& d) {
      reinterpret_cast<FourValues*>(m_.d)[four] = d;
    });
    return facts_;
  }

  // Writes the block at a level, into room for its longest form, aligned to four bytes; `out` null:
  // nothing is written, and only the energy that would be sent is of use. A sparse level selects
  // exactly; unless nothing is sent, `threshold` becomes the one that does.
  STARLING_DEVICE CoderBytes encode(gossip::Level level, float& threshold, std::uint8_t* out) {
    const GroupForm groups = group_form(level, shape_.is_small);
    if (groups.size != 0) return encode_groups(groups, out);
    if (facts_.largest == 0) return put_nothing(crew_, out);
    if (level == gossip::Level::l4) return encode_two_bits(out);
    if (level == gossip::Level::l3) return encode_one_bit(out);
    return encode_sparse(level, threshold, out);
  }

  // The threshold by which a sparse level would select exactly; 0 where all values are.
  STARLING_DEVICE float exact_threshold(gossip::Level level) {
    if (facts_.largest == 0) return 0;
    return std::bit_cast<float>(smallest_of(wanted_count(level)).magnitude);
  }

 private:
  // The smallest magnitude that is selected, and how many of those that equal it are.
  struct Smallest {
    std::uint32_t magnitude;
    std::uint32_t equal;
  };

  STARLING_DEVICE std::uint32_t bits(std::uint32_t i) const {
    return std::bit_cast<std::uint32_t>(m_.d[i]);
  }
  STARLING_DEVICE std::uint32_t magnitude(std::uint32_t i) const { return magnitude_of(m_.d[i]); }
  STARLING_DEVICE bool is_negative(std::uint32_t i) const { return bits(i) >> 31 != 0; }

  // Of all values of the block.
  STARLING_DEVICE gossip::FixedSum sum_of_those_from(std::uint32_t from) {
    return sum_from(crew_, shape_.width, from, gossip::exponent_of(facts_.largest),
                    [&](std::uint32_t i) { return magnitude(i); });
  }

  STARLING_DEVICE CoderBytes encode_one_bit(std::uint8_t* out) {
    const auto all = sum_of_those_from(0);
    const std::uint16_t mean =
        gossip::mean_as_bf16({all.sum, shape_.real_count}, gossip::exponent_of(facts_.largest));
    if (mean == 0) return put_nothing(crew_, out);
    if (out != nullptr) {
      crew_.once([&] { put_u16(out, mean); });
      crew_.put_plane(shape_.width, out + 2, [&](std::uint32_t i) { return is_negative(i); });
    }
    return {2 + shape_.width / 8, shape_.real_count * gossip::square(gossip::from_bf16(mean))};
  }

  STARLING_DEVICE CoderBytes encode_two_bits(std::uint8_t* out) {
    const std::uint32_t exponent = gossip::exponent_of(facts_.largest);
    const gossip::FixedSum all{sum_of_those_from(0).sum, shape_.real_count};
    const std::uint32_t from = gossip::first_above_mean(all, exponent);
    const gossip::FixedSum above = sum_of_those_from(from);
    const gossip::Centroids centroids = gossip::centroids_of(all, above, exponent);
    if (centroids.high == 0) return put_nothing(crew_, out);
    if (out != nullptr) {
      crew_.once([&] {
        put_u16(out, centroids.high);
        put_u16(out + 2, centroids.low);
      });
      crew_.put_plane(shape_.width, out + 4, [&](std::uint32_t i) { return is_negative(i); });
      crew_.put_plane(shape_.width, out + 4 + shape_.width / 8,
                      [&](std::uint32_t i) { return magnitude(i) >= from; });
    }
    return {4 + shape_.width / 4,
            gossip::energy_of(centroids, shape_.real_count - above.count, above.count)};
  }

  STARLING_DEVICE CoderBytes encode_sparse(gossip::Level level, float& threshold,
                                           std::uint8_t* out) {
    const Smallest smallest = smallest_of(wanted_count(level));
    threshold = std::bit_cast<float>(smallest.magnitude);
    if (out == nullptr) return {0, sparse_energy(wanted_count(level), smallest)};
    const std::uint32_t k = select(smallest);
    SparseWriter<Crew> writer(crew_, m_.selected);
    return writer.write(level, k, facts_.largest, out);
  }

  // What the k selected values would send, without a list of them.
  STARLING_DEVICE double sparse_energy(std::uint32_t k, const Smallest& smallest) {
    const std::uint32_t exponent = gossip::exponent_of(facts_.largest);
    gossip::FixedSum all = sum_of_those_from(smallest.magnitude + 1);
    all.sum += std::uint64_t{smallest.equal} * gossip::fixed_point(smallest.magnitude, exponent);
    all.count = k;
    const std::uint32_t from = gossip::first_above_mean(all, exponent);
    const gossip::FixedSum above = from > smallest.magnitude ? sum_of_those_from(from) : all;
    const gossip::Centroids centroids = gossip::centroids_of(all, above, exponent);
    return gossip::energy_of(centroids, k - above.count, above.count);
  }

  // How many values a sparse level selects.
  STARLING_DEVICE std::uint32_t wanted_count(gossip::Level level) const {
    return shape_.at_most_all(gossip::nominal_count(level));
  }

  // Leaves what is sent in memory; returns how many values that are. Of those that equal the
  // smallest one the ones with the higher indices go, and padding first.
  STARLING_DEVICE std::uint32_t select(const Smallest& smallest) {
    const std::uint32_t least = smallest.magnitude;
    const auto is_equal = [&](std::uint32_t i) {
      return magnitude(i) == least && (least != 0 || shape_.is_real(i));
    };
    crew_.running_count(shape_.width, is_equal, [&](std::uint32_t i, std::uint32_t before) {
      if (before + 1 == smallest.equal) m_.cut = i;
    });
    return crew_.running_count(
        shape_.width,
        [&](std::uint32_t i) { return magnitude(i) > least || (is_equal(i) && i <= m_.cut); },
        [&](std::uint32_t i, std::uint32_t before) {
          m_.selected.indices[before] = static_cast<std::uint16_t>(i);
          m_.selected.values[before] = m_.d[i];
        });
  }

  // The wanted-th largest magnitude, digit by digit from the top: 11, 10 and 10 bits.
  STARLING_DEVICE Smallest smallest_of(std::uint32_t wanted) {
    Smallest smallest{0, wanted};
    for (std::uint32_t shift = 20;; shift -= 10) {
      smallest.magnitude = smallest.magnitude << (shift == 20 ? 11 : 10) |
                           find_digit(shift, smallest.magnitude, smallest.equal);
      smallest.equal -= m_.above;
      if (shift == 0) return smallest;
    }
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
      if (out != nullptr) put_u16(out + 2 * g, scale);
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
      const Codes codes =
          codes_of(form, m_.scales[g], reinterpret_cast<const FourValues*>(m_.d)[four]);
      if (out != nullptr) {
        std::uint8_t* const to =
            out + 2 * groups + m_.places[g] + (first - g * form.size) / in_byte;
        for (std::uint32_t byte = 0; byte < 4 / in_byte; ++byte)
          to[byte] = static_cast<std::uint8_t>(codes.bytes >> (8 * byte));
      }
      crew_.add(m_.squares[g], codes.squares);
    });
    const auto sent = crew_.template sum<double>(groups, [&](std::uint32_t g) {
      return m_.scales[g] == 0 ? 0.0
                               : m_.squares[g] * gossip::square(gossip::from_bf16(m_.scales[g]));
    });
    return {2 * groups + bytes, sent};
  }

  // Four codes, the first one lowest, and the sum of their squares.
  struct Codes {
    std::uint32_t bytes;
    std::uint32_t squares;
  };
  STARLING_DEVICE static Codes codes_of(const GroupForm& form, std::uint16_t stored_scale,
                                        const FourValues& d) {
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
  DifferenceFacts facts_;
};

}  // namespace starling::training::cuda
