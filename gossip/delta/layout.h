// Layout: the canonical order of a model's parameters, part of the wire version (rulings 11).
#pragma once

#include "gossip/delta/format.h"
#include "node/base/ids.h"
#include "node/base/result.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::gossip {

// A parameter tensor as files describe it: torchvision name, dimensions in file order (O, I, H, W).
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> dims;
};

// Where a tensor lies in the canonical order. Rank 4 lies there as O, H, W, I.
struct TensorPlace {
  std::string name;
  std::vector<std::int64_t> dims;  // as in files
  std::size_t offset = 0;          // of its first float; a multiple of 16
  std::size_t count = 0;           // real values; padding up to the next multiple of 16 follows
  [[nodiscard]] bool is_small() const { return dims.size() <= 1; }
};

// The canonical order: tensors of rank >= 2 by bytewise name, each padded to 16 floats, the part
// padded to a whole block; then tensors of rank <= 1 the same way. ("big part", "small part")
//
// An immutable value, made once from the model's tensor table and shared by reference; whoever
// makes it outlives the users. Thread: any. Holds what the settings say, nothing of a peer. Costs
// one entry a tensor, and 512 bytes for each block that has padding between its values.
class Layout {
 public:
  // The layout of these tensors, given in any order, with `bn_channels` channels of BatchNorm
  // statistics in all.
  //
  // Errors:  bad_argument: no tensor, an empty or repeated name, a dimension below 1, more than
  //          2^31 parameters.
  [[nodiscard]] static Result<Layout> make(std::vector<TensorSpec> tensors,
                                           std::size_t bn_channels);

  // Floats of x and r: whole blocks, padding included.
  [[nodiscard]] std::size_t size() const { return widths_.size() * kBlock; }
  // Real parameters, without padding.
  [[nodiscard]] std::size_t parameters() const { return parameters_; }
  [[nodiscard]] std::size_t blocks() const { return widths_.size(); }
  // Blocks from here on hold tensors of rank <= 1.
  [[nodiscard]] std::size_t first_small_block() const { return first_small_block_; }
  [[nodiscard]] bool is_small(std::size_t block) const { return block >= first_small_block_; }
  [[nodiscard]] std::size_t bn_channels() const { return bn_channels_; }

  // Floats of a block up to the end of its part's last tensor, padded to 16: 4,096 but for the last
  // block of each part. What lies behind is padding and never on the wire.
  [[nodiscard]] std::size_t width(std::size_t block) const { return widths_[block]; }
  // Real values of a block.
  [[nodiscard]] std::size_t real_count(std::size_t block) const { return real_counts_[block]; }
  // Bit i of word i / 64 is set where value i of the block is real; 64 words, or none when all
  // width(block) values are.
  [[nodiscard]] std::span<const std::uint64_t> real_mask(std::size_t block) const;
  [[nodiscard]] bool is_real(std::size_t block, std::size_t index) const;
  // Calls visit(index) for every index of padding in [first, end) of a block; `end` is at most its
  // width.
  template <class Visit>
  void for_each_padding(std::size_t block, std::size_t first, std::size_t end, Visit visit) const {
    const auto mask = real_mask(block);
    if (mask.empty()) return;
    for (std::size_t word = first / 64; word * 64 < end; ++word)
      for (std::uint64_t padding = ~mask[word]; padding != 0; padding &= padding - 1) {
        const std::size_t index = word * 64 + static_cast<std::size_t>(std::countr_zero(padding));
        if (index >= first && index < end) visit(index);
      }
  }

  // In canonical order.
  [[nodiscard]] std::span<const TensorPlace> tensors() const { return tensors_; }
  [[nodiscard]] const TensorPlace* find(std::string_view name) const;

  // Hash of names, dimensions, their order and the number of channels: two nodes with the same one
  // read the same delta the same way.
  [[nodiscard]] const Hash& manifest() const { return manifest_; }

 private:
  Layout() = default;
  void place(std::vector<TensorSpec> tensors);
  void close_part(std::size_t first_block, std::size_t end);
  void mark_padding();
  void make_manifest();

  std::vector<TensorPlace> tensors_;
  std::vector<std::uint16_t> widths_;
  std::vector<std::uint16_t> real_counts_;
  std::vector<std::int32_t> mask_of_block_;  // index into masks_, -1: no padding inside the width
  std::vector<std::uint64_t> masks_;         // 64 words each
  std::size_t parameters_ = 0;
  std::size_t first_small_block_ = 0;
  std::size_t bn_channels_ = 0;
  Hash manifest_;
};

// Copies a tensor between file order (O, I, H, W) and its canonical place (O, H, W, I); other ranks
// are copied as they are. `canonical` starts at the tensor's offset; both spans hold at least
// `place.count` values, or STARLING_CHECK fails.
void to_canonical(const TensorPlace& place, std::span<const float> file,
                  std::span<float> canonical);
void to_file_order(const TensorPlace& place, std::span<const float> canonical,
                   std::span<float> file);

}  // namespace starling::gossip
