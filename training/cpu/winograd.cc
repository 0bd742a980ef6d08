#include "training/cpu/winograd.h"

#include "node/base/check.h"
#include "training/cpu/cache_lines.h"

#include <algorithm>

namespace starling::training {
namespace {

// Tiles that are transformed before they are multiplied: so many that the weights, which are read
// once for each block, cost little, and so few that what was transformed is still in the cache.
constexpr std::size_t kTileBytes = 640 * 1024;
constexpr std::size_t kLeastBlock = 48;
constexpr std::size_t kGradientBlock = 192;  // a multiple of every depth

template <class T>
constexpr std::size_t bytes_of(std::size_t values) {
  return kTilePoints * stride_of<T>(values) * sizeof(T);
}

template <class Value>
Value* at(std::span<std::byte> workspace, std::size_t offset) {
  return reinterpret_cast<Value*>(workspace.data() + offset);
}

template <class T>
std::size_t block_of(std::size_t channels, std::size_t tiles) {
  const std::size_t bytes = kTilePoints * (channels * sizeof(T) + kPanel * sizeof(float));
  return std::min(tiles, std::max(kLeastBlock, kTileBytes / bytes));
}

// Tiles of one kind of group: what is missing at the end is zeros.
template <class T>
std::size_t whole_groups(std::size_t tiles) {
  return (tiles + kDepthOf<T> - 1) / kDepthOf<T> * kDepthOf<T>;
}
template <class T>
std::size_t gradient_block(std::size_t tiles) {
  return std::min(kGradientBlock, whole_groups<T>(tiles));
}

}  // namespace

std::size_t tiles_of(const WinogradShape& shape) {
  return shape.images * ((shape.height + 1) / 2) * ((shape.width + 1) / 2);
}

template <class T>
Winograd<T>::Winograd(const WinogradShape& shape, const ConvKernels<T>& kernels)
    : shape_(shape),
      kernels_(kernels),
      tiles_down_((shape.height + 1) / 2),
      tiles_across_((shape.width + 1) / 2),
      tiles_(tiles_of(shape)),
      zeros_(std::max(shape.inputs, shape.outputs)) {
  STARLING_CHECK_OP(shape.inputs % kPanel, ==, 0U);
  STARLING_CHECK_OP(shape.outputs % kPanel, ==, 0U);
}

template <class T>
Winograd<T>::Place Winograd<T>::place_of(std::size_t tile) const {
  const std::size_t row = tile / tiles_across_;
  return {row / tiles_down_, 2 * (row % tiles_down_), 2 * (tile % tiles_across_)};
}

template <class T>
std::size_t Winograd<T>::rows_read(std::size_t tiles) const {
  if (tiles == 0) return 0;
  const Place last = place_of(tiles - 1);
  return (last.image * shape_.height + std::min(shape_.height, last.line + 3)) * shape_.width;
}

template <class T>
std::size_t Winograd<T>::rows_written(std::size_t tiles) const {
  const Place next = place_of(tiles);
  return (next.image * shape_.height + next.line) * shape_.width;
}

template <class T>
template <std::size_t kSide, class Value>
void Winograd<T>::pixels_of(Value* image, std::size_t channels, std::size_t tile, Value* outside,
                            Value** to) const {
  constexpr std::size_t kBefore = (kSide - 2) / 2;
  const Place place = place_of(tile);
  for (std::size_t i = 0; i < kSide; ++i) {
    const std::size_t line = place.line + i - kBefore;  // above the image: far below it
    for (std::size_t j = 0; j < kSide; ++j) {
      const std::size_t column = place.column + j - kBefore;
      const bool inside = tile < tiles_ && line < shape_.height && column < shape_.width;
      const std::size_t pixel = (place.image * shape_.height + line) * shape_.width + column;
      to[kSide * i + j] = inside ? image + pixel * channels : outside;
    }
  }
}

template <class T>
Winograd<T>::Parts Winograd<T>::correlation_parts(std::size_t ins, std::size_t outs) const {
  const std::size_t block = block_of<T>(ins, tiles_);
  const std::size_t v = kTilePoints * ins * outs * sizeof(T);
  const std::size_t m = v + bytes_of<T>(block * ins);
  return {v, m, m + bytes_of<float>(block * kPanel)};
}

// The gradient of U, then both inputs of its product.
template <class T>
Winograd<T>::Parts Winograd<T>::gradient_parts() const {
  const std::size_t block = gradient_block<T>(tiles_);
  const std::size_t v = bytes_of<float>(shape_.inputs * shape_.outputs);
  const std::size_t z = v + bytes_of<T>(block * shape_.inputs);
  return {v, z, z + bytes_of<T>(block * shape_.outputs)};
}

template <class T>
std::size_t Winograd<T>::workspace_bytes() const {
  return std::max({correlation_parts(shape_.inputs, shape_.outputs).end,
                   correlation_parts(shape_.outputs, shape_.inputs).end, gradient_parts().end});
}

template <class T>
void Winograd<T>::correlate(const Ends& ends, std::span<std::byte> workspace, RowWalk& walk) const {
  const auto [x, ins, y, outs] = ends;
  const Parts parts = correlation_parts(ins, outs);
  STARLING_CHECK_OP(workspace.size(), >=, parts.end);
  const auto* const u = at<const T>(workspace, 0);
  auto* const v = at<T>(workspace, parts.v);
  auto* const m = at<float>(workspace, parts.m);
  const std::size_t block = block_of<T>(ins, tiles_);
  const T* in[16];
  T* out[4];
  for (std::size_t begin = 0; begin < tiles_; begin += block) {
    const std::size_t count = std::min(block, tiles_ - begin);
    const std::size_t end = begin + count;
    walk.before(rows_read(end));
    walk.expect(rows_read(std::min(tiles_, end + block)), rows_written(end));
    for (std::size_t t = 0; t < count; ++t) {
      pixels_of<4>(x, ins, begin + t, zeros_.data(), in);
      kernels_.input_tile(in, ins, v + t * ins, stride_of<T>(block * ins));
    }
    for (std::size_t panel = 0; panel < outs / kPanel; ++panel) {
      for (std::size_t point = 0; point < kTilePoints; ++point) {
        kernels_.product({.a = v + point * stride_of<T>(block * ins),
                          .row_stride = ins,
                          .k_stride = kDepth,
                          .b = u + (panel * kTilePoints + point) * kPanel * ins,
                          .count = ins / kDepth,
                          .out = m + point * stride_of<float>(block * kPanel),
                          .out_stride = kPanel,
                          .rows = count,
                          .add = false,
                          .rounded = nullptr,
                          .rounded_stride = 0,
                          .ahead = walk.ahead()});
      }
      for (std::size_t t = 0; t < count; ++t) {
        pixels_of<2, T>(y + panel * kPanel, outs, begin + t, nullptr, out);
        kernels_.output_tile(m + t * kPanel, stride_of<float>(block * kPanel), out);
      }
    }
    walk.after(rows_written(end));
  }
}

template <class T>
void Winograd<T>::forward(const T* x, const T* weights, T* y, std::span<std::byte> workspace,
                          RowWalk& walk) const {
  kernels_.forward_weights(weights, shape_.outputs, shape_.inputs, at<T>(workspace, 0));
  correlate({x, shape_.inputs, y, shape_.outputs}, workspace, walk);
}

template <class T>
void Winograd<T>::backward(const Backward& args, std::span<std::byte> workspace,
                           RowWalk& walk) const {
  weight_gradient(args, workspace, walk);
  if (args.dx == nullptr) return;
  kernels_.backward_weights(args.weights, shape_.outputs, shape_.inputs, at<T>(workspace, 0));
  correlate({args.g, shape_.outputs, args.dx, shape_.inputs}, workspace, walk);
}

template <class T>
void Winograd<T>::add_gradients(std::size_t tiles, bool first, std::span<std::byte> workspace,
                                RowWalk& walk) const {
  const Parts parts = gradient_parts();
  const std::size_t block = gradient_block<T>(tiles_);
  auto* const du = at<float>(workspace, 0);
  const auto* const v = at<const T>(workspace, parts.v);
  const auto* const z = at<const T>(workspace, parts.m);
  for (std::size_t point = 0; point < kTilePoints; ++point) {
    for (std::size_t panel = 0; panel < shape_.inputs / kPanel; ++panel) {
      for (std::size_t group = 0; group < shape_.outputs / kGroup; ++group) {
        kernels_.product(
            {.a = z + point * stride_of<T>(shape_.outputs * block) + group * kGroup * block,
             .row_stride = kDepth,
             .k_stride = kDepth * kGroup,
             .b = v + point * stride_of<T>(shape_.inputs * block) + panel * kPanel * block,
             .count = tiles / kDepth,
             .out = du + point * stride_of<float>(shape_.outputs * shape_.inputs) +
                    group * kGroup * shape_.inputs + panel * kPanel,
             .out_stride = shape_.inputs,
             .rows = kGroup,
             .add = !first,
             .rounded = nullptr,
             .rounded_stride = 0,
             .ahead = walk.ahead()});
      }
    }
  }
}

template <class T>
void Winograd<T>::weight_gradient(const Backward& args, std::span<std::byte> workspace,
                                  RowWalk& walk) const {
  const Parts parts = gradient_parts();
  STARLING_CHECK_OP(workspace.size(), >=, parts.end);
  const std::size_t block = gradient_block<T>(tiles_);
  const T* in[16 * kDepth];
  const T* out[4 * kDepth];
  for (std::size_t begin = 0; begin < tiles_; begin += block) {
    const std::size_t count = std::min(block, whole_groups<T>(tiles_) - begin);
    const std::size_t end = std::min(tiles_, begin + count);
    walk.before(rows_read(end));
    walk.expect(rows_read(std::min(tiles_, end + block)), 0);
    for (std::size_t t = 0; t < count; t += kDepth) {
      for (std::size_t d = 0; d < kDepth; ++d) {
        pixels_of<4>(args.x, shape_.inputs, begin + t + d, zeros_.data(), in + 16 * d);
        pixels_of<2>(args.g, shape_.outputs, begin + t + d, zeros_.data(), out + 4 * d);
      }
      kernels_.input_group(in, shape_.inputs,
                           {.to = at<T>(workspace, parts.v) + t * kPanel,
                            .width = kPanel,
                            .block_stride = kPanel * block,
                            .point_stride = stride_of<T>(shape_.inputs * block)});
      kernels_.gradient_group(out, shape_.outputs,
                              {.to = at<T>(workspace, parts.m) + t * kGroup,
                               .width = kGroup,
                               .block_stride = kGroup * block,
                               .point_stride = stride_of<T>(shape_.outputs * block)});
    }
    add_gradients(count, begin == 0, workspace, walk);
  }
  for (std::size_t o = 0; o < shape_.outputs; ++o) {
    kernels_.weight_gradient(at<const float>(workspace, 0) + o * shape_.inputs,
                             stride_of<float>(shape_.outputs * shape_.inputs), shape_.inputs,
                             args.dw + o * 9 * shape_.inputs);
  }
}

template class Winograd<float>;
template class Winograd<Bf16>;

}  // namespace starling::training
