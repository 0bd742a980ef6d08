// The bit stream of a sparse block: count, Rice-coded gaps, signs and sizes (format: codec.h).
#pragma once

#include "gossip/delta/codec.h"
#include "gossip/delta/kernels.h"

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
std::size_t write_stream(Level level, const Selection& selection, std::uint8_t* out);

// What a stream says. Bit i of signs and sizes belongs to index[i].
struct SparseStream {
  std::uint32_t count = 0;
  std::size_t bytes = 0;  // length of the stream
  std::array<std::uint16_t, kMaxSelected + 4> index;
  std::array<std::uint64_t, kMaxSelected / 64> signs;
  std::array<std::uint64_t, kMaxSelected / 64> sizes;
};

// The number of selected values that a stream says it has, whether it is valid or not.
[[nodiscard]] std::uint32_t selected_count(Level level, ByteView bytes);

// Which streams are valid for a block.
struct StreamBounds {
  Level level = Level::l2;
  std::uint32_t width = 0;       // indices are below
  std::uint32_t real_count = 0;  // bounds k
};

// Reads the stream at the start of `bytes`, which may go on after it. Returns what is wrong with
// it, or null. Never reads behind the end; padding is the caller's to check.
const char* read_stream(const Kernels& kernels, ByteView bytes, const StreamBounds& bounds,
                        SparseStream& out);

}  // namespace starling::gossip
