#include "training/cpu/winograd.h"

#include "node/base/check.h"

#include <algorithm>

namespace starling::training {
namespace {

// Tiles that are transformed before they are multiplied: so many that the weights, which are read
// once for each block, cost little, and so few that what was transformed is still in the cache.
constexpr std::size_t kBlockBytes = 640 * 1024;
constexpr std::size_t kLeastBlock = 48;
constexpr std::size_t kGradientBlock = 192;  // even: tiles go in pairs

constexpr std::size_t kPoints = kWinogradPoints;
constexpr std::size_t kPanel = kWinogradPanel;
// Channels of a group of rows in a weight gradient: a line of the cache has one pair of tiles.
constexpr std::size_t kGroup = 16;

constexpr std::size_t up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// From one point to the next: a line of the cache more than the values, or all points of a tile
// would meet in the same few sets.
template <class T>
constexpr std::size_t stride_of(std::size_t values) {
  return values + 64 / sizeof(T);
}

template <class T>
T* at(std::span<std::byte> workspace, std::size_t offset) {
  return reinterpret_cast<T*>(workspace.data() + offset);
}

std::size_t block_of(std::size_t channels, std::size_t tiles) {
  const std::size_t bytes = kPoints * (channels * sizeof(Bf16) + kPanel * sizeof(float));
  return std::min(tiles, std::max(kLeastBlock, kBlockBytes / bytes));
}

std::size_t gradient_block(std::size_t tiles) {
  return std::min(kGradientBlock, tiles + tiles % 2);
}

}  // namespace

const WinogradKernels* winograd_kernels() {
#ifdef STARLING_X86_KERNELS
  if (__builtin_cpu_supports("avx512bf16") != 0) return &winograd_kernels_avx512();
#endif
  return nullptr;
}

Winograd::Winograd(const WinogradShape& shape, const WinogradKernels& kernels)
    : shape_(shape),
      kernels_(kernels),
      tiles_down_((shape.height + 1) / 2),
      tiles_across_((shape.width + 1) / 2),
      tiles_(shape.images * tiles_down_ * tiles_across_),
      zeros_(std::max(shape.inputs, shape.outputs)) {
  STARLING_CHECK_OP(shape.inputs % kPanel, ==, 0U);
  STARLING_CHECK_OP(shape.outputs % kPanel, ==, 0U);
}

Winograd::Place Winograd::place_of(std::size_t tile) const {
  const std::size_t row = tile / tiles_across_;
  return {row / tiles_down_, 2 * (row % tiles_down_), 2 * (tile % tiles_across_)};
}

void Winograd::input_pixels(const Bf16* x, std::size_t channels, std::size_t tile,
                            const Bf16** to) const {
  const Place place = place_of(tile);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t line = place.line + i - 1;  // above the image: far below it
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t column = place.column + j - 1;
      const bool inside = tile < tiles_ && line < shape_.height && column < shape_.width;
      const std::size_t pixel = (place.image * shape_.height + line) * shape_.width + column;
      to[4 * i + j] = inside ? x + pixel * channels : zeros_.data();
    }
  }
}

template <class Value>
void Winograd::output_pixels(Value* y, std::size_t channels, std::size_t tile, Value** to) const {
  const Place place = place_of(tile);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::size_t line = place.line + i;
    for (std::size_t j = 0; j < 2; ++j) {
      const std::size_t column = place.column + j;
      const bool inside = tile < tiles_ && line < shape_.height && column < shape_.width;
      const std::size_t pixel = (place.image * shape_.height + line) * shape_.width + column;
      to[2 * i + j] = inside ? y + pixel * channels : nullptr;
    }
  }
}

Winograd::Parts Winograd::correlation_parts(std::size_t ins, std::size_t outs) const {
  const std::size_t block = block_of(ins, tiles_);
  const std::size_t v = up(kPoints * ins * outs * sizeof(Bf16));
  const std::size_t m = v + kPoints * stride_of<Bf16>(block * ins) * sizeof(Bf16);
  return {v, m, m + kPoints * stride_of<float>(block * kPanel) * sizeof(float)};
}

// The gradient of U, then both inputs of its product.
Winograd::Parts Winograd::gradient_parts() const {
  const std::size_t block = gradient_block(tiles_);
  const std::size_t v = kPoints * stride_of<float>(shape_.inputs * shape_.outputs) * sizeof(float);
  const std::size_t z = v + kPoints * stride_of<Bf16>(block * shape_.inputs) * sizeof(Bf16);
  return {v, z, z + kPoints * stride_of<Bf16>(block * shape_.outputs) * sizeof(Bf16)};
}

std::size_t Winograd::workspace_bytes() const {
  return std::max({correlation_parts(shape_.inputs, shape_.outputs).end,
                   correlation_parts(shape_.outputs, shape_.inputs).end, gradient_parts().end});
}

