#include "training/data/augment.h"

#include "tests/training/data/fixtures.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

constexpr Normalisation kPlain{.mean = {0, 0, 0}, .deviation = {1, 1, 1}};

std::vector<float> render(const Image& image, const View& view, std::uint32_t target,
                          std::uint32_t channels, const Normalisation& normalisation = kPlain) {
  std::vector<float> out(std::size_t{target} * target * channels);
  Resampler().render(image, view, {target, channels, normalisation}, out);
  return out;
}

View whole(const Image& image) {
  return {.box = {.top = 0,
                  .left = 0,
                  .height = static_cast<double>(image.size.height),
                  .width = static_cast<double>(image.size.width)},
          .flip = false};
}

}  // namespace

TEST_SUITE("training/data/augment") {
  TEST_CASE("an image of the right size passes unchanged") {
    const Image image = smooth_image({32, 32}, 51);

    const auto out = render(image, whole(image), 32, 3);

    for (std::size_t i = 0; i < out.size(); ++i) {
      // One multiplication by 1/255 in fp32.
      CHECK(out[i] == doctest::Approx(image.pixels[i] / 255.0).epsilon(1e-6));
    }
  }

  TEST_CASE("a plain image stays plain whatever the box and the size") {
    Rng rng(7);
    const Image image{
        .pixels = std::vector<std::uint8_t>(50 * 70 * 3, 102), .size = {50, 70}, .channels = 3};
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      CAPTURE(seed);
      AugmentOptions options;
      options.crop = CropPolicy::random_resized;
      options.flip = 0.5;
      const View view = choose_view(options, image.size, rng);

      for (const float value : render(image, view, 24, 3)) {
        // Weights of up to 10 taps, twice, sum to one within 20 roundings of fp32.
        CHECK(std::abs(value - 0.4F) < 20 * 0x1p-24F);
      }
    }
  }

  TEST_CASE("shrinking averages instead of picking, so a checkerboard becomes gray") {
    Image image{.pixels = {}, .size = {64, 64}, .channels = 1};
    for (std::uint32_t i = 0; i < 64 * 64; ++i) {
      image.pixels.push_back((i / 64 + i % 64) % 2 == 0 ? 255 : 0);
    }

    const auto out = render(image, whole(image), 16, 1);

    for (const float value : out) CHECK(std::abs(value - 0.5F) < 0.02F);
  }

  TEST_CASE("a flipped view is the mirror image") {
    const Image image = smooth_image({20, 20}, 9);
    View view = whole(image);

    const auto straight = render(image, view, 10, 3);
    view.flip = true;
    const auto mirrored = render(image, view, 10, 3);

    for (std::size_t y = 0; y < 10; ++y) {
      for (std::size_t x = 0; x < 10; ++x) {
        for (std::size_t c = 0; c < 3; ++c) {
          CHECK(straight[(y * 10 + x) * 3 + c] == mirrored[(y * 10 + 9 - x) * 3 + c]);
        }
      }
    }
  }

  TEST_CASE("what a padded crop shows beyond the image is black") {
    const Image image{.pixels = std::vector<std::uint8_t>(64, 255), .size = {8, 8}, .channels = 1};
    const View view{.box = {.top = -2, .left = 0, .height = 8, .width = 8}, .flip = false};

    const auto out = render(image, view, 8, 1);

    CHECK(out[0] == 0.0F);
    CHECK(out[8] == 0.0F);
    CHECK(out[16] == doctest::Approx(1.0));
  }

  TEST_CASE("normalisation subtracts the mean and divides by the deviation") {
    const Image image{.pixels = {255, 0, 51}, .size = {1, 1}, .channels = 3};
    const Normalisation constants = default_normalisation(3);

    const auto out = render(image, whole(image), 1, 3, constants);

    CHECK(out[0] == doctest::Approx((1.0 - 0.485) / 0.229).epsilon(1e-5));
    CHECK(out[1] == doctest::Approx(-0.456 / 0.224).epsilon(1e-5));
    CHECK(out[2] == doctest::Approx((0.2 - 0.406) / 0.225).epsilon(1e-5));
  }

  TEST_CASE("channels are converted to what the model takes") {
    const Image gray{.pixels = {51}, .size = {1, 1}, .channels = 1};
    const Image red{.pixels = {255, 0, 0}, .size = {1, 1}, .channels = 3};

    const auto repeated = render(gray, whole(gray), 1, 3);
    const auto weighted = render(red, whole(red), 1, 1);

    CHECK(repeated[0] == repeated[2]);
    CHECK(repeated[0] == doctest::Approx(0.2));
    CHECK(weighted[0] == doctest::Approx(0.299));
  }

  TEST_CASE("random crops lie inside the image and cover the areas and shapes that they should") {
    AugmentOptions options;
    options.crop = CropPolicy::random_resized;
    options.flip = 0.5;
    double smallest = 1;
    double largest = 0;
    int flips = 0;
    for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);

      const View view = choose_view(options, {300, 400}, rng);

      CHECK(view.box.top >= 0);
      CHECK(view.box.left >= 0);
      CHECK(view.box.top + view.box.height <= 300);
      CHECK(view.box.left + view.box.width <= 400);
      const double area = view.box.height * view.box.width / (300.0 * 400.0);
      const double shape = view.box.width / view.box.height;
      CHECK(area > 0.075);  // 0.08 less the rounding to whole pixels
      CHECK(shape > 0.73);
      CHECK(shape < 1.36);
      smallest = std::min(smallest, area);
      largest = std::max(largest, area);
      flips += view.flip ? 1 : 0;
    }
    CHECK(smallest < 0.1);
    CHECK(largest > 0.9);
    CHECK(std::abs(flips - 1'000) < 4 * 23);  // four deviations of a fair coin
  }

  TEST_CASE("even an image of one pixel, or of one row, has a crop") {
    AugmentOptions options;
    options.crop = CropPolicy::random_resized;
    for (const ImageSize size : {ImageSize{1, 1}, ImageSize{1, 5'000}, ImageSize{3, 2}}) {
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        CAPTURE(seed);
        Rng rng(seed);
        const Image image{
            .pixels = std::vector<std::uint8_t>(std::size_t{size.height} * size.width, 255),
            .size = size,
            .channels = 1};

        const auto out = render(image, choose_view(options, size, rng), 4, 1);

        for (const float value : out) CHECK(value == doctest::Approx(1.0));
      }
    }
  }

  TEST_CASE("a JPEG is reduced only as far as the crop keeps the pixels that the model sees") {
    CHECK(reduction_for({.top = 0, .left = 0, .height = 224, .width = 300}, 224) == 1);
    CHECK(reduction_for({.top = 0, .left = 0, .height = 448, .width = 500}, 224) == 2);
    CHECK(reduction_for({.top = 0, .left = 0, .height = 4'000, .width = 1'000}, 224) == 4);
    CHECK(reduction_for({.top = 0, .left = 0, .height = 9'000, .width = 9'000}, 224) == 8);
  }

  TEST_CASE("digits are not mirrored, and small images are shifted instead of cut") {
    CHECK(training_augmentation(ImageSize{28, 28}, 1).flip == 0);
    CHECK(training_augmentation(ImageSize{28, 28}, 1).crop == CropPolicy::whole);
    CHECK(training_augmentation(ImageSize{32, 32}, 3).crop == CropPolicy::padded);
    CHECK(training_augmentation(ImageSize{32, 32}, 3).flip == 0.5);
    CHECK(training_augmentation({}, 3).crop == CropPolicy::random_resized);
    CHECK(evaluation_augmentation({}).crop == CropPolicy::centre);
    CHECK(evaluation_augmentation(ImageSize{32, 32}).crop == CropPolicy::whole);
  }
}
