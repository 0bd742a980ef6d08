// The codec: one pass over x and r makes the bytes of a delta; checked bytes become values again.
//
// The bytes of a delta
// --------------------
// A delta is the blocks of the canonical order (layout.h) one after the other and nothing else: no
// header, no lengths, no tail. The level travels beside it. A reader knows from the layout how many
// blocks there are and how wide each is, so the only lengths that it takes from the bytes are the
// number of selected values of a sparse block and the unary codes, both bounded by the block.
//
// `width` is 4,096, less in the last block of each of the two parts, always a multiple of 16; what
// lies behind the width is never sent. Numbers are little-endian, streams of bits fill each byte
// from its lowest bit. Scales and centroids are bf16: finite, sign bit clear. d = x - r.
//
// Blocks of tensors of rank >= 2:
//
// L0 L1 L2   high : u16   0: nothing follows, the block sends nothing
//            low  : u16   <= high
//            then bits, the last byte filled with zeros:
//            k - 1                5, 7 or 9 bits
//            k remainders         of the gaps, b bits each; b = rice_bits(k)
//            k quotients          of the gaps: as many zeros, then a one
//            k signs              1: negative
//            k sizes              1: high, 0: low
//            gap = index - index before - 1 (the index before the first is -1), so indices rise
//            strictly by construction. min(k0 / 2, n) <= k <= min(2 k0, n) for n real values. An
//            index at or behind the width, or at padding, is refused.
// L3         mean : u16   0: nothing follows
//            signs        width bits
// L4         high : u16   0: nothing follows
//            low  : u16   <= high
//            signs        width bits
//            sizes        width bits, 1: high
// L5         scales: u16 for each group of 256 (the last may be shorter)
//            codes of each group whose scale is not 0: two's complement, 4 bits, -7 to 7
// L6         the same with 8 bits, -127 to 127
//
// Blocks of tensors of rank <= 1: the form of L5 with groups of 64; at L6 the form of L6.
// Bits and codes at padding are zero, in both directions: other bytes are refused. Decoded padding
// is zero.
//
// How an encoder chooses (rulings 12 to 15; a reader does not check this, a test does):
// L0 L1 L2   all values with |d| >= t, t carried from the delta before times the drift, if k comes
//            out in [k0 / 2, 2 k0]; otherwise exactly the min(k0, n) largest. Equal |d|: lower
//            index first. The drift is the lower median, over the sampled blocks (one in 64) that
//            carry a t, of the t of exact selection over the carried one; 1 if they are fewer
//            than eight.
// centroids  |d| as 24-bit integers at the exponent of the block's largest |d|; mean = floor(sum /
//            count); low and high are the means of those <= mean and those > mean (high = low when
//            there are none), worked out the same way, then rounded to bf16. Integers have no
//            order of summation: every implementation gets the same bytes. A group mean minimises
//            the error, so |d - q|^2 <= |d|^2 (1 - share sent): contractive at every level.
// scales     max|d| / 7 or / 127, in fp32, rounded to bf16, at most FLT_MAX / 7 or / 127 (so that
//            no code decodes to infinity); code = d / scale in fp32, half to even, clamped.
//
// Changing what a reader takes, or makes of it (the hash chain is made of it, too), is a new codec
// version, which is part of the settings fingerprint. How an encoder chooses may change, in all
// implementations at once.
#pragma once

#include "gossip/delta/isa.h"
#include "gossip/delta/jobs.h"
#include "gossip/delta/layout.h"
#include "gossip/delta/parts.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace starling::gossip {

// Also of how contributions and results of the final consensus travel (gossip/consensus/jobs.h) and
// of what edges and chunks are hashed with (tree_hash.h).
inline constexpr std::uint32_t kCodecVersion = 5;

// What an edge carries from one encode to the next. Only its own node sees it.
struct Carry {
  std::vector<float> thresholds;  // one a block of the big part; 0: none yet
  std::uint32_t sample = 0;       // which blocks the next encode samples
};

struct DenseBlock;  // kernels.h
struct Selection;   // sparse_stream.h

// Is shown each block of one part once it was encoded, in their order, on the thread that did so.
class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // The bytes of a block and, where they are a sparse stream, what it selects; until it returns.
  virtual void take(std::size_t block, ByteView bytes, const Selection* selection) = 0;
};
// One for each part; called on any thread.
using MakeSink = std::function<std::unique_ptr<BlockSink>(std::size_t part)>;

