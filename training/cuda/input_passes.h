// The input of a batch on a GPU: what one thread makes of a square of 2 x 2 pixels that the model
// sees.
//
// Symbols: w weights of a filter, p bytes of a part, g gain, s shift. The products and sums are
// those of Resampler::render(), in its order, each rounded once: v = sum over rows w (sum over
// columns w p), then v g - s. So a GPU, and a CPU that runs this source, have its bits.
#pragma once

#include "training/cuda/sgd.h"
#include "training/data/pixels.h"

#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

// How images lie in memory.
enum class ImageLayout : std::uint8_t {
  pixels,  // side x side x channels
  blocks,  // space to depth: see kBlockChannels; the side is even
};
// A block of 2 x 2 pixels is one position of so many channels: ((row & 1) * 2 + (column & 1)) *
// channels + c, the spare ones zero. An image has side / 2 + kBlockBorder positions a side,
// kBlocksBefore of the border before the image and one behind it; the border is zero.
inline constexpr std::uint32_t kBlockChannels = 16;
inline constexpr std::uint32_t kBlocksBefore = 2;
inline constexpr std::uint32_t kBlockBorder = 3;

// A batch where the thread sees it: see PixelBatch. Free of std::array, for the device.
template <class T>
struct InputArgs {
  const std::byte* batch;
  std::uint32_t first;  // image of the batch
  T* out;               // images from it on, 16-byte aligned where they are blocks
  ImageLayout layout;
  std::uint32_t side;
  std::uint32_t channels;
  float gain[3];
  float shift[3];
};

template <class T>
[[nodiscard]] InputArgs<T> input_args(const std::byte* batch, const PixelForm& form, T* out,
                                      std::uint32_t first = 0,
                                      ImageLayout layout = ImageLayout::pixels) {
  InputArgs<T> args{batch, first, out, layout, form.side, form.channels, {}, {}};
  for (std::size_t c = 0; c < 3; ++c) {
    args.gain[c] = form.gain[c];
    args.shift[c] = form.shift[c];
  }
  return args;
}

// Squares a side of an image: the last ones of an odd side lie half beyond it.
STARLING_BOTH constexpr std::uint32_t squares_a_side(std::uint32_t side) { return (side + 1) / 2; }

// Two neighbours on one axis, their spans, and where the weights of each begin.
struct FilterPair {
  PixelSpan spans[2];
  const float* weights[2];
};
STARLING_BOTH inline FilterPair filters_at(const std::byte* first, std::uint32_t side,
                                           std::uint32_t taps, const std::uint32_t (&at)[2]) {
  const auto* const spans = reinterpret_cast<const PixelSpan*>(first);
  const auto* const weights = reinterpret_cast<const float*>(first + side * sizeof(PixelSpan));
  return {{spans[at[0]], spans[at[1]]}, {weights + at[0] * taps, weights + at[1] * taps}};
}

// The channels of one pixel, and a square of them: rows, then columns.
struct PixelValues {
  float at[3];
};
struct Square {
  PixelValues at[2][2];
};
// Which rows and columns of the image a square is made of. At the end of an odd side the second is
// the first again.
struct SquarePlace {
  std::uint32_t rows[2];
  std::uint32_t columns[2];
};

// Sums over the columns of one source row, of which a target one has kMost at most, and weights for
// as many. All loads of a row are independent of each other, and the weights are loaded once for
// all rows: those behind a span are zero, and what is added for them, whatever lies there, changes
// no bit.
template <std::uint32_t kStored, std::uint32_t kMost>
class FewColumns {
 public:
  STARLING_BOTH explicit FewColumns(const FilterPair& across) {
    for (std::uint32_t x = 0; x < 2; ++x) {
      first_[x] = across.spans[x].first * kStored;
      for (std::uint32_t k = 0; k < kMost; ++k) weights_[x][k] = across.weights[x][k];
    }
  }
  STARLING_BOTH void sum(const std::uint8_t* row, PixelValues (&sums)[2]) const {
    for (std::uint32_t x = 0; x < 2; ++x) {
      const std::uint8_t* const p = row + first_[x];
      for (std::uint32_t k = 0; k < kMost; ++k)
        for (std::uint32_t c = 0; c < kStored; ++c)
          sums[x].at[c] += weights_[x][k] * static_cast<float>(p[k * kStored + c]);
    }
  }

 private:
  float weights_[2][kMost];
  std::uint32_t first_[2];
};

