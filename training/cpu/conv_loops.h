// The loops of conv_kernels.h over sixteen lanes; conv_<isa>.cc say what the lanes are, and a test
// says it again in plain C++. `Lanes` is a type of the including file, so no two files share an
// instantiation.
#pragma once

#include "training/cpu/conv_kernels.h"
#include "training/cpu/winograd_loops.h"

#include <cstddef>

namespace starling::training {

// Matrix products.
template <class Lanes>
struct ProductLoops {
  using T = typename Lanes::Element;
  using F = typename Lanes::F;  // 16 floats
  using P = typename Lanes::P;  // what is multiplied: 16 x depth
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kDepth = kDepthOf<T>;
  // A product's sums are kMostRows x kWide lanes, all of them in registers.
  static constexpr std::size_t kMostRows = 6;
  static constexpr std::size_t kWide = Lanes::kWide;
  // Of b, so much stays in the first level of the cache for all rows (32 KiB of kPanel columns).
  static constexpr std::size_t kMostK = 128;
  static constexpr std::size_t kLine = 64;  // bytes of a line of the cache

  template <std::size_t kRows>
  static void product_rows(const PanelProduct<T>& args, std::size_t row, std::size_t column) {
    F sums[kRows][kWide];
    float* const out = args.out + row * args.out_stride + column;
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t v = 0; v < kWide; ++v) {
        sums[r][v] = args.add ? Lanes::load(out + r * args.out_stride + v * kLanes) : Lanes::zero();
      }
    }
    const T* a = args.a + row * args.row_stride;
    const T* b = args.b + column * kDepth;
    const std::byte* soon = args.ahead == nullptr ? nullptr : args.ahead->at;
    const std::byte* const soon_end = args.ahead == nullptr ? nullptr : args.ahead->end;
    for (std::size_t k = 0; k < args.count; ++k) {
      if (soon < soon_end) {
        __builtin_prefetch(soon, 0, 2);
        soon += kLine;
      }
      P with[kWide];
      for (std::size_t v = 0; v < kWide; ++v) with[v] = Lanes::factors(b + v * kLanes * kDepth);
      for (std::size_t r = 0; r < kRows; ++r) {
        const P factor = Lanes::broadcast(a + r * args.row_stride);
        for (std::size_t v = 0; v < kWide; ++v) {
          sums[r][v] = Lanes::dot(sums[r][v], factor, with[v]);
        }
      }
      a += args.k_stride;
      b += kPanel * kDepth;
    }
    if (args.ahead != nullptr) args.ahead->at = soon;
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t v = 0; v < kWide; ++v) {
        if (args.rounded == nullptr) {
          Lanes::store(out + r * args.out_stride + v * kLanes, sums[r][v]);
        } else {
          Lanes::store(args.rounded + (row + r) * args.rounded_stride + column + v * kLanes,
                       sums[r][v]);
        }
      }
    }
  }

  static void product(const PanelProduct<T>& args) {
    for (std::size_t k = 0; k < args.count; k += kMostK) {
      PanelProduct<T> part = args;
      part.a += k * args.k_stride;
      part.b += k * kPanel * kDepth;
      part.count = args.count - k < kMostK ? args.count - k : kMostK;
      part.add = args.add || k > 0;
      if (k + kMostK < args.count) part.rounded = nullptr;
      for (std::size_t column = 0; column < kPanel; column += kWide * kLanes) {
        product_columns(part, column);
      }
    }
  }
  static void product_columns(const PanelProduct<T>& args, std::size_t column) {
    std::size_t row = 0;
    while (row < args.rows) {
      const std::size_t left = args.rows - row;
      // As equal as can be: with few rows a product waits for its own sums.
      const std::size_t stretches = (left + kMostRows - 1) / kMostRows;
      const std::size_t rows = (left + stretches - 1) / stretches;
      switch (rows) {
        case 6:
          product_rows<6>(args, row, column);
          break;
        case 5:
          product_rows<5>(args, row, column);
          break;
        case 4:
          product_rows<4>(args, row, column);
          break;
        case 3:
          product_rows<3>(args, row, column);
          break;
        case 2:
          product_rows<2>(args, row, column);
          break;
        default:
          product_rows<1>(args, row, column);
          break;
      }
      row += rows;
    }
  }

  static void pack_columns(const T* from, std::size_t columns, std::size_t count, T* to) {
    for (std::size_t column = 0; column < columns; column += kLanes) {
      T* const panel = to + column / kPanel * kPanel * count + column % kPanel * kDepth;
      for (std::size_t k = 0; k < count; k += kLanes * kDepth) {
        P lines[kLanes];
        for (std::size_t i = 0; i < kLanes; ++i) {
          lines[i] = Lanes::factors(from + (column + i) * count + k);
        }
        Lanes::transpose(lines);
        for (std::size_t i = 0; i < kLanes; ++i) {
          Lanes::store(panel + (k + i * kDepth) * kPanel, lines[i]);
        }
      }
    }
  }

  static void pack_rows(const T* from, std::size_t columns, std::size_t count,
                        const PackedBlocks<T>& to) {
    for (std::size_t k = 0; k < count; k += kDepth) {
      const T* const first = from + k * columns;
      const bool whole = k + kDepth <= count;
      for (std::size_t c = 0; c < columns; c += kLanes) {
        T* const at = to.to + c / to.width * to.block_stride + k * to.width + c % to.width * kDepth;
        const T* const last = whole ? first + (kDepth - 1) * columns + c : nullptr;
        Lanes::store(at, Lanes::interleave(first + c, last));
      }
    }
  }
};

template <class Lanes>
struct ConvLoops {
  using Products = ProductLoops<Lanes>;
  using Transforms = WinogradLoops<Lanes>;
  static constexpr ConvKernels<typename Lanes::Element> kTable{
      &Products::product,
      &Products::pack_columns,
      &Products::pack_rows,
      &Transforms::input_tile,
      &Transforms::template group_of<typename Transforms::Input>,
      &Transforms::template group_of<typename Transforms::Gradient>,
      &Transforms::forward_weights,
      &Transforms::backward_weights,
      &Transforms::output_tile,
      &Transforms::weight_gradient};
};

}  // namespace starling::training
