#include "training/data/augment.h"

#include "node/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

namespace starling::training {

namespace {

// Short side of the evaluation crop in units of the image's short side: 224 of 256, as usual.
constexpr double kCentreFraction = 0.875;

bool is_small(const std::optional<ImageSize>& size) {
  return size && size->height <= kSmallSide && size->width <= kSmallSide;
}

CropBox centred(double height, double width, ImageSize size) {
  return {.top = (size.height - height) / 2,
          .left = (size.width - width) / 2,
          .height = height,
          .width = width};
}

// A random part of the image: area uniform in [min_area, 1], shape log-uniform in [3/4, 4/3]; after
// ten tries that do not fit, the largest centred part with the nearest permitted shape.
//
// Source:  Szegedy et al. 2015, "Going deeper with convolutions", section 6; the fallback is
// torchvision's.
CropBox random_part(double min_area, ImageSize size, Rng& rng) {
  const double height = size.height;
  const double width = size.width;
  constexpr double kWidest = 4.0 / 3.0;
  constexpr int kTries = 10;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const double area = height * width * (min_area + (1 - min_area) * rng.unit());
    // exp and log differ in the last bit between C libraries; a box is snapped to whole pixels,
    // which hides that except on an edge of one in 2^40 draws.
    const double shape = std::exp((2 * rng.unit() - 1) * std::log(kWidest));
    const double w = std::round(std::sqrt(area * shape));
    const double h = std::round(std::sqrt(area / shape));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto rows = static_cast<std::uint64_t>(height - h) + 1;
    const auto columns = static_cast<std::uint64_t>(width - w) + 1;
    const auto top = static_cast<double>(rng.below(rows));
    const auto left = static_cast<double>(rng.below(columns));
    return {.top = top, .left = left, .height = h, .width = w};
  }
  return centred(std::min(height, width * kWidest), std::min(width, height * kWidest), size);
}

}  // namespace

std::uint32_t default_image_size(std::optional<ImageSize> uniform_size) {
  const bool kept = is_small(uniform_size) && uniform_size->height == uniform_size->width;
  return kept ? uniform_size->height : 224;
}

AugmentOptions training_augmentation(std::optional<ImageSize> uniform_size,
                                     std::uint32_t stored_channels) {
  AugmentOptions options;
  options.crop = !is_small(uniform_size) ? CropPolicy::random_resized
                 : stored_channels == 3  ? CropPolicy::padded
                                         : CropPolicy::whole;
  options.flip = stored_channels == 3 ? 0.5 : 0.0;
  return options;
}

AugmentOptions evaluation_augmentation(std::optional<ImageSize> uniform_size) {
  AugmentOptions options;
  options.crop = is_small(uniform_size) ? CropPolicy::whole : CropPolicy::centre;
  return options;
}

Normalisation default_normalisation(std::uint32_t channels) {
  if (channels == 1) return {.mean = {0.286F, 0, 0}, .deviation = {0.353F, 1, 1}};
  return {.mean = {0.485F, 0.456F, 0.406F}, .deviation = {0.229F, 0.224F, 0.225F}};
}

View choose_view(const AugmentOptions& options, ImageSize size, Rng& rng) {
  View view;
  const double height = size.height;
  const double width = size.width;
  switch (options.crop) {
    case CropPolicy::whole:
      view.box = {.top = 0, .left = 0, .height = height, .width = width};
      break;
    case CropPolicy::centre: {
      const double side = std::min(height, width) * kCentreFraction;
      view.box = centred(side, side, size);
      break;
    }
    case CropPolicy::random_resized:
      view.box = random_part(options.min_area, size, rng);
      break;
    case CropPolicy::padded: {
      const auto rows = static_cast<std::uint64_t>(std::lround(height * options.border));
      const auto columns = static_cast<std::uint64_t>(std::lround(width * options.border));
      const auto down = static_cast<double>(rng.below(2 * rows + 1));
      const auto right = static_cast<double>(rng.below(2 * columns + 1));
      view.box = {.top = down - static_cast<double>(rows),
                  .left = right - static_cast<double>(columns),
                  .height = height,
                  .width = width};
      break;
    }
  }
  if (options.flip > 0) view.flip = rng.chance(options.flip);
  return view;
}

std::uint32_t reduction_for(const CropBox& box, std::uint32_t target) {
  const double side = std::min(box.height, box.width);
  for (const std::uint32_t by : {8U, 4U, 2U}) {
    if (side / by >= target) return by;
  }
  return 1;
}

