// From bytes to values: parse_delta() looks at everything once, decode_block() then trusts what it
// reads.
#include "gossip/delta/bits.h"
#include "gossip/delta/block_encoder.h"
#include "gossip/delta/codec.h"
#include "gossip/delta/kernels.h"
#include "gossip/delta/sparse_stream.h"
#include "node/base/check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace starling::gossip {

namespace {

const std::uint8_t* raw(ByteView bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

std::uint16_t u16_at(ByteView bytes, std::size_t at) {
  std::uint16_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// How the dense groups of a block are written.
struct Groups {
  std::size_t size = kGroup;
  std::size_t bits = 4;
};

// The groups of a block, if its level has any.
std::optional<Groups> groups_of(const Layout& layout, std::size_t block, Level level) {
  if (level == Level::l6) return Groups{kGroup, 8};
  if (layout.is_small(block)) return Groups{kSmallGroup, 4};
  if (level == Level::l5) return Groups{kGroup, 4};
  return std::nullopt;
}

// Checks one block after the other. check() returns the length of the block in bytes, or sets
// reason().
class BlockChecker {
 public:
  BlockChecker(const Layout& layout, Level level)
      : layout_(layout), level_(level), kernels_(kernels_of(detected_isa())) {}

  std::optional<std::size_t> check(std::size_t block, ByteView rest) {
    block_ = block;
    if (const auto groups = groups_of(layout_, block, level_)) return check_groups(*groups, rest);
    if (rest.size() < 2) return refuse("cut off");
    const std::uint16_t high = u16_at(rest, 0);
    if (!is_valid_scale(high)) return refuse("a centroid is negative or not finite");
    if (high == 0) return 2;
    if (level_ == Level::l3) return check_bits(rest, 2, 1);
    if (rest.size() < 4) return refuse("cut off");
    if (u16_at(rest, 2) > high) return refuse("the low centroid is above the high one");
    return level_ == Level::l4 ? check_bits(rest, 4, 2) : check_sparse(rest.subspan(4));
  }
  [[nodiscard]] const char* reason() const { return reason_; }

 private:
  std::nullopt_t refuse(const char* reason) {
    reason_ = reason;
    return std::nullopt;
  }

  // Whether test(i) says so for an index of padding in [first, end).
  template <class Test>
  bool any_padding(std::size_t first, std::size_t end, Test test) const {
    bool found = false;
    layout_.for_each_padding(block_, first, end, [&](std::size_t i) { found = found || test(i); });
    return found;
  }

  std::optional<std::size_t> check_bits(ByteView rest, std::size_t at, std::size_t planes) {
    const std::size_t width = layout_.width(block_);
    const std::size_t plane = width / 8;
    if (rest.size() < at + planes * plane) return refuse("cut off");
    for (std::size_t p = 0; p < planes; ++p) {
      const std::uint8_t* bits = raw(rest) + at + p * plane;
      if (any_padding(0, width, [bits](std::size_t i) { return bit_of(bits, i); }))
        return refuse("a bit at padding is set");
    }
    return at + planes * plane;
  }

  std::optional<std::size_t> check_sparse(ByteView rest) {
    const StreamBounds bounds{level_, static_cast<std::uint32_t>(layout_.width(block_)),
                              static_cast<std::uint32_t>(layout_.real_count(block_))};
    std::size_t length = 0;
    if (const char* wrong = check_stream(rest, bounds, length)) return refuse(wrong);
    if (!layout_.real_mask(block_).empty()) {
      STARLING_CHECK(read_stream(kernels_, rest, bounds, stream_) == nullptr);
      for (std::uint32_t i = 0; i < stream_.count; ++i)
        if (!layout_.is_real(block_, stream_.index[i])) return refuse("an index into padding");
    }
    return 4 + length;
  }

  std::optional<std::size_t> check_groups(const Groups& groups, ByteView rest) {
    const std::size_t width = layout_.width(block_);
    const std::size_t count = (width + groups.size - 1) / groups.size;
    if (rest.size() < 2 * count) return refuse("cut off");
    const std::uint16_t largest = groups.bits == 8 ? kMaxScale8 : kMaxScale4;
    std::size_t at = 2 * count;
    for (std::size_t g = 0; g < count; ++g) {
      const std::uint16_t scale = u16_at(rest, 2 * g);
      if (scale > largest) return refuse("a scale is negative, not finite or too large");
      if (scale == 0) continue;
      const std::size_t n = std::min(groups.size, width - g * groups.size);
      const std::size_t bytes = n * groups.bits / 8;
      if (rest.size() - at < bytes) return refuse("cut off");
      const std::uint8_t* codes = raw(rest) + at;
      const auto has_forbidden =
          groups.bits == 8 ? kernels_.has_forbidden8 : kernels_.has_forbidden4;
      if (has_forbidden(codes, n)) return refuse("a code that no encoder makes");
      if (code_at_padding(g * groups.size, n, codes, groups.bits))
        return refuse("a code at padding is not zero");
      at += bytes;
    }
    return at;
  }

  bool code_at_padding(std::size_t first, std::size_t n, const std::uint8_t* codes,
                       std::size_t bits) const {
    return any_padding(first, first + n, [=](std::size_t i) {
      const std::size_t at = i - first;
      return bits == 8 ? codes[at] != 0 : (codes[at / 2] >> at % 2 * 4 & 0xf) != 0;
    });
  }

  const Layout& layout_;
  Level level_;
  const Kernels& kernels_;
  std::size_t block_ = 0;
  const char* reason_ = "";
  SparseStream stream_;
};

void decode_groups(const Kernels& kernels, const Groups& groups, ByteView bytes,
                   std::span<float> out) {
  const std::size_t count = (out.size() + groups.size - 1) / groups.size;
  const std::uint8_t* codes = raw(bytes) + 2 * count;
  for (std::size_t g = 0; g < count; ++g) {
    const auto values =
        out.subspan(g * groups.size, std::min(groups.size, out.size() - g * groups.size));
    const std::uint16_t scale = u16_at(bytes, 2 * g);
    if (scale == 0) {
      std::ranges::fill(values, 0.0F);
      continue;
    }
    const auto expand = groups.bits == 8 ? kernels.expand8 : kernels.expand4;
    expand(codes, values.size(), from_bf16(scale), values.data());
    codes += values.size() * groups.bits / 8;
  }
}

// The values of a selection, over zeros.
void put_selected(const Kernels& kernels, const Selection& selection, const float low_high[2],
                  std::span<float> out, std::span<const float> soon) {
  const std::size_t k = selection.indices.size();
  // The bits are in memory as the planes of L4 are; whole vectors of values fit.
  alignas(64) std::array<float, kMaxSelected> values;
  kernels.expand_two(selection.signs, selection.sizes, (k + 15) / 16 * 16, low_high, values.data());
  constexpr std::size_t kTogether = 8;  // between two looks ahead
  Ahead ahead(soon, k / kTogether + 1);
  std::size_t i = 0;
  for (; i + kTogether <= k; i += kTogether) {
    ahead.step();
    for (std::size_t j = i; j < i + kTogether; ++j) out[selection.indices[j]] = values[j];
  }
  ahead.step();
  for (; i < k; ++i) out[selection.indices[i]] = values[i];
}

void decode_sparse(const Kernels& kernels, const DeltaBlock& block, std::span<float> out,
                   const DecodeHints& hints) {
  const float low_high[2] = {from_bf16(u16_at(block.bytes, 2)), from_bf16(u16_at(block.bytes, 0))};
  if (!hints.zeros) std::ranges::fill(out, 0.0F);
  if (hints.selection != nullptr)
    return put_selected(kernels, *hints.selection, low_high, out, hints.soon);
  const StreamBounds bounds{block.level, static_cast<std::uint32_t>(out.size()),
                            static_cast<std::uint32_t>(block.layout.real_count(block.index))};
  // Where the time goes: half of what is needed is asked for while the stream is read.
  const auto meanwhile = hints.soon.first(hints.soon.size() / 2);
  SparseStream stream;
  STARLING_CHECK(read_stream(kernels, block.bytes.subspan(4), bounds, stream, meanwhile) ==
                 nullptr);
  put_selected(kernels, stream.selection(), low_high, out, hints.soon.subspan(meanwhile.size()));
}

void zero_padding(const Layout& layout, std::size_t block, std::span<float> out) {
  layout.for_each_padding(block, 0, out.size(), [out](std::size_t i) { out[i] = 0; });
}

}  // namespace

Result<DeltaView> parse_delta(const Layout& layout, Level level, ByteView bytes) {
  if (bytes.size() > max_bytes(layout, level))
    return fail(Errc::bad_message, Doing::reading_delta,
                std::to_string(bytes.size()) + " bytes, a delta of level " +
                    std::string(name_of(level)) + " has at most " +
                    std::to_string(max_bytes(layout, level)));
  DeltaView view(layout, level, bytes);
  view.offsets_.reserve(layout.blocks() + 1);
  view.offsets_.push_back(0);
  BlockChecker checker(layout, level);
  std::size_t at = 0;
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    const auto size = checker.check(block, bytes.subspan(at));
    if (!size)
      return fail(Errc::bad_message, Doing::reading_delta,
                  std::string(name_of(level)) + " delta, block " + std::to_string(block) + ": " +
                      checker.reason());
    at += *size;
    view.offsets_.push_back(static_cast<std::uint32_t>(at));
  }
  if (at != bytes.size())
    return fail(Errc::bad_message, Doing::reading_delta,
                std::string(name_of(level)) + " delta: " + std::to_string(bytes.size() - at) +
                    " bytes behind the last block");
  return view;
}

DeltaView own_delta(const Layout& layout, Level level, ByteView bytes,
                    std::vector<std::uint32_t> offsets) {
  STARLING_CHECK_OP(offsets.size(), ==, layout.blocks() + 1);
  STARLING_CHECK_OP(offsets.back(), ==, bytes.size());
  DeltaView view(layout, level, bytes);
  view.offsets_ = std::move(offsets);
  return view;
}

void decode_block(const DeltaView& view, std::size_t block, std::span<float> out, Isa isa) {
  decode_block({view.layout(), view.level(), block, view.from(block)}, out, isa);
}

void decode_block(const DeltaBlock& block, std::span<float> out, Isa isa,
                  const DecodeHints& hints) {
  const auto& [layout, level, index, bytes] = block;
  const Kernels& kernels = kernels_of(isa);
  const auto q = out.first(layout.width(index));
  if (!is_sparse(level)) Ahead(hints.soon, 1).step();  // too little work to ask beside it
  if (const auto groups = groups_of(layout, index, level))
    return decode_groups(kernels, *groups, bytes, q);
  const std::uint16_t high = u16_at(bytes, 0);
  if (high == 0) {
    if (!hints.zeros) std::ranges::fill(q, 0.0F);
    return;
  }
  if (level == Level::l3) {
    kernels.expand_signs(raw(bytes) + 2, q.size(), from_bf16(high), q.data());
    return zero_padding(layout, index, q);
  }
  if (is_sparse(level)) return decode_sparse(kernels, block, q, hints);
  const float low_high[2] = {from_bf16(u16_at(bytes, 2)), from_bf16(high)};
  kernels.expand_two(raw(bytes) + 4, raw(bytes) + 4 + q.size() / 8, q.size(), low_high, q.data());
  zero_padding(layout, index, q);
}

std::optional<DenseBlock> dense_block(const DeltaBlock& block) {
  const auto& [layout, level, index, bytes] = block;
  if (is_sparse(level)) return std::nullopt;
  const std::uint8_t* const numbers = raw(bytes);
  if (const auto groups = groups_of(layout, index, level)) {
    if (groups->size != kGroup) return std::nullopt;
    return DenseBlock{numbers, numbers + 2 * ((layout.width(index) + kGroup - 1) / kGroup)};
  }
  if (!layout.real_mask(index).empty() || u16_at(bytes, 0) == 0) return std::nullopt;
  return DenseBlock{numbers, numbers + (level == Level::l3 ? 2 : 4)};
}

double energy_bound(const DeltaView& view, std::size_t block) {
  const Layout& layout = view.layout();
  const ByteView bytes = view.block(block);
  const std::size_t width = layout.width(block);
  const auto square = [](double value) { return value * value; };
  const auto scale = [bytes](std::size_t i) {
    return static_cast<double>(from_bf16(u16_at(bytes, 2 * i)));
  };
  double energy = 0;
  if (layout.is_small(block)) {
    // Few blocks, sent whole: where a delta is sparse they are much of it.
    std::array<float, kBlock> q;
    decode_block(view, block, q, detected_isa());
    for (const float value : std::span(q).first(width))
      energy += square(static_cast<double>(value));
    return energy;
  }
  if (const auto groups = groups_of(layout, block, view.level())) {
    const double largest = groups->bits == 8 ? 127 : 7;
    for (std::size_t g = 0; g * groups->size < width; ++g)
      energy += static_cast<double>(groups->size) * square(largest * scale(g));
    return energy;
  }
  if (scale(0) == 0) return 0;
  const std::size_t count =
      is_sparse(view.level()) ? selected_count(view.level(), bytes.subspan(4)) : width;
  return static_cast<double>(count) * square(scale(0));
}

}  // namespace starling::gossip
