// The input of a batch on a GPU: what one thread makes of one pixel that the model sees.
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

// A batch where the thread sees it: see PixelBatch. Free of std::array, for the device.
template <class T>
struct InputArgs {
  const std::byte* batch;
  std::uint32_t first;  // image of the batch
  T* out;               // images from it on x side x side x channels
  std::uint32_t side;
  std::uint32_t channels;
  float gain[3];
  float shift[3];
};

template <class T>
[[nodiscard]] InputArgs<T> input_args(const std::byte* batch, const PixelForm& form, T* out,
                                      std::uint32_t first = 0) {
  InputArgs<T> args{batch, first, out, form.side, form.channels, {}, {}};
  for (std::size_t c = 0; c < 3; ++c) {
    args.gain[c] = form.gain[c];
    args.shift[c] = form.shift[c];
  }
  return args;
}

// The spans and weights of one axis.
struct FilterView {
  const PixelSpan* spans;
  const float* weights;
  std::uint32_t taps;
};
STARLING_BOTH inline FilterView filter_at(const std::byte* first, std::uint32_t side,
                                          std::uint32_t taps) {
  return {reinterpret_cast<const PixelSpan*>(first),
          reinterpret_cast<const float*>(first + side * sizeof(PixelSpan)), taps};
}

// The values of one pixel before normalisation, `stored` of them.
struct RawPixel {
  float at[3];
};
STARLING_BOTH inline RawPixel filtered_pixel(const std::byte* batch, const PixelPlace& place,
                                             std::uint32_t side, std::uint32_t row,
                                             std::uint32_t column) {
  const FilterView down = filter_at(batch + place.down, side, place.down_taps);
  const FilterView across = filter_at(batch + place.across, side, place.across_taps);
  const PixelSpan rows = down.spans[row];
  const PixelSpan columns = across.spans[column];
  const float* const row_weights = down.weights + std::size_t{row} * down.taps;
  const float* const column_weights = across.weights + std::size_t{column} * across.taps;
  const auto* p = reinterpret_cast<const std::uint8_t*>(batch + place.pixels) +
                  (std::size_t{rows.first} * place.width + columns.first) * place.stored;
  RawPixel value{};
  for (std::uint32_t j = 0; j < rows.count; ++j) {
    RawPixel sum{};
    for (std::uint32_t k = 0; k < columns.count; ++k)
      for (std::uint32_t c = 0; c < place.stored; ++c)
        sum.at[c] += column_weights[k] * static_cast<float>(p[std::size_t{k} * place.stored + c]);
    for (std::uint32_t c = 0; c < place.stored; ++c) value.at[c] += row_weights[j] * sum.at[c];
    p += std::size_t{place.width} * place.stored;
  }
  return value;
}

// Pixel number i of the images from the first on: all its channels.
template <class T>
STARLING_BOTH void input_pixel(const InputArgs<T>& args, std::size_t i) {
  const std::size_t in_image = std::size_t{args.side} * args.side;
  const PixelPlace place =
      reinterpret_cast<const PixelPlace*>(args.batch)[args.first + i / in_image];
  const std::size_t at = i % in_image;
  T* const out = args.out + i * args.channels;
  if (place.stored == 0) {
    const auto* const finished = reinterpret_cast<const float*>(args.batch + place.pixels);
    for (std::uint32_t c = 0; c < args.channels; ++c)
      narrow(finished[at * args.channels + c], out[c]);
    return;
  }
  const auto row = static_cast<std::uint32_t>(at / args.side);
  const auto column = static_cast<std::uint32_t>(at % args.side);
  const RawPixel raw = filtered_pixel(args.batch, place, args.side, row, column);
  if (args.channels == 3) {
    for (std::uint32_t c = 0; c < 3; ++c)
      narrow(raw.at[place.stored == 3 ? c : 0] * args.gain[c] - args.shift[c], out[c]);
    return;
  }
  const float gray =
      place.stored == 1 ? raw.at[0] : 0.299F * raw.at[0] + 0.587F * raw.at[1] + 0.114F * raw.at[2];
  narrow(gray * args.gain[0] - args.shift[0], out[0]);
}

// So many images on a CPU: the twin of launch_input().
template <class T>
void input_on_cpu(const InputArgs<T>& args, std::size_t images) {
  const std::size_t pixels = images * args.side * args.side;
  for (std::size_t i = 0; i < pixels; ++i) input_pixel(args, i);
}

}  // namespace starling::training::cuda