// Triangle filter of PIL's and torchvision's antialiased bilinear: target pixel i looks at the
// source around (i + 1/2) * scale with half-width max(scale, 1). Weights are those of the whole
// triangle, so a part of it that lies outside the source is black.
void Resampler::fill(Axis& axis, double start, double extent, std::uint32_t source,
                     std::uint32_t target) {
  const double scale = extent / target;
  const double reach = std::max(scale, 1.0);
  axis.taps = static_cast<std::uint32_t>(std::ceil(2 * reach)) + 2;
  axis.first.assign(target, 0);
  axis.count.assign(target, 0);
  axis.weight.assign(std::size_t{target} * axis.taps, 0.0F);
  const double box_end = start + extent;
  for (std::uint32_t i = 0; i < target; ++i) {
    const double middle = start + (i + 0.5) * scale;
    // Neither beyond the box (its neighbours are not part of the view) nor far beyond the source.
    const double low = std::max(std::floor(middle - reach), std::floor(start));
    const double high = std::min(std::ceil(middle + reach), std::ceil(box_end));
    const auto first = static_cast<std::int64_t>(low);
    const auto last = static_cast<std::int64_t>(high);
    double total = 0;
    for (std::int64_t p = first; p < last; ++p) {
      total += std::max(0.0, 1 - std::abs(static_cast<double>(p) + 0.5 - middle) / reach);
    }
    if (total <= 0) continue;
    const std::int64_t inside_first = std::clamp<std::int64_t>(first, 0, source);
    const std::int64_t inside_last = std::clamp<std::int64_t>(last, inside_first, source);
    axis.first[i] = static_cast<std::uint32_t>(inside_first);
    axis.count[i] = std::min(static_cast<std::uint32_t>(inside_last - inside_first), axis.taps);
    for (std::uint32_t k = 0; k < axis.count[i]; ++k) {
      const double p = static_cast<double>(inside_first) + k + 0.5;
      const double w = std::max(0.0, 1 - std::abs(p - middle) / reach);
      axis.weight[std::size_t{i} * axis.taps + k] = static_cast<float>(w / total);
    }
  }
}

PixelForm pixel_form(const InputForm& form) {
  PixelForm made{.side = form.target, .channels = form.channels};
  for (std::size_t c = 0; c < form.channels; ++c) {
    made.gain[c] = 1.0F / (255.0F * form.normalisation.deviation[c]);
    made.shift[c] = form.normalisation.mean[c] / form.normalisation.deviation[c];
  }
  return made;
}

void Resampler::render(const Image& image, const View& view, const InputForm& form,
                       std::span<float> out) {
  const std::uint32_t target = form.target;
  const std::uint32_t channels = form.channels;
  const std::size_t stored = image.channels;
  STARLING_CHECK(stored == 1 || stored == 3);
  STARLING_CHECK(channels == 1 || channels == 3);
  STARLING_CHECK(target > 0 && out.size() == std::size_t{target} * target * channels);
  STARLING_CHECK(image.pixels.size() == std::size_t{image.size.height} * image.size.width * stored);
  fill(across_, view.box.left, view.box.width, image.size.width, target);
  fill(down_, view.box.top, view.box.height, image.size.height, target);
  const std::uint32_t begin = resize_needed_rows(image, view.flip, target);

  const PixelForm scale = pixel_form(form);
  for (std::uint32_t i = 0; i < target; ++i) {
    blend_row(i, begin, std::size_t{target} * stored);
    const std::size_t width = std::size_t{target} * channels;
    write_row(stored, scale, out.subspan(i * width, width));
  }
}

void Resampler::resize(const Image& image, ImageSize size, Image& out) {
  STARLING_CHECK(size.height > 0 && size.width > 0);
  STARLING_CHECK(image.pixels.size() ==
                 std::size_t{image.size.height} * image.size.width * image.channels);
  fill(across_, 0, image.size.width, image.size.width, size.width);
  fill(down_, 0, image.size.height, image.size.height, size.height);
  const std::uint32_t begin = resize_needed_rows(image, false, size.width);
  out.size = size;
  out.channels = image.channels;
  const std::size_t row_bytes = std::size_t{size.width} * image.channels;
  out.pixels.resize(size.height * row_bytes);
  for (std::uint32_t i = 0; i < size.height; ++i) {
    blend_row(i, begin, row_bytes);
    std::ranges::transform(
        pixel_, out.pixels.begin() + static_cast<std::ptrdiff_t>(i * row_bytes), [](float value) {
          return static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.0F, 255.0F)));
        });
  }
}

std::uint32_t Resampler::resize_needed_rows(const Image& image, bool flip, std::uint32_t target) {
  const Range rows = needed(down_, image.size.height);
  resize_rows(image, flip, target, rows.begin, rows.end);
  return rows.begin;
}

Resampler::Range Resampler::needed(const Axis& axis, std::uint32_t source) {
  Range range{.begin = source, .end = 0};
  for (std::size_t i = 0; i < axis.count.size(); ++i) {
    if (axis.count[i] == 0) continue;
    range.begin = std::min(range.begin, axis.first[i]);
    range.end = std::max(range.end, axis.first[i] + axis.count[i]);
  }
  range.end = std::max(range.begin, range.end);
  return range;
}

std::size_t Resampler::filter_bytes(const Axis& axis) {
  return pixel_aligned(axis.first.size() * (sizeof(PixelSpan) + axis.taps * sizeof(float)));
}

