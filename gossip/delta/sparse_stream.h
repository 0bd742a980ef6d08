// The bit stream of a sparse block: count, Rice-coded gaps, signs and sizes (format: codec.h).
#pragma once

#include "gossip/delta/codec.h"
#include "gossip/delta/isa.h"
#include "gossip/delta/kernels.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace starling::gossip {

// Most bits of the stream for k values; what follows the two centroids of a block.
[[nodiscard]] constexpr std::size_t max_stream_bits(Level level, std::uint32_t k) {
  return std::size_t{count_bits(level)} + max_index_bits(k) + 2 * std::size_t{k};
}

// The selected values of a block: rising indices, and a bit of signs and sizes for each. Eight
// bytes behind the last bit of either may be read; bits above the last are zero.
struct Selection {
  std::span<const std::uint16_t> indices;
  const std::uint8_t* signs = nullptr;  // 1: negative
  const std::uint8_t* sizes = nullptr;  // 1: high
};

// Writes the stream and returns its length in bytes. `out` has room for the longest stream and
// sixteen bytes more.
std::size_t write_stream(const Kernels& kernels, Level level, const Selection& selection,
                         std::uint8_t* out);

// What a stream says. Bit i of signs and sizes belongs to index[i].
struct SparseStream {
  std::uint32_t count = 0;
  std::size_t bytes = 0;  // length of the stream
  std::array<std::uint16_t, kMaxSelected + 8> index;
  std::array<std::uint64_t, kMaxSelected / 64> signs;
  std::array<std::uint64_t, kMaxSelected / 64> sizes;

  [[nodiscard]] Selection selection() const {
    return {std::span(index).first(count), reinterpret_cast<const std::uint8_t*>(signs.data()),
            reinterpret_cast<const std::uint8_t*>(sizes.data())};
  }
};

// The number of selected values that a stream says it has, whether it is valid or not.
[[nodiscard]] std::uint32_t selected_count(Level level, ByteView bytes);

// Which streams are valid for a block.
struct StreamBounds {
  Level level = Level::l2;
  std::uint32_t width = 0;       // indices are below
  std::uint32_t real_count = 0;  // bounds k
};

// Asks for memory that is needed soon, a few cache lines at each step of other work: a processor
// that asks for all of it at once waits for all of it at once. One that reads on by itself is asked
// for the first two lines of each 4 KiB, which are pages where the vector is large.
class Ahead {
 public:
  Ahead(std::span<const float> values, std::size_t steps)
      : at_(values.data()),
        lines_((values.size() + kLine - 1) / kLine),
        each_(std::max<std::size_t>(1, lines_ / steps)) {
    if (!reads_pages_ahead()) return;
    for (std::size_t line = 0; line < lines_; line += kPage) {
      __builtin_prefetch(at_ + line * kLine, 0, 1);
      __builtin_prefetch(at_ + (line + 1) * kLine, 0, 1);
    }
    lines_ = 0;
  }
  void step() {
    const std::size_t now = std::min(each_, lines_);
    lines_ -= now;
    for (std::size_t line = 0; line < now; ++line, at_ += kLine) __builtin_prefetch(at_, 0, 1);
  }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(float);
  static constexpr std::size_t kPage = 4'096 / 64;  // in lines
  const float* at_;
  std::size_t lines_;
  std::size_t each_;
};

// Reads the stream at the start of `bytes`, which may go on after it. Returns what is wrong with
// it, or null. Never reads behind the end; padding is the caller's to check. Meanwhile asks for
// `soon`, which is not read.
const char* read_stream(const Kernels& kernels, ByteView bytes, const StreamBounds& bounds,
                        SparseStream& out, std::span<const float> soon = {});

// What read_stream() finds wrong with the same stream, or null, and then its length in bytes.
//
// Cost:    a third of it: the indices need not be known to know that they are valid.
const char* check_stream(ByteView bytes, const StreamBounds& bounds, std::size_t& length);

}  // namespace starling::gossip