void Winograd::correlate(const Bf16* x, std::size_t ins, std::size_t outs, Bf16* y,
                         std::span<std::byte> workspace) const {
  const Parts parts = correlation_parts(ins, outs);
  STARLING_CHECK_OP(workspace.size(), >=, parts.end);
  const auto* const u = at<const Bf16>(workspace, 0);
  auto* const v = at<Bf16>(workspace, parts.v);
  auto* const m = at<float>(workspace, parts.m);
  const std::size_t block = block_of(ins, tiles_);
  const Bf16* in[16];
  Bf16* out[4];
  for (std::size_t begin = 0; begin < tiles_; begin += block) {
    const std::size_t count = std::min(block, tiles_ - begin);
    for (std::size_t t = 0; t < count; ++t) {
      input_pixels(x, ins, begin + t, in);
      kernels_.input_tile(in, ins, v + t * ins, stride_of<Bf16>(block * ins));
    }
    for (std::size_t panel = 0; panel < outs / kPanel; ++panel) {
      for (std::size_t point = 0; point < kPoints; ++point) {
        kernels_.product({.a = v + point * stride_of<Bf16>(block * ins),
                          .row_stride = ins,
                          .pair_stride = 2,
                          .b = u + (panel * kPoints + point) * kPanel * ins,
                          .pairs = ins / 2,
                          .out = m + point * stride_of<float>(block * kPanel),
                          .out_stride = kPanel,
                          .rows = count,
                          .add = false});
      }
      for (std::size_t t = 0; t < count; ++t) {
        output_pixels(y + panel * kPanel, outs, begin + t, out);
        kernels_.output_tile(m + t * kPanel, stride_of<float>(block * kPanel), out);
      }
    }
  }
}

void Winograd::forward(const Bf16* x, const Bf16* weights, Bf16* y,
                       std::span<std::byte> workspace) const {
  kernels_.forward_weights(weights, shape_.outputs, shape_.inputs, at<Bf16>(workspace, 0));
  correlate(x, shape_.inputs, shape_.outputs, y, workspace);
}

void Winograd::input_gradient(const Bf16* g, const Bf16* weights, Bf16* dx,
                              std::span<std::byte> workspace) const {
  kernels_.backward_weights(weights, shape_.outputs, shape_.inputs, at<Bf16>(workspace, 0));
  correlate(g, shape_.outputs, shape_.inputs, dx, workspace);
}

void Winograd::add_gradients(std::size_t tiles, bool first, std::span<std::byte> workspace) const {
  const Parts parts = gradient_parts();
  const std::size_t block = gradient_block(tiles_);
  auto* const du = at<float>(workspace, 0);
  const auto* const v = at<const Bf16>(workspace, parts.v);
  const auto* const z = at<const Bf16>(workspace, parts.m);
  for (std::size_t point = 0; point < kPoints; ++point) {
    for (std::size_t panel = 0; panel < shape_.inputs / kPanel; ++panel) {
      for (std::size_t group = 0; group < shape_.outputs / kGroup; ++group) {
        kernels_.product(
            {.a = z + point * stride_of<Bf16>(shape_.outputs * block) + group * kGroup * block,
             .row_stride = 2,
             .pair_stride = 2 * kGroup,
             .b = v + point * stride_of<Bf16>(shape_.inputs * block) + panel * kPanel * block,
             .pairs = tiles / 2,
             .out = du + point * stride_of<float>(shape_.outputs * shape_.inputs) +
                    group * kGroup * shape_.inputs + panel * kPanel,
             .out_stride = shape_.inputs,
             .rows = kGroup,
             .add = !first});
      }
    }
  }
}

void Winograd::weight_gradient(const Bf16* x, const Bf16* g, Bf16* dw,
                               std::span<std::byte> workspace) const {
  const Parts parts = gradient_parts();
  STARLING_CHECK_OP(workspace.size(), >=, parts.end);
  const std::size_t block = gradient_block(tiles_);
  const Bf16* in[32];
  const Bf16* out[8];
  for (std::size_t begin = 0; begin < tiles_; begin += block) {
    const std::size_t count = std::min(block, tiles_ + tiles_ % 2 - begin);
    for (std::size_t t = 0; t < count; t += 2) {
      input_pixels(x, shape_.inputs, begin + t, in);
      input_pixels(x, shape_.inputs, begin + t + 1, in + 16);
      kernels_.input_pair(in, shape_.inputs,
                          {.to = at<Bf16>(workspace, parts.v) + t * kPanel,
                           .width = kPanel,
                           .block_stride = kPanel * block,
                           .point_stride = stride_of<Bf16>(shape_.inputs * block)});
      output_pixels(g, shape_.outputs, begin + t, out);
      output_pixels(g, shape_.outputs, begin + t + 1, out + 4);
      for (const Bf16*& pixel : out) pixel = pixel == nullptr ? zeros_.data() : pixel;
      kernels_.gradient_pair(out, shape_.outputs,
                             {.to = at<Bf16>(workspace, parts.m) + t * kGroup,
                              .width = kGroup,
                              .block_stride = kGroup * block,
                              .point_stride = stride_of<Bf16>(shape_.outputs * block)});
    }
    add_gradients(count, begin == 0, workspace);
  }
  for (std::size_t o = 0; o < shape_.outputs; ++o) {
    kernels_.weight_gradient(at<const float>(workspace, 0) + o * shape_.inputs,
                             stride_of<float>(shape_.outputs * shape_.inputs), shape_.inputs,
                             dw + o * 9 * shape_.inputs);
  }
}

}  // namespace starling::training