void Resampler::write_filter(const Axis& axis, std::uint32_t begin, Order order, std::byte* out) {
  const std::size_t target = axis.first.size();
  auto* const spans = reinterpret_cast<PixelSpan*>(out);
  auto* const weights = reinterpret_cast<float*>(out + target * sizeof(PixelSpan));
  for (std::size_t i = 0; i < target; ++i) {
    const std::size_t to = order == Order::mirrored ? target - 1 - i : i;
    const std::uint32_t count = axis.count[i];
    spans[to] = {.first = count == 0 ? 0 : axis.first[i] - begin, .count = count};
    std::copy_n(axis.weight.data() + i * axis.taps, axis.taps, weights + to * axis.taps);
  }
}

std::size_t Resampler::plan_part(const Image& image, const View& view, std::uint32_t target) {
  fill(across_, view.box.left, view.box.width, image.size.width, target);
  fill(down_, view.box.top, view.box.height, image.size.height, target);
  const Range columns = needed(across_, image.size.width);
  const Range rows = needed(down_, image.size.height);
  const std::size_t pixels = std::size_t{rows.end - rows.begin} * (columns.end - columns.begin);
  return filter_bytes(across_) + filter_bytes(down_) + pixel_aligned(pixels * image.channels);
}

PixelPlace Resampler::write_part(const Image& image, const View& view, std::uint64_t offset,
                                 std::span<std::byte> out) const {
  const Range columns = needed(across_, image.size.width);
  const Range rows = needed(down_, image.size.height);
  PixelPlace place;
  const std::size_t row_bytes = std::size_t{columns.end - columns.begin} * image.channels;
  place.pixels = offset;
  place.across = offset + pixel_aligned(row_bytes * (rows.end - rows.begin));
  place.down = place.across + filter_bytes(across_);
  place.width = columns.end - columns.begin;
  place.stored = image.channels;
  place.across_taps = across_.taps;
  place.down_taps = down_.taps;
  write_filter(across_, columns.begin, view.flip ? Order::mirrored : Order::forward,
               out.data() + (place.across - offset));
  write_filter(down_, rows.begin, Order::forward, out.data() + (place.down - offset));
  std::byte* to = out.data();
  if (row_bytes == 0) return place;
  for (std::uint32_t y = rows.begin; y < rows.end; ++y, to += row_bytes) {
    const std::size_t from = (std::size_t{y} * image.size.width + columns.begin) * image.channels;
    std::memcpy(to, image.pixels.data() + from, row_bytes);
  }
  return place;
}

void Resampler::blend_row(std::uint32_t row, std::uint32_t begin, std::size_t row_floats) {
  pixel_.assign(row_floats, 0.0F);
  for (std::uint32_t k = 0; k < down_.count[row]; ++k) {
    const float weight = down_.weight[std::size_t{row} * down_.taps + k];
    const float* source = rows_.data() + (down_.first[row] + k - begin) * row_floats;
    for (std::size_t x = 0; x < row_floats; ++x) pixel_[x] += weight * source[x];
  }
}

// Resizes source rows [begin, end) across, into rows_.
void Resampler::resize_rows(const Image& image, bool flip, std::uint32_t target,
                            std::uint32_t begin, std::uint32_t end) {
  const std::size_t stored = image.channels;
  const std::size_t row_floats = std::size_t{target} * stored;
  rows_.resize((end - begin) * row_floats);
  for (std::uint32_t y = begin; y < end; ++y) {
    const std::uint8_t* source = image.pixels.data() + std::size_t{y} * image.size.width * stored;
    float* row = rows_.data() + (y - begin) * row_floats;
    for (std::uint32_t i = 0; i < target; ++i) {
      const float* weight = across_.weight.data() + std::size_t{i} * across_.taps;
      const std::uint8_t* from = source + std::size_t{across_.first[i]} * stored;
      std::array<float, 3> sum{};
      if (stored == 3) {
        for (std::uint32_t k = 0; k < across_.count[i]; ++k, from += 3) {
          sum[0] += weight[k] * static_cast<float>(from[0]);
          sum[1] += weight[k] * static_cast<float>(from[1]);
          sum[2] += weight[k] * static_cast<float>(from[2]);
        }
      } else {
        for (std::uint32_t k = 0; k < across_.count[i]; ++k) {
          sum[0] += weight[k] * static_cast<float>(from[k]);
        }
      }
      const std::size_t at = flip ? target - 1 - i : i;
      std::copy_n(sum.begin(), stored, row + at * stored);
    }
  }
}

void Resampler::write_row(std::size_t stored, const PixelForm& form, std::span<float> out) const {
  const std::size_t width = out.size() / form.channels;
  for (std::size_t x = 0; x < width; ++x) {
    const float* from = pixel_.data() + x * stored;
    if (form.channels == 3) {
      for (std::size_t c = 0; c < 3; ++c) {
        out[3 * x + c] = from[stored == 3 ? c : 0] * form.gain[c] - form.shift[c];
      }
    } else {
      const float value =
          stored == 1 ? from[0] : 0.299F * from[0] + 0.587F * from[1] + 0.114F * from[2];
      out[x] = value * form.gain[0] - form.shift[0];
    }
  }
}

}  // namespace starling::training
