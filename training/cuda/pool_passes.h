// The max pool behind the stem's normalisation, on a GPU: what one crew or one thread does.
//
// 3 x 3 windows, stride 2, padding 1, over y = relu(scale x + shift), images x height x width x
// channels, channels innermost. y is by far the largest activation of a network, and neither it
// nor its gradient is ever in memory: a window computes its taps from x, and a gradient is gathered
// from the windows that took the value.
//
// A cell is the pixels that a window has to itself, 2 x 2 but for the last row and column of odd
// sizes, the first being the window's centre. They lie in four windows at most, those of the cell
// and of the ones to its right, below and across, and always at the same taps: a thread that has a
// cell loads each of them once for four pixels.
#pragma once

#include "training/cuda/norm_passes.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

struct PoolShape {
  std::uint32_t images;
  std::uint32_t height;
  std::uint32_t width;
  std::uint32_t channels;  // as in a NormPlan

  // Windows, and cells.
  STARLING_BOTH std::uint32_t down() const { return (height + 1) / 2; }
  STARLING_BOTH std::uint32_t across() const { return (width + 1) / 2; }
  STARLING_BOTH std::size_t rows() const { return std::size_t{images} * height * width; }
  STARLING_BOTH std::size_t pooled_rows() const { return std::size_t{images} * down() * across(); }
  STARLING_BOTH std::size_t pooled_packs() const { return pooled_rows() * channels / kNormPack; }
};

// Which tap a maximum came from, row by row: 0 to 8; or from none: nothing was above zero, so no
// gradient passes the relu.
inline constexpr std::uint32_t kNoTap = 9;

template <class T>
struct PoolApply {
  const T* x;
  const float* scale;
  const float* shift;
  T* y;                  // pooled
  std::uint8_t* places;  // the taps, in the order of y
};

// What the gradients are gathered from.
template <class T>
struct PoolGradientOf {
  const T* x;
  const T* g;  // of the pooled values
  const std::uint8_t* places;
};
// As NormGradientSums and NormGradient.
template <class T>
struct PoolGradientSums {
  PoolGradientOf<T> of;
  const float* mean;
};
template <class T>
struct PoolGradient {
  PoolGradientOf<T> of;
  T* dx;  // may be x
  const float* a;
  const float* b;
  const float* c;
};

// Where the window of a pooled value lies.
struct PoolCell {
  std::uint32_t image;
  std::uint32_t row;
  std::uint32_t column;

  // Of pooled row number `number`.
  STARLING_BOTH static PoolCell at(const PoolShape& shape, std::uint32_t number) {
    const std::uint32_t line = number / shape.across();
    const std::uint32_t image = line / shape.down();
    return {image, line - image * shape.down(), number - line * shape.across()};
  }
};

using PoolPlaces = Pack<std::uint8_t, kNormPack>;

// Two values of a pack in one register, as they lie in memory: unpacked and packed by one
// instruction each, where one value at a time takes up to six.
using Bf16Pairs = Pack<std::uint32_t, kNormPack / 2>;

STARLING_DEVICE inline std::uint32_t rounded_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  // A NaN is positive, as a GPU's.
  const auto rounded = [](float value) -> std::uint32_t {
    return value == value ? to_bf16(value).bits : 0x7fffU;
  };
  return rounded(high) << 16 | rounded(low);
