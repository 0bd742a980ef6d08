// BlockEncoder: the bytes of one block, at any level.
#pragma once

#include "gossip/delta/centroids.h"
#include "gossip/delta/codec.h"
#include "gossip/delta/kernels.h"
#include "gossip/delta/sparse_stream.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace starling::gossip {

// What became of a block.
struct BlockBytes {
  std::size_t size = 0;
  double sent_energy = 0;  // |q|^2
};

// The most bytes of one block.
[[nodiscard]] std::size_t max_block_bytes(const Layout& layout, std::size_t block, Level level);

// Bits of |d| from which on it is not finite.
inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;

// The longest block of all levels: the scales and codes of L6.
inline constexpr std::size_t kMaxBlockBytes = 2 * kBlock / kGroup + kBlock;

// What an encoder may write behind the bytes of a block: the room for it must be there.
inline constexpr std::size_t kBlockSlack = 64;

// Encodes blocks, one after the other: load() takes the difference, encode() writes it, as often as
// wanted.
//
// A value on the stack of one encode (some 60 KiB); one thread. Allocates nothing.
class BlockEncoder {
 public:
  BlockEncoder(const Layout& layout, Isa isa) : layout_(layout), kernels_(kernels_of(isa)) {}

  // Takes d = x - r of a block, `x` and `r` being its first values. What a carried threshold would
  // select is selected on the way; 0: nothing is.
  //
  // Returns what it found; a d that is not finite must not be encoded.
  const DifferenceFacts& load(std::size_t block, const float* x, const float* r, float threshold);

  // load() and encode() in one: at L5 and L6 a group at a time, so that memory is read while codes
  // are made. Nothing of use is written if the difference is not finite: see facts().
  struct Source {
    std::size_t block;
    const float* x;
    const float* r;
  };
  BlockBytes encode_from(const Source& from, Level level, float& threshold, std::uint8_t* out);
  [[nodiscard]] const DifferenceFacts& facts() const { return facts_; }

  // Writes the block at a level. `threshold` (in, out) is the carried one of a sparse level: the
  // same value that load() got, or 0 for exact selection.
  BlockBytes encode(Level level, float& threshold, std::uint8_t* out);

  // What exact selection would send at a level, and the threshold that selects so (0: there is
  // none).
  struct Exact {
    double sent_energy = 0;
    float threshold = 0;
  };
  Exact exact(Level level);

  // What the last encode() selected, null if it wrote no sparse stream. Until the next one.
  [[nodiscard]] const Selection* selection() const {
    return selection_.indices.empty() ? nullptr : &selection_;
  }

 private:
  BlockBytes encode_sparse(Level level, float& threshold, std::uint8_t* out);
  // The first k indices as values, signs and sizes, and what is sent of them.
  struct Sent {
    Centroids centroids;
    double energy = 0;
  };
  Sent send(std::uint32_t k);
  BlockBytes encode_one_bit(std::uint8_t* out);
  BlockBytes encode_two_bits(std::uint8_t* out);
  BlockBytes encode_groups(std::size_t group, int bits, std::uint8_t* out);
  BlockBytes encode_groups_of(const float* x, const float* r, int bits, std::uint8_t* out);
  std::uint32_t select(Level level, float& threshold);
  std::uint32_t select_exactly(Level level, float& threshold);
  // Into indices_: all |d| from a threshold on.
  std::uint32_t select_from(float threshold);
  // The values of the first k indices, zeros behind them up to a whole vector; its length.
  std::size_t gather(std::uint32_t k, std::span<float> values) const;

  const Layout& layout_;
  const Kernels& kernels_;
  std::size_t block_ = 0;
  std::size_t width_ = 0;
  DifferenceFacts facts_{};
  alignas(64) std::array<float, kBlock> d_{};
  std::array<std::uint16_t, kBlock + 16> indices_{};
  // What exact selection selects among.
  alignas(64) std::array<float, kBlock> candidates_{};
  // The selected values, zeros behind them up to a whole vector, and a bit each.
  alignas(64) std::array<float, kMaxSelected> values_{};
  std::array<std::uint8_t, kMaxSelected / 8 + 8> signs_{};
  std::array<std::uint8_t, kMaxSelected / 8 + 8> sizes_{};
  Selection selection_;
};

}  // namespace starling::gossip
