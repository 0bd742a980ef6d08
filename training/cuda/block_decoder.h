// What one crew does with the bytes of a block that parse_delta() has checked: values, and their
// exchange.
//
// The twin of gossip::decode_block() and of Kernels::apply: the same values, the same x and r, down
// to the bit. The format is described in gossip/delta/codec.h. Bytes that were not checked would be
// read beyond their end.
#pragma once

#include "gossip/delta/format.h"
#include "training/cuda/block_shape.h"
#include "training/cuda/crew.h"
#include "training/cuda/sgd.h"

#include <cstdint>

namespace starling::training::cuda {

// Bytes behind the last one of a delta that may be read, and whose values do not matter: quotients
// are looked for in the longest row that they could fill, which can reach beyond signs and sizes.
inline constexpr std::uint32_t kDecoderSlack = 64;
[[nodiscard]] constexpr std::uint32_t most_quotient_zeros(std::uint32_t k) {
  return (static_cast<std::uint32_t>(gossip::kBlock) - 1) >> gossip::rice_bits(k);
}
static_assert([] {
  for (std::uint32_t k = 1; k <= gossip::kMaxSelected; ++k)
    if (most_quotient_zeros(k) > 2 * k + 8 * (kDecoderSlack - 4)) return false;
  return true;
}());

// The values of a block that a sparse level sends, in the order of their indices.
struct SparseList {
  std::uint16_t indices[gossip::kMaxSelected];
  float values[gossip::kMaxSelected];
};

// What the crew shares while it decodes a block.
struct DecoderMemory {
  std::uint16_t ones[gossip::kMaxSelected];  // places of the stops of quotients
  union {
    SparseList list;
    std::uint32_t places[kMostGroups];  // where a group's codes begin
  };
};

// At most 12 bits, from a place on; lowest bit of each byte first.
STARLING_DEVICE inline std::uint32_t bits_at(const std::uint8_t* bytes, std::uint32_t place,
                                             std::uint32_t count) {
  const std::uint8_t* from = bytes + place / 8;
  const std::uint32_t word = from[0] | std::uint32_t{from[1]} << 8 | std::uint32_t{from[2]} << 16;
  return word >> (place % 8) & ((1U << count) - 1);
}
STARLING_DEVICE inline bool bit_at(const std::uint8_t* bytes, std::uint32_t place) {
  return (bytes[place / 8] >> (place % 8) & 1U) != 0;
}
STARLING_DEVICE inline std::uint16_t u16_at(const std::uint8_t* bytes, std::uint32_t at) {
  return static_cast<std::uint16_t>(bytes[at] | bytes[at + 1] << 8);
}

// The values that a block of a sparse level sends, which is none of the small ones; returns their
// number. An index is the sum of the quotients up to its own 2^b times, the sum of the remainders,
// and its number. `ones` is room for as many.
template <class Crew>
STARLING_DEVICE std::uint32_t list_sparse(Crew& crew, gossip::Level level,
                                          const std::uint8_t* bytes, std::uint16_t* ones,
                                          SparseList& list) {
  if (u16_at(bytes, 0) == 0) return 0;
  const std::uint8_t* stream = bytes + 4;
  const std::uint32_t first = gossip::count_bits(level);
  const std::uint32_t k = bits_at(stream, 0, first) + 1;
  const std::uint32_t b = gossip::rice_bits(k);
  const std::uint32_t quotients = first + k * b;
  crew.running_count(
      k + most_quotient_zeros(k), [&](std::uint32_t i) { return bit_at(stream, quotients + i); },
      [&](std::uint32_t i, std::uint32_t before) {
        if (before < k) ones[before] = static_cast<std::uint16_t>(i);
      });
  const std::uint32_t signs = quotients + ones[k - 1] + 1;
  const float high = gossip::from_bf16(u16_at(bytes, 0));
  const float low = gossip::from_bf16(u16_at(bytes, 2));
  crew.running_sum(
      k, [&](std::uint32_t i) { return bits_at(stream, first + i * b, b); },
      [&](std::uint32_t i, std::uint32_t before, std::uint32_t own) {
        list.indices[i] = static_cast<std::uint16_t>(((ones[i] - i) << b) + before + own + i);
        const float value = bit_at(stream, signs + k + i) ? high : low;
        list.values[i] = bit_at(stream, signs + i) ? -value : value;
      });
  return k;
}

// Lives in a kernel, a copy in every thread.
template <class Crew>
class BlockDecoder {
 public:
  STARLING_DEVICE BlockDecoder(Crew& crew, DecoderMemory& memory, const BlockShape& shape)
      : crew_(crew), m_(memory), shape_(shape) {}

  // q of the block: width values in memory that the crew shares.
  STARLING_DEVICE void decode(gossip::Level level, const std::uint8_t* bytes, float* q) {
    const GroupForm form = group_form(level, shape_.is_small);
    if (form.size != 0) return decode_groups(form, bytes, q);
    if (u16_at(bytes, 0) == 0) {
      crew_.each(shape_.width, [&](std::uint32_t i) { q[i] = 0.0F; });
    } else if (gossip::is_sparse(level)) {
      decode_sparse(level, bytes, q);
    } else {
      decode_planes(level, bytes, q);
    }
  }

