// Integers as strings of bits: how sums and results of the final consensus travel.
#pragma once

#include "node/base/bytes.h"
#include "node/base/result.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling::gossip::consensus {

// Whether the processor moves bytes anywhere in a wide register (AVX-512 VBMI). With that, integers
// are packed and added eight at a time; the bytes and sums are the same.
[[nodiscard]] bool has_wide_packing();

// Bytes of `values` packed integers of `bits` bits.
[[nodiscard]] std::size_t packed_bytes(std::size_t values, unsigned bits);

// `values` as two's complement integers of `bits` bits (1 to 64), lowest bit first, the
// last byte filled with zeros.
//
// Rule:    every value fits in `bits` bits.
[[nodiscard]] Bytes pack(std::span<const std::int64_t> values, unsigned bits);
// The same behind what `out` holds already. Without reserved room it may be moved.
void append_packed(std::span<const std::int64_t> values, unsigned bits, Bytes& out,
                   bool wide = has_wide_packing());

// What a packed integer may be: from `least`, which is 0 or below, to `most`, 0 or above.
struct PackedRange {
  std::int64_t least = 0;
  std::int64_t most = 0;
};
[[nodiscard]] constexpr PackedRange up_to_magnitude(std::int64_t most) { return {-most, most}; }

// Adds each packed integer to out[k].
//
// Errors:  bad_message where the size is not exact, the filling is not zero or a value is out of
//          `range` (which keeps sums of sums from overflowing). `out` is then undefined.
[[nodiscard]] Result<void> add_packed(ByteView packed, unsigned bits, PackedRange range,
                                      std::span<std::int64_t> out, bool wide = has_wide_packing());

}  // namespace starling::gossip::consensus