// The same for any number of columns.
template <std::uint32_t kStored>
class ManyColumns {
 public:
  STARLING_BOTH explicit ManyColumns(const FilterPair& across) : across_(across) {}
  STARLING_BOTH void sum(const std::uint8_t* row, PixelValues (&sums)[2]) const {
    for (std::uint32_t x = 0; x < 2; ++x) {
      const std::uint8_t* p = row + across_.spans[x].first * kStored;
      for (std::uint32_t k = 0; k < across_.spans[x].count; ++k, p += kStored)
        for (std::uint32_t c = 0; c < kStored; ++c)
          sums[x].at[c] += across_.weights[x][k] * static_cast<float>(p[c]);
    }
  }

 private:
  FilterPair across_;
};

// The values of a square before normalisation. Both target rows look at nearly the same source
// rows, so each of those is summed once for both.
template <std::uint32_t kStored, class Columns>
STARLING_BOTH Square filtered_rows(const std::uint8_t* pixels, std::uint32_t width,
                                   const FilterPair& down, const Columns& columns) {
  Square square{};
  const PixelSpan a = down.spans[0];
  const PixelSpan b = down.spans[1];
  // An empty span may begin anywhere.
  const std::uint32_t a_first = a.count == 0 ? b.first : a.first;
  const std::uint32_t b_first = b.count == 0 ? a_first : b.first;
  const std::uint32_t first = a_first < b_first ? a_first : b_first;
  const std::uint32_t a_end = a_first + a.count;
  const std::uint32_t b_end = b_first + b.count;
  const std::uint32_t end = a_end > b_end ? a_end : b_end;
  const std::uint8_t* row = pixels + std::size_t{first} * width * kStored;
  for (std::uint32_t y = first; y < end; ++y, row += std::size_t{width} * kStored) {
    PixelValues sums[2]{};
    columns.sum(row, sums);
    for (std::uint32_t target = 0; target < 2; ++target) {
      const std::uint32_t k = y - (target == 0 ? a_first : b_first);  // huge before its span
      if (k >= down.spans[target].count) continue;
      const float weight = down.weights[target][k];
      for (std::uint32_t x = 0; x < 2; ++x)
        for (std::uint32_t c = 0; c < kStored; ++c)
          square.at[target][x].at[c] += weight * sums[x].at[c];
    }
  }
  return square;
}

template <std::uint32_t kStored>
STARLING_BOTH Square filtered_square(const std::byte* batch, const PixelPlace& place,
                                     std::uint32_t side, const SquarePlace& where) {
  // Nothing of the image is in the view, and so no byte in the part.
  if (place.width == 0) return {};
  const FilterPair down = filters_at(batch + place.down, side, place.down_taps, where.rows);
  const FilterPair across =
      filters_at(batch + place.across, side, place.across_taps, where.columns);
  const auto* const pixels = reinterpret_cast<const std::uint8_t*>(batch + place.pixels);
  const std::uint32_t most =
      across.spans[0].count > across.spans[1].count ? across.spans[0].count : across.spans[1].count;
  // An image that is not shrunk has three columns for one at most, one that is shrunk to half or
  // more five. By the taps, which are the image's, so that the threads of a warp go the same way.
  if (place.across_taps == 4 && most <= 3)
    return filtered_rows<kStored>(pixels, place.width, down, FewColumns<kStored, 3>(across));
  if (place.across_taps >= 5 && place.across_taps <= 6 && most <= 5)
    return filtered_rows<kStored>(pixels, place.width, down, FewColumns<kStored, 5>(across));
  return filtered_rows<kStored>(pixels, place.width, down, ManyColumns<kStored>(across));
}

// One pixel as the model sees it: the first `channels` values.
template <std::uint32_t kStored, class T>
STARLING_BOTH PixelValues normalised_pixel(const InputArgs<T>& args, const PixelValues& raw) {
  PixelValues value{};
  if (args.channels == 3) {
    for (std::uint32_t c = 0; c < 3; ++c)
      value.at[c] = raw.at[kStored == 3 ? c : 0] * args.gain[c] - args.shift[c];
    return value;
  }
  const float gray =
      kStored == 1 ? raw.at[0] : 0.299F * raw.at[0] + 0.587F * raw.at[1] + 0.114F * raw.at[2];
  value.at[0] = gray * args.gain[0] - args.shift[0];
  return value;
}

template <std::uint32_t kStored, class T>
STARLING_BOTH Square rendered_square(const InputArgs<T>& args, const PixelPlace& place,
                                     const SquarePlace& where) {
  Square square = filtered_square<kStored>(args.batch, place, args.side, where);
  for (auto& row : square.at)
    for (PixelValues& pixel : row) pixel = normalised_pixel<kStored>(args, pixel);
  return square;
}

