// From an image to the floats that the model sees: which part, mirrored or not, resized,
// normalised.
#pragma once

#include "node/base/random.h"
#include "training/data/image.h"
#include "training/data/pixels.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace starling::training {

// Images up to this side are icons, not photographs.
inline constexpr std::uint32_t kSmallSide = 64;

// A part of an image, in pixels of that image; may reach beyond its borders (padding is black).
struct CropBox {
  double top = 0;
  double left = 0;
  double height = 0;
  double width = 0;
};

enum class CropPolicy : std::uint8_t {
  centre,          // the middle, 7/8 of the short side: evaluation
  whole,           // all of it, stretched: small images in evaluation
  random_resized,  // a random part of random area and shape: photographs
  padded,          // a shift by up to 1/8 of the side over a black border: small images
};

struct AugmentOptions {
  CropPolicy crop = CropPolicy::centre;
  // Chance of a mirrored image. 0 for digits and letters, which mean something else mirrored.
  double flip = 0;
  // random_resized: smallest part of the area. Raising it makes an epoch easier and overfits
  // earlier.
  double min_area = 0.08;
  // padded: border in units of the side.
  double border = 0.125;
};

// Side of the images that a model takes by default: small square ones as they are stored, else 224.
[[nodiscard]] std::uint32_t default_image_size(std::optional<ImageSize> uniform_size);

// What a training pass does by default with images of this kind: photographs get random resized
// crops, small colour images shifts and mirroring; small gray ones (digits, clothes) are centred
// already and are seen a few times only, so they stay as they are.
[[nodiscard]] AugmentOptions training_augmentation(std::optional<ImageSize> uniform_size,
                                                   std::uint32_t stored_channels);
// What an evaluation pass does: no randomness.
[[nodiscard]] AugmentOptions evaluation_augmentation(std::optional<ImageSize> uniform_size);

// value = (byte / 255 - mean) / deviation, per channel.
struct Normalisation {
  std::array<float, 3> mean{};
  std::array<float, 3> deviation{};
};

// Fixed constants per number of channels, so that every node and every later evaluation of a model
// agree: ImageNet's for 3 channels, Fashion-MNIST's for 1.
[[nodiscard]] Normalisation default_normalisation(std::uint32_t channels);

// One sample's random decisions, in coordinates of the full-size image.
struct View {
  CropBox box;
  bool flip = false;
};

// Draws a view. The same Rng state gives the same view on every machine.
[[nodiscard]] View choose_view(const AugmentOptions& options, ImageSize size, Rng& rng);

// The largest of 1, 2, 4, 8 by which a JPEG may be reduced so that the box still has at least
// `target` pixels a side.
[[nodiscard]] std::uint32_t reduction_for(const CropBox& box, std::uint32_t target);

// What a model sees of every picture: `target` pixels a side, 1 or 3 channels, normalised.
struct InputForm {
  std::uint32_t target = 0;
  std::uint32_t channels = 3;
  Normalisation normalisation;
};

// The same as a gain and a shift a channel.
[[nodiscard]] PixelForm pixel_form(const InputForm& form);

// Cuts a box out of an image, resizes it to target x target and normalises it.
//
// One per loader thread (it holds working memory and filter tables); not for two threads at once.
//
// Rule:    bilinear (triangle filter), widened by the scale when shrinking, so nothing aliases;
//          horizontal pass first, fp32 throughout.
// Cost:    decoding included, 0.7 ms for a photograph of 224 pixels on one core.
class Resampler {
 public:
  // Shapes:  out is target x target x channels (HWC); one stored channel is repeated to 3, three
  //          are weighted (Rec. 601) to 1.
  void render(const Image& image, const View& view, const InputForm& form, std::span<float> out);
  // What render() would work on, for somebody else to render. Two calls, so that memory can be
  // found in between: the bytes that the part needs, then the part, its first byte being number
  // `offset` of its batch (a multiple of kPixelAlignment).
  [[nodiscard]] std::size_t plan_part(const Image& image, const View& view, std::uint32_t target);
  [[nodiscard]] PixelPlace write_part(const Image& image, const View& view, std::uint64_t offset,
                                      std::span<std::byte> out) const;
  // All of an image in another size, in bytes again: for files that are made beforehand.
  void resize(const Image& image, ImageSize size, Image& out);

 private:
  // Source pixels and weights of every target pixel along one axis.
  struct Axis {
    std::vector<std::uint32_t> first;
    std::vector<std::uint32_t> count;
    std::vector<float> weight;  // `taps` per target pixel
    std::uint32_t taps = 0;
  };
  // The source rows or columns that any target one looks at.
  struct Range {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  [[nodiscard]] static Range needed(const Axis& axis, std::uint32_t source);
  [[nodiscard]] static std::size_t filter_bytes(const Axis& axis);
  enum class Order : std::uint8_t { forward, mirrored };
  // Spans, counted from `begin`, and weights.
  static void write_filter(const Axis& axis, std::uint32_t begin, Order order, std::byte* out);
  static void fill(Axis& axis, double start, double extent, std::uint32_t source,
                   std::uint32_t target);
  void resize_rows(const Image& image, bool flip, std::uint32_t target, std::uint32_t begin,
                   std::uint32_t end);
  // One target row out of rows_, which begin with source row `begin`, into pixel_.
  void blend_row(std::uint32_t row, std::uint32_t begin, std::size_t row_floats);
  // The source rows that any target row looks at: resized across, into rows_; the first of them.
  std::uint32_t resize_needed_rows(const Image& image, bool flip, std::uint32_t target);
  void write_row(std::size_t stored, const PixelForm& form, std::span<float> out) const;

  Axis across_;
  Axis down_;
  std::vector<float> rows_;   // source rows of the box, already resized across
  std::vector<float> pixel_;  // one target row before channel conversion
};

}  // namespace starling::training