#endif
}
STARLING_DEVICE inline float value_of(const NormValues<Bf16>& values, std::uint32_t k) {
  const std::uint32_t pair = std::bit_cast<Bf16Pairs>(values).at[k / 2];
  return std::bit_cast<float>(k % 2 == 0 ? pair << 16 : pair & 0xffff'0000U);
}
STARLING_DEVICE inline float value_of(const NormValues<float>& values, std::uint32_t k) {
  return values.at[k];
}
STARLING_DEVICE inline void narrow(const NormValues<float>& wide, NormValues<Bf16>& to) {
  Bf16Pairs pairs;
  for (std::uint32_t k = 0; k < kNormPack / 2; ++k)
    pairs.at[k] = rounded_pair(wide.at[2 * k], wide.at[2 * k + 1]);
  to = std::bit_cast<NormValues<Bf16>>(pairs);
}
STARLING_DEVICE inline void narrow(const NormValues<float>& wide, NormValues<float>& to) {
  to = wide;
}

// The largest values that a window has seen, none below zero, and the first taps that had them.
template <class T>
class WindowMax;

// A value and its tap are one number. Rounded values leave 16 bits of a float free, floats above
// zero are in the order of their bits, and whatever is below zero has the sign: so the maximum of
// signed integers is that of the values behind the relu, the earlier tap among equals, and NaN
// above all.
template <>
class WindowMax<Bf16> {
 public:
  STARLING_DEVICE WindowMax() {
    // Above a zero with any tap.
    for (std::int32_t& key : keys_) key = 0x100 | (0xff - kNoTap);
  }
  STARLING_DEVICE void take(const NormValues<float>& y, std::uint32_t tap) {
    for (std::uint32_t k = 0; k < kNormPack; k += 2) {
      const std::uint32_t pair = rounded_pair(y.at[k], y.at[k + 1]);
      raise(keys_[k], pair << 16 | (0xff - tap));
      raise(keys_[k + 1], (pair & 0xffff'0000U) | (0xff - tap));
    }
  }
  STARLING_DEVICE NormValues<Bf16> values() const {
    Bf16Pairs pairs;
    for (std::uint32_t k = 0; k < kNormPack / 2; ++k)
      pairs.at[k] = bits(2 * k) >> 16 | (bits(2 * k + 1) & 0xffff'0000U);
    return std::bit_cast<NormValues<Bf16>>(pairs);
  }
  STARLING_DEVICE PoolPlaces places() const {
    PoolPlaces found;
    for (std::uint32_t k = 0; k < kNormPack; ++k)
      found.at[k] = static_cast<std::uint8_t>(0xff - (bits(k) & 0xff));
    return found;
  }

 private:
  STARLING_DEVICE static void raise(std::int32_t& key, std::uint32_t other) {
    const auto candidate = std::bit_cast<std::int32_t>(other);
    key = candidate > key ? candidate : key;
  }
  STARLING_DEVICE std::uint32_t bits(std::uint32_t k) const {
    return std::bit_cast<std::uint32_t>(keys_[k]);
  }

  std::int32_t keys_[kNormPack];
};

template <>
class WindowMax<float> {
 public:
  STARLING_DEVICE WindowMax() {
    for (std::uint32_t k = 0; k < kNormPack; ++k) {
      values_.at[k] = 0;
      places_[k] = kNoTap;
    }
  }
  STARLING_DEVICE void take(const NormValues<float>& y, std::uint32_t tap) {
    for (std::uint32_t k = 0; k < kNormPack; ++k) {
      const float best = values_.at[k];
      // A NaN is taken, and stays.
      const bool larger = !(y.at[k] <= best) && best == best;
      values_.at[k] = larger ? y.at[k] : best;
      places_[k] = larger ? tap : places_[k];
    }
  }
  STARLING_DEVICE const NormValues<float>& values() const { return values_; }
  STARLING_DEVICE PoolPlaces places() const {
    PoolPlaces found;
    for (std::uint32_t k = 0; k < kNormPack; ++k)
      found.at[k] = static_cast<std::uint8_t>(places_[k]);
    return found;
  }

 private:
  NormValues<float> values_;
  std::uint32_t places_[kNormPack];
};

// The three rows, or columns, of a window around `centre` in an image of `size` of them. One that
// lies outside stands for its neighbour inside, which changes no maximum and no first tap: so all
// taps are loaded without a question.
struct Taps {
  std::uint32_t at[3];
  std::uint32_t number[3];

  STARLING_DEVICE Taps(std::uint32_t centre, std::uint32_t size)
      : at{centre == 0 ? 0 : centre - 1, centre, centre + 1 < size ? centre + 1 : centre},
        number{centre == 0 ? 1U : 0U, 1, centre + 1 < size ? 2U : 1U} {}
};

// The window of pack number i of the pooled values.
template <class T>
STARLING_DEVICE void pool_pack(const PoolApply<T>& args, const PoolShape& shape, std::uint32_t i) {
  const std::uint32_t groups = shape.channels / kNormPack;
  const std::uint32_t number = i / groups;
  const std::uint32_t c = (i - number * groups) * kNormPack;
  const PoolCell cell = PoolCell::at(shape, number);
  const Taps rows(2 * cell.row, shape.height);
  const Taps columns(2 * cell.column, shape.width);
  const T* const image =
      args.x + std::size_t{cell.image} * shape.height * shape.width * shape.channels;
  NormValues<T> x[9];
  for (std::uint32_t tap = 0; tap < 9; ++tap) {
    const std::uint32_t pixel = rows.at[tap / 3] * shape.width + columns.at[tap % 3];
    x[tap] = load_stored(image, pixel * shape.channels + c);
  }
  const NormValues<float> scale = load_pack(args.scale, c);
  const NormValues<float> shift = load_pack(args.shift, c);
  WindowMax<T> largest;
  for (std::uint32_t tap = 0; tap < 9; ++tap) {
    NormValues<float> y;
    for (std::uint32_t k = 0; k < kNormPack; ++k)
      y.at[k] = value_of(x[tap], k) * scale.at[k] + shift.at[k];
    largest.take(y, 3 * rows.number[tap / 3] + columns.number[tap % 3]);
  }
  const std::size_t to = std::size_t{i} * kNormPack;
  *reinterpret_cast<NormValues<T>*>(args.y + to) = largest.values();
  *reinterpret_cast<PoolPlaces*>(args.places + to) = largest.places();
}

// Where the windows and the pixels of a cell lie. What is not there has the place of the first.
struct CellPlaces {
  struct Place {
    std::uint32_t at;
    bool there;
  };
  Place windows[4];  // in packs
  Place pixels[4];   // in values behind `first`
  std::size_t first;

  // Of pack number i of the pooled values.
  STARLING_DEVICE CellPlaces(const PoolShape& shape, std::uint32_t i) {
    const std::uint32_t groups = shape.channels / kNormPack;
    const std::uint32_t number = i / groups;
    const PoolCell cell = PoolCell::at(shape, number);
    const bool right = cell.column + 1 < shape.across();
    const bool below = cell.row + 1 < shape.down();
    const std::uint32_t line = shape.across() * groups;
    windows[0] = {i, true};
    windows[1] = {right ? i + groups : i, right};
    windows[2] = {below ? i + line : i, below};
    windows[3] = {right && below ? i + line + groups : i, right && below};

    const bool has_right = 2 * cell.column + 1 < shape.width;
    const bool has_below = 2 * cell.row + 1 < shape.height;
    const std::uint32_t pixel = 2 * cell.row * shape.width + 2 * cell.column;
    const std::uint32_t pixel_line = shape.width * shape.channels;
    first = std::size_t{cell.image} * shape.height * pixel_line + pixel * shape.channels +
            (i - number * groups) * kNormPack;
    pixels[0] = {0, true};
    pixels[1] = {has_right ? shape.channels : 0, has_right};
    pixels[2] = {has_below ? pixel_line : 0, has_below};
    pixels[3] = {has_right && has_below ? pixel_line + shape.channels : 0, has_right && has_below};
  }
};

// The pixels of a cell, and what their windows hand back to them.
template <class T>
class CellGradient {
 public:
  STARLING_DEVICE CellGradient(const CellPlaces& places, const PoolGradientOf<T>& of) {
    STARLING_UNROLL
    for (std::uint32_t w = 0; w < 4; ++w) {
      const auto& [at, there] = places.windows[w];
      const std::size_t value = std::size_t{at} * kNormPack;
      g_[w] = load_stored(of.g, value);
      const auto taps = std::bit_cast<TapWords>(load_stored(of.places, value));
      for (std::uint32_t half = 0; half < 2; ++half)
        taps_[w].at[half] = there ? taps.at[half] : kNoTap * 0x0101'0101U;
    }
    STARLING_UNROLL
    for (std::uint32_t p = 0; p < 4; ++p)
      x_[p] = load_stored(of.x + places.first, places.pixels[p].at);
  }

  // visit(p, k, x, g) for channel k of pixel p, g being the gradient before the relu. Of a pixel
  // that is not there it is zero: no window took its value.
  template <class Visit>
  STARLING_DEVICE void each(Visit visit) const {
    // The tap of each window that a pixel is; kOutside: of none.
    constexpr std::uint32_t kOutside = kNoTap + 1;
    constexpr std::uint32_t kTaps[4][4] = {{4, kOutside, kOutside, kOutside},
                                           {5, 3, kOutside, kOutside},
                                           {7, kOutside, 1, kOutside},
                                           {8, 6, 2, 0}};
    // One channel after the other: so few values are unpacked at a time.
    STARLING_UNROLL
    for (std::uint32_t k = 0; k < kNormPack; ++k) {
      STARLING_UNROLL
      for (std::uint32_t p = 0; p < 4; ++p) {
        float g = tap(0, k) == kTaps[p][0] ? value_of(g_[0], k) : 0.0F;
        STARLING_UNROLL
        for (std::uint32_t w = 1; w < 4; ++w)
          if (kTaps[p][w] != kOutside && tap(w, k) == kTaps[p][w]) g += value_of(g_[w], k);
        visit(p, k, value_of(x_[p], k), g);
      }
    }
  }

 private:
  // Bytes are taken from words: nvcc makes four instructions of a byte in a struct.
  using TapWords = Pack<std::uint32_t, kNormPack / 4>;
  STARLING_DEVICE std::uint32_t tap(std::uint32_t w, std::uint32_t k) const {
    return taps_[w].at[k / 4] >> (k % 4 * 8) & 0xffU;
  }

  NormValues<T> g_[4];
  TapWords taps_[4];
  NormValues<T> x_[4];
};

template <class T>
struct PoolGradientVisitor {
  static constexpr bool kPairs = false;
  PoolShape shape;
  PoolGradientOf<T> of;
  NormValues<float> mean;

  STARLING_DEVICE CellGradient<T> load(std::size_t at) const {
    return {CellPlaces(shape, static_cast<std::uint32_t>(at / kNormPack)), of};
  }
  STARLING_DEVICE void add(const CellGradient<T>& cell, std::size_t /*at*/, NormValues<float>& sum,
                           NormValues<float>& with_x) const {
    cell.each([&](std::uint32_t, std::uint32_t k, float x, float g) {
      sum.at[k] += g;
      with_x.at[k] += g * (x - mean.at[k]);
    });
  }
};

// sum g and sum g (x - mean) over all pixels. The job's rows are the pooled ones.
template <class T, class Crew>
STARLING_DEVICE void pool_gradient_chunk(Crew& crew, NormMemory& memory, const NormChunk& job,
                                         const PoolShape& shape, const PoolGradientSums<T>& args) {
  sum_chunk(crew, memory, job, [&](std::uint32_t c) {
    return PoolGradientVisitor<T>{shape, args.of, load_pack(args.mean, c)};
  });
}

// dx of the cell of pack number i of the pooled values.
template <class T>
STARLING_DEVICE void pool_gradient_pack(const PoolGradient<T>& args, const PoolShape& shape,
                                        std::uint32_t i) {
  const CellPlaces places(shape, i);
  const CellGradient<T> cell(places, args.of);
  const std::uint32_t c = i % (shape.channels / kNormPack) * kNormPack;
  const NormValues<float> a = load_pack(args.a, c);
  const NormValues<float> b = load_pack(args.b, c);
  const NormValues<float> constant = load_pack(args.c, c);
  NormValues<float> dx[4];
  cell.each([&](std::uint32_t p, std::uint32_t k, float x, float g) {
    dx[p].at[k] = g * a.at[k] + (x * b.at[k] + constant.at[k]);
  });
  STARLING_UNROLL
  for (std::uint32_t p = 0; p < 4; ++p) {
    const auto& [at, there] = places.pixels[p];
    if (there) narrow(dx[p], *reinterpret_cast<NormValues<T>*>(args.dx + places.first + at));
  }
}

}  // namespace starling::training::cuda