 private:
  STARLING_DEVICE void decode_groups(const GroupForm& form, const std::uint8_t* bytes, float* q) {
    const std::uint32_t groups = form.count(shape_.width);
    crew_.running_sum(
        groups,
        [&](std::uint32_t g) {
          return u16_at(bytes, 2 * g) == 0 ? 0U : form.bytes(shape_.width, g);
        },
        [&](std::uint32_t g, std::uint32_t before, std::uint32_t) { m_.places[g] = before; });
    crew_.each(shape_.width, [&](std::uint32_t i) {
      const std::uint32_t g = i / form.size;
      const std::uint16_t scale = u16_at(bytes, 2 * g);
      const std::uint8_t* codes = bytes + 2 * groups + m_.places[g];
      const std::uint32_t at = i - g * form.size;
      // A group without a scale has no codes.
      q[i] = scale == 0 ? 0.0F
                        : static_cast<float>(code_at(codes, at, form)) * gossip::from_bf16(scale);
    });
  }

  // Two's complement, of 8 bits or 4.
  STARLING_DEVICE static int code_at(const std::uint8_t* codes, std::uint32_t at,
                                     const GroupForm& form) {
    if (form.bits == 8) return (codes[at] ^ 0x80) - 0x80;
    return ((codes[at / 2] >> (at % 2 * 4) & 0xf) ^ 8) - 8;
  }

  STARLING_DEVICE void decode_planes(gossip::Level level, const std::uint8_t* bytes, float* q) {
    const bool two = level == gossip::Level::l4;
    const std::uint8_t* signs = bytes + (two ? 4 : 2);
    const std::uint8_t* sizes = signs + shape_.width / 8;
    const float high = gossip::from_bf16(u16_at(bytes, 0));
    const float low = two ? gossip::from_bf16(u16_at(bytes, 2)) : high;
    crew_.each(shape_.width, [&](std::uint32_t i) {
      const float value = !two || bit_at(sizes, i) ? high : low;
      q[i] = !shape_.is_real(i) ? 0.0F : bit_at(signs, i) ? -value : value;
    });
  }

  STARLING_DEVICE void decode_sparse(gossip::Level level, const std::uint8_t* bytes, float* q) {
    const std::uint32_t k = list_sparse(crew_, level, bytes, m_.ones, m_.list);
    crew_.each(shape_.width, [&](std::uint32_t i) { q[i] = 0.0F; });
    crew_.each(k, [&](std::uint32_t i) { q[m_.list.indices[i]] = m_.list.values[i]; });
  }

  Crew& crew_;
  DecoderMemory& m_;
  BlockShape shape_;
};

// Both deltas of one block, as values in memory that the crew shares: some 34 KB.
struct ExchangeMemory {
  float lower[gossip::kBlock];
  float higher[gossip::kBlock];
  DecoderMemory decoder;
};

// One block of replica and reference.
struct ReplicaBlock {
  float* x;
  float* r;
};

// x += factor (higher - lower), except where that is not finite: x stays there; r += 1/2 lower,
// then r += 1/2 higher. Returns (higher - lower)^2.
STARLING_DEVICE inline double apply_value(const ReplicaBlock& to, std::uint32_t i, float factor,
                                          float lower, float higher) {
  const float apart = higher - lower;
  const float after = to.x[i] + factor * apart;
  if (is_finite(after)) to.x[i] = after;
  const float half_way = to.r[i] + 0.5F * lower;
  to.r[i] = half_way + 0.5F * higher;
  return static_cast<double>(apart) * static_cast<double>(apart);
}
// All values of a block; the sum of what apply_value() returns, known to all.
template <class Crew>
STARLING_DEVICE double apply_block(Crew& crew, const ExchangeMemory& memory, std::uint32_t width,
                                   float factor, const ReplicaBlock& to) {
  return crew.template sum<double>(width, [&](std::uint32_t i) {
    return apply_value(to, i, factor, memory.lower[i], memory.higher[i]);
  });
}

// Both deltas of one block as lists: some 7 KB.
struct SparseMemory {
  SparseList lower;
  SparseList higher;
  std::uint16_t ones[gossip::kMaxSelected];
};
struct ListSizes {
  std::uint32_t lower;
  std::uint32_t higher;
};
// What a list says of an index: 0 where it does not name it.
struct Listed {
  bool named;
  float value;
};
STARLING_DEVICE inline Listed value_at(const SparseList& list, std::uint32_t k,
                                       std::uint32_t index) {
  std::uint32_t begin = 0;
  for (std::uint32_t end = k; begin < end;) {
    const std::uint32_t middle = (begin + end) / 2;
    if (list.indices[middle] < index) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  const bool named = begin < k && list.indices[begin] == index;
  return {named, named ? list.values[begin] : 0.0F};
}
// The same for two lists, touching only what either names. Where neither does, zeros would be
// added, which changes -0 alone, to +0. No reference holds -0: what it begins with is made of
// integers (genesis, codes of L6), and a sum is -0 only where both parts are. x may keep one.
template <class Crew>
STARLING_DEVICE double apply_lists(Crew& crew, const SparseMemory& memory, const ListSizes& sizes,
                                   float factor, const ReplicaBlock& to) {
  return crew.template sum<double>(sizes.lower + sizes.higher, [&](std::uint32_t i) {
    if (i < sizes.lower) {
      const std::uint32_t index = memory.lower.indices[i];
      const Listed higher = value_at(memory.higher, sizes.higher, index);
      return apply_value(to, index, factor, memory.lower.values[i], higher.value);
    }
    const std::uint32_t index = memory.higher.indices[i - sizes.lower];
    if (value_at(memory.lower, sizes.lower, index).named) return 0.0;
    return apply_value(to, index, factor, 0.0F, memory.higher.values[i - sizes.lower]);
  });
}

}  // namespace starling::training::cuda
