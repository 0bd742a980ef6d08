// What the fuzz targets of gossip/delta share: a model of a few hundred values with padding in
// every kind of block, and input taken from the front of the fuzzer's bytes.
#pragma once

#include "gossip/delta/codec.h"
#include "node/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace starling::gossip::fuzzing {

// A whole block and part of one in the big part, part of a block in the small one.
inline Layout make_layout() {
  auto layout = Layout::make({{"a", {61, 67}}, {"b", {15, 2}}, {"c", {100}}, {"d", {}}}, 3);
  STARLING_CHECK(layout.has_value());
  return *std::move(layout);
}

// A few hundred values, for targets that do much for each input.
inline Layout make_small_layout() {
  auto layout = Layout::make({{"a", {13, 17}}, {"b", {15, 2}}, {"c", {100}}, {"d", {}}}, 3);
  STARLING_CHECK(layout.has_value());
  return *std::move(layout);
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const std::uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }
  Level level() { return static_cast<Level>(byte() % 7); }
  // An exact heap copy of what is left: reads behind the end are seen.
  [[nodiscard]] Bytes rest() const { return to_bytes(std::as_bytes(left_)); }
  float value() {
    float result = 0;
    const std::size_t size = std::min(sizeof(result), left_.size());
    if (size > 0) std::memcpy(&result, left_.data(), size);
    left_ = left_.subspan(size);
    return result;
  }
  [[nodiscard]] bool empty() const { return left_.empty(); }

 private:
  std::span<const std::uint8_t> left_;
};

// Decodes a checked delta on every path that runs here: all must agree, values be finite and
// padding be zero.
inline std::vector<float> decode_everywhere(const DeltaView& view) {
  const Layout& layout = view.layout();
  std::vector<float> result;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (!is_available(isa)) continue;
    std::vector<float> q(layout.size());
    for (std::size_t block = 0; block < layout.blocks(); ++block)
      decode_block(view, block, std::span(q).subspan(block * kBlock, kBlock), isa);
    if (isa == Isa::scalar) result = q;
    STARLING_CHECK(std::memcmp(result.data(), q.data(), q.size() * sizeof(float)) == 0);
  }
  STARLING_CHECK(std::ranges::all_of(result, [](float value) { return std::isfinite(value); }));
  for (std::size_t block = 0; block < layout.blocks(); ++block)
    layout.for_each_padding(block, 0, layout.width(block), [&](std::size_t i) {
      STARLING_CHECK(result[block * kBlock + i] == 0);
    });
  return result;
}

}  // namespace starling::gossip::fuzzing