template <class T>
STARLING_BOTH Square finished_square(const InputArgs<T>& args, const PixelPlace& place,
                                     const SquarePlace& where) {
  const auto* const finished = reinterpret_cast<const float*>(args.batch + place.pixels);
  Square square{};
  for (std::uint32_t y = 0; y < 2; ++y) {
    for (std::uint32_t x = 0; x < 2; ++x) {
      const float* const from =
          finished + (where.rows[y] * args.side + where.columns[x]) * args.channels;
      for (std::uint32_t c = 0; c < 3; ++c)
        if (c < args.channels) square.at[y][x].at[c] = from[c];
    }
  }
  return square;
}

// All channels of one block, in stores of 16 bytes.
template <std::uint32_t kChannels, class T>
STARLING_BOTH void write_block(const Square& square, T* out) {
  constexpr std::uint32_t kWide = 16 / sizeof(T);
  Pack<T, kWide> packs[kBlockChannels / kWide];
  for (std::uint32_t i = 0; i < kBlockChannels; ++i) {
    const std::uint32_t pixel = i / kChannels;
    const float value = pixel < 4 ? square.at[pixel / 2 % 2][pixel % 2].at[i % kChannels] : 0.0F;
    narrow(value, packs[i / kWide].at[i % kWide]);
  }
  for (std::uint32_t i = 0; i < kBlockChannels / kWide; ++i)
    reinterpret_cast<Pack<T, kWide>*>(out)[i] = packs[i];
}

// The pixels of a square that are inside the image, two values at once where its rows begin at such
// a place.
template <std::uint32_t kChannels, class T>
STARLING_BOTH void write_pixels(const Square& square, const SquarePlace& where, std::uint32_t side,
                                T* image) {
  for (std::uint32_t y = 0; y < 2; ++y) {
    if (y == 1 && where.rows[1] == where.rows[0]) return;
    T* const out = image + (where.rows[y] * side + where.columns[0]) * kChannels;
    if (side % 2 == 0) {
      for (std::uint32_t i = 0; i < kChannels; ++i) {
        Pack<T, 2> pair;
        for (std::uint32_t k = 0; k < 2; ++k) {
          const std::uint32_t value = 2 * i + k;
          narrow(square.at[y][value / kChannels].at[value % kChannels], pair.at[k]);
        }
        reinterpret_cast<Pack<T, 2>*>(out)[i] = pair;
      }
      continue;
    }
    const bool is_half = where.columns[1] == where.columns[0];
    for (std::uint32_t i = 0; i < 2 * kChannels; ++i)
      if (i < kChannels || !is_half) narrow(square.at[y][i / kChannels].at[i % kChannels], out[i]);
  }
}

template <std::uint32_t kChannels, class T>
STARLING_BOTH void write_square(const InputArgs<T>& args, std::uint32_t image,
                                const SquarePlace& where, const Square& square) {
  if (args.layout == ImageLayout::pixels) {
    const std::size_t size = std::size_t{args.side} * args.side * kChannels;
    write_pixels<kChannels>(square, where, args.side, args.out + image * size);
    return;
  }
  const std::uint32_t side = args.side / 2 + kBlockBorder;
  const std::uint32_t at =
      (where.rows[0] / 2 + kBlocksBefore) * side + where.columns[0] / 2 + kBlocksBefore;
  const std::size_t size = std::size_t{side} * side * kBlockChannels;
  write_block<kChannels>(square, args.out + image * size + at * kBlockChannels);
}

// Square number i of an image, counted from the first on: all its channels. An image has less than
// 2^32 values.
template <class T>
STARLING_BOTH void input_square(const InputArgs<T>& args, std::uint32_t image, std::uint32_t i) {
  const PixelPlace& place = reinterpret_cast<const PixelPlace*>(args.batch)[args.first + image];
  const std::uint32_t squares = squares_a_side(args.side);
  const std::uint32_t row = i / squares * 2;
  const std::uint32_t column = i % squares * 2;
  const SquarePlace where{{row, row + 1 < args.side ? row + 1 : row},
                          {column, column + 1 < args.side ? column + 1 : column}};
  const Square square = place.stored == 0   ? finished_square(args, place, where)
                        : place.stored == 3 ? rendered_square<3>(args, place, where)
                                            : rendered_square<1>(args, place, where);
  if (args.channels == 3) {
    write_square<3>(args, image, where, square);
  } else {
    write_square<1>(args, image, where, square);
  }
}

// So many images on a CPU: the twin of launch_input().
template <class T>
void input_on_cpu(const InputArgs<T>& args, std::size_t images) {
  const std::uint32_t squares = squares_a_side(args.side) * squares_a_side(args.side);
  for (std::uint32_t image = 0; image < images; ++image)
    for (std::uint32_t i = 0; i < squares; ++i) input_square(args, image, i);
}

}  // namespace starling::training::cuda
