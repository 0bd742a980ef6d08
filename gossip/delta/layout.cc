#include "gossip/delta/layout.h"

#include "node/base/check.h"
#include "node/base/hash.h"

#include <algorithm>
#include <bit>
#include <optional>

namespace starling::gossip {

namespace {

constexpr std::size_t kMaxParameters = std::size_t{1} << 31;
constexpr std::size_t kMaskWords = kBlock / 64;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::optional<std::size_t> count_of(const TensorSpec& tensor) {
  std::size_t count = 1;
  for (const std::int64_t dim : tensor.dims) {
    if (dim < 1 || static_cast<std::uint64_t>(dim) > kMaxParameters) return std::nullopt;
    count *= static_cast<std::size_t>(dim);
    if (count > kMaxParameters) return std::nullopt;
  }
  return count;
}

Result<void> check(const std::vector<TensorSpec>& tensors) {
  if (tensors.empty())
    return fail(Errc::bad_argument, Doing::building_model, "a layout without tensors");
  std::size_t parameters = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty())
      return fail(Errc::bad_argument, Doing::building_model, "a tensor without a name");
    const auto count = count_of(tensor);
    if (count) parameters += *count;
    if (!count || parameters > kMaxParameters)
      return fail(Errc::bad_argument, Doing::building_model,
                  "tensor " + tensor.name + " has a dimension below 1 or too many values");
  }
  std::vector<std::string_view> names;
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    return fail(Errc::bad_argument, Doing::building_model,
                "two tensors are named " + std::string(*twice));
  return {};
}

}  // namespace

Result<Layout> Layout::make(std::vector<TensorSpec> tensors, std::size_t bn_channels) {
  TRY_VOID(check(tensors));
  Layout layout;
  layout.bn_channels_ = bn_channels;
  // std::string compares by unsigned characters: bytewise, whatever the locale.
  std::ranges::sort(tensors, {}, [](const TensorSpec& tensor) {
    return std::pair<bool, std::string_view>(tensor.dims.size() <= 1, tensor.name);
  });
  layout.place(std::move(tensors));
  layout.mark_padding();
  layout.make_manifest();
  return layout;
}

void Layout::place(std::vector<TensorSpec> tensors) {
  std::size_t at = 0;
  bool in_small_part = false;
  for (TensorSpec& tensor : tensors) {
    if (!in_small_part && tensor.dims.size() <= 1) {
      close_part(0, at);
      first_small_block_ = widths_.size();
      at = widths_.size() * kBlock;
      in_small_part = true;
    }
    const std::size_t count = *count_of(tensor);
    tensors_.push_back({std::move(tensor.name), std::move(tensor.dims), at, count});
    parameters_ += count;
    at += round_up(count, kTensorAlignment);
  }
  close_part(in_small_part ? first_small_block_ : 0, at);
  if (!in_small_part) first_small_block_ = widths_.size();
}

void Layout::close_part(std::size_t first_block, std::size_t end) {
  for (std::size_t start = first_block * kBlock; start < end; start += kBlock)
    widths_.push_back(static_cast<std::uint16_t>(std::min(kBlock, end - start)));
}

void Layout::mark_padding() {
  real_counts_ = widths_;
  mask_of_block_.assign(widths_.size(), -1);
  for (const TensorPlace& tensor : tensors_) {
    const std::size_t end = tensor.offset + round_up(tensor.count, kTensorAlignment);
    for (std::size_t at = tensor.offset + tensor.count; at < end; ++at) {
      const std::size_t block = at / kBlock;
      if (mask_of_block_[block] < 0) {
        mask_of_block_[block] = static_cast<std::int32_t>(masks_.size() / kMaskWords);
        masks_.resize(masks_.size() + kMaskWords);
        const auto mask = std::span(masks_).last(kMaskWords);
        for (std::size_t i = 0; i < widths_[block]; ++i) mask[i / 64] |= std::uint64_t{1} << i % 64;
      }
      const auto first = static_cast<std::size_t>(mask_of_block_[block]) * kMaskWords;
      masks_[first + at % kBlock / 64] &= ~(std::uint64_t{1} << at % 64);
      --real_counts_[block];
    }
  }
}

void Layout::make_manifest() {
  Hasher hasher;
  hasher.add("starling layout 1").add(bn_channels_).add(tensors_.size());
  for (const TensorPlace& tensor : tensors_) {
    hasher.add(tensor.name.size()).add(tensor.name).add(tensor.dims.size());
    for (const std::int64_t dim : tensor.dims) hasher.add(static_cast<std::uint64_t>(dim));
  }
  manifest_ = hasher.finish();
}

std::span<const std::uint64_t> Layout::real_mask(std::size_t block) const {
  const std::int32_t mask = mask_of_block_[block];
  if (mask < 0) return {};
  return std::span(masks_).subspan(static_cast<std::size_t>(mask) * kMaskWords, kMaskWords);
}

bool Layout::is_real(std::size_t block, std::size_t index) const {
  if (index >= widths_[block]) return false;
  const auto mask = real_mask(block);
  return mask.empty() || (mask[index / 64] >> index % 64 & 1) != 0;
}

const TensorPlace* Layout::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &TensorPlace::name);
  return found == tensors_.end() ? nullptr : &*found;
}

namespace {

// Whether a tensor's values have the same order in the file: all but convolutions wider than 1 x 1.
bool has_file_order(const TensorPlace& place) {
  return place.dims.size() != 4 || place.dims[2] * place.dims[3] == 1;
}

// Calls move(position in the file, canonical position) for each value of a tensor.
template <class Move>
void for_each_value(const TensorPlace& place, Move move) {
  const auto outputs = static_cast<std::size_t>(place.dims[0]);
  const auto inputs = static_cast<std::size_t>(place.dims[1]);
  const auto area = static_cast<std::size_t>(place.dims[2] * place.dims[3]);
  for (std::size_t o = 0; o < outputs; ++o)
    for (std::size_t i = 0; i < inputs; ++i)
      for (std::size_t p = 0; p < area; ++p)
        move((o * inputs + i) * area + p, (o * area + p) * inputs + i);
}

}  // namespace

void to_canonical(const TensorPlace& place, std::span<const float> file,
                  std::span<float> canonical) {
  STARLING_CHECK(file.size() >= place.count && canonical.size() >= place.count);
  if (has_file_order(place)) {
    std::ranges::copy(file.first(place.count), canonical.begin());
    return;
  }
  for_each_value(place, [&](std::size_t from, std::size_t to) { canonical[to] = file[from]; });
}

void to_file_order(const TensorPlace& place, std::span<const float> canonical,
                   std::span<float> file) {
  STARLING_CHECK(file.size() >= place.count && canonical.size() >= place.count);
  if (has_file_order(place)) {
    std::ranges::copy(canonical.first(place.count), file.begin());
    return;
  }
  for_each_value(place, [&](std::size_t to, std::size_t from) { file[to] = canonical[from]; });
}

}  // namespace starling::gossip