struct EncodeOptions {
  Level level = Level::l2;
  Isa isa = detected_isa();
  const ForEachPart* parts = nullptr;  // null: on the calling thread
  const MakeSink* sinks = nullptr;     // null: nobody is shown anything
};

// What encode() reads: the replica and the reference, Layout::size() values each. An empty
// reference means zero (a snapshot).
struct Difference {
  std::span<const float> parameters;
  std::span<const float> reference;
};

struct Encoded {
  Bytes bytes;
  EncodeFigures figures;
  // Where each block begins, and the end; empty from an encoder that does not know.
  std::vector<std::uint32_t> offsets;
};

// The most bytes that a delta of this level can have.
[[nodiscard]] std::size_t max_bytes(const Layout& layout, Level level);

// q = C(x - r) as bytes, in one pass; `carry` is updated when it succeeds. A pure function: the
// same input makes the same bytes and figures with every Isa and any number of threads.
//
// Errors:  diverged if x is not finite; corrupt if x is but x - r is not (the reference must be
//          reset); carry is as before then.
// Cost:    reads x and r once, sampled blocks twice; no allocation but the result, with
//          options.parts twice. Samples (unsent shares and drift) cost about a tenth.
// Thread:  any; those of options.parts help.
[[nodiscard]] Result<Encoded> encode(const Layout& layout, Difference difference,
                                     EncodeOptions options, Carry& carry);

// A delta whose bytes have been checked: every block can be decoded without a further look.
//
// A value made by parse_delta() or own_delta(); the bytes and the layout must outlive it. Holds
// what a neighbour (or this node) sent. Costs four bytes a block.
class DeltaView {
 public:
  [[nodiscard]] Level level() const { return level_; }
  [[nodiscard]] const Layout& layout() const { return *layout_; }
  // The bytes of one block.
  [[nodiscard]] ByteView block(std::size_t index) const {
    return bytes_.subspan(offsets_[index], offsets_[index + 1] - offsets_[index]);
  }
  // The same and what lies behind them: who may load whole words needs no copy.
  [[nodiscard]] ByteView from(std::size_t index) const { return bytes_.subspan(offsets_[index]); }

 private:
  friend Result<DeltaView> parse_delta(const Layout& layout, Level level, ByteView bytes);
  friend DeltaView own_delta(const Layout& layout, Level level, ByteView bytes,
                             std::vector<std::uint32_t> offsets);
  DeltaView(const Layout& layout, Level level, ByteView bytes)
      : layout_(&layout), level_(level), bytes_(bytes) {}

  const Layout* layout_;
  Level level_;
  ByteView bytes_;
  std::vector<std::uint32_t> offsets_;  // blocks() + 1
};

// The checked delta. Everything is looked at before anything is used, and the bytes must end with
// the last block.
//
// Errors:  bad_message, with block and reason.
// Cost:    one pass over the bytes; allocates by the layout alone.
[[nodiscard]] Result<DeltaView> parse_delta(const Layout& layout, Level level, ByteView bytes);

// What encode() made here, with the offsets that it gave: nothing is looked at again.
[[nodiscard]] DeltaView own_delta(const Layout& layout, Level level, ByteView bytes,
                                  std::vector<std::uint32_t> offsets);

// One block of a checked delta.
struct DeltaBlock {
  const Layout& layout;
  Level level;
  std::size_t index;
  ByteView bytes;  // begin with those of the block, and may go on
};

// What whoever decodes a block knows besides.
struct DecodeHints {
  // What is needed next, to be asked for meanwhile: decoding touches no memory, and the walk behind
  // it nothing else.
  std::span<const float> soon = {};
  const Selection* selection = nullptr;  // of a sparse block that was encoded just now
  bool zeros = false;                    // `out` holds nothing but zeros
};

// Writes q of one block: width(index) values; `out` has room for kBlock.
void decode_block(const DeltaBlock& block, std::span<float> out, Isa isa,
                  const DecodeHints& hints = {});
void decode_block(const DeltaView& view, std::size_t block, std::span<float> out, Isa isa);

// Where the values of a dense block lie in its bytes, if decode_block() would do no more than write
// them out one by one; else none.
[[nodiscard]] std::optional<DenseBlock> dense_block(const DeltaBlock& block);

// At least |q|^2 of one block, from its scales and the number of its values alone: exact for L3, a
// quarter too much for what is sparse, several times too much where a group has one scale. A small
// tensor's block is decoded, and its energy exact.
[[nodiscard]] double energy_bound(const DeltaView& view, std::size_t block);

}  // namespace starling::gossip
