// The input of a GPU, run here pixel by pixel, against the CPU's: Resampler and Loader.
#include "node/base/log.h"
#include "node/base/random.h"
#include "tests/training/cuda/aligned.h"
#include "training/cuda/input_passes.h"
#include "training/data/augment.h"
#include "training/data/loader.h"
#include "training/slice_place.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::training;
using cuda::same_bytes;

namespace {

Image random_image(ImageSize size, std::uint32_t channels, Rng& rng) {
  Image image{.pixels = {}, .size = size, .channels = channels};
  image.pixels.resize(std::size_t{size.height} * size.width * channels);
  for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(rng.below(256));
  return image;
}

// What the device makes of one view, out of what was in its memory.
template <class T>
void on_device(const Image& image, const View& view, const InputForm& form,
               cuda::ImageLayout layout, cuda::AlignedVector<T>& out) {
  Resampler resampler;
  const std::size_t bytes = resampler.plan_part(image, view, form.target);
  PixelBatch batch(1, bytes, ordinary_memory());
  const std::size_t offset = batch.first_part();
  REQUIRE(offset + bytes <= batch.capacity());
  batch.places()[0] =
      resampler.write_part(image, view, offset, std::span(batch.data() + offset, bytes));
  cuda::input_on_cpu(cuda::input_args(batch.data(), pixel_form(form), out.data(), 0, layout), 1);
}

// Blocks of an image, value by value: `border` is what lies around them.
template <class T>
cuda::AlignedVector<T> blocks_of(const cuda::AlignedVector<T>& pixels, const InputForm& form,
                                 T border) {
  const std::size_t side = form.target / 2 + 3;
  cuda::AlignedVector<T> blocks(side * side * 16, border);
  for (std::size_t row = 0; row < form.target; ++row) {
    for (std::size_t column = 0; column < form.target; ++column) {
      T* const block = blocks.data() + ((row / 2 + 2) * side + column / 2 + 2) * 16;
      if (row % 2 == 0 && column % 2 == 0) std::fill_n(block, 16, T{});
      const std::size_t pixel = row % 2 * 2 + column % 2;
      std::copy_n(pixels.data() + (row * form.target + column) * form.channels, form.channels,
                  block + pixel * form.channels);
    }
  }
  return blocks;
}

template <class T>
void check_view_in(const Image& image, const View& view, const InputForm& form) {
  const std::size_t values = std::size_t{form.target} * form.target * form.channels;
  std::vector<float> rendered(values);
  Resampler().render(image, view, form, rendered);
  cuda::AlignedVector<T> expected(values);
  for (std::size_t i = 0; i < values; ++i) cuda::narrow(rendered[i], expected[i]);
  T stale;
  cuda::narrow(77.0F, stale);

  cuda::AlignedVector<T> pixels(values, stale);
  on_device(image, view, form, cuda::ImageLayout::pixels, pixels);

  CHECK(same_bytes(pixels, expected));
  if (form.target % 2 != 0) return;
  const cuda::AlignedVector<T> expected_blocks = blocks_of(expected, form, stale);
  cuda::AlignedVector<T> blocks(expected_blocks.size(), stale);
  on_device(image, view, form, cuda::ImageLayout::blocks, blocks);
  CHECK(same_bytes(blocks, expected_blocks));
}

void check_view(const Image& image, const View& view, const InputForm& form) {
  check_view_in<float>(image, view, form);
  check_view_in<Bf16>(image, view, form);
}

// Images of many sizes, some far larger than what a model sees; those in a row of seven are bad.
class UnevenImages final : public Dataset {
 public:
  UnevenImages(std::uint32_t size, std::uint32_t channels)
      : size_(size), channels_(channels), classes_(10, "c") {}

  std::uint32_t size() const override { return size_; }
  std::uint32_t channels() const override { return channels_; }
  std::optional<ImageSize> uniform_size() const override { return std::nullopt; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return "uneven"; }
  Hash id() const override { return {}; }
  std::string sample_name(std::uint32_t index) const override { return std::to_string(index); }
  Result<void> read(std::uint32_t index, Sample& out) const override {
    out.label = index % 10;
    out.raw.reset();
    out.bytes = to_bytes(as_bytes("no image"));
    if (index % 7 == 3) return {};
    Rng rng(index);
    const ImageSize size{static_cast<std::uint32_t>(8 + rng.below(90)),
                         static_cast<std::uint32_t>(8 + rng.below(90))};
    const Image image = random_image(size, channels_, rng);
    out.raw = Sample::Raw{size, channels_};
    out.bytes = to_bytes(std::as_bytes(std::span(image.pixels)));
    return {};
  }

 private:
  std::uint32_t size_;
  std::uint32_t channels_;
  std::vector<std::string> classes_;
};

std::vector<float> floats_of(const Batch& batch, std::size_t count) {
  if (batch.pixels.empty()) return {batch.images.data(), batch.images.data() + count};
  std::vector<float> out(count);
  cuda::input_on_cpu(cuda::input_args(batch.pixels.data(), batch.pixels.form, out.data()),
                     batch.size);
  return out;
}

// The images of a batch of pixels as the slices of so many GPUs make them, one after the other.
std::vector<float> in_slices(const Batch& batch, std::size_t count, std::size_t gpus) {
  std::vector<float> out(count);
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    const SlicePlace place = slice_place(batch.size, gpu, gpus);
    float* const first = out.data() + count / batch.size * static_cast<std::size_t>(place.begin);
    cuda::input_on_cpu(cuda::input_args(batch.pixels.data(), batch.pixels.form, first,
                                        static_cast<std::uint32_t>(place.begin)),
                       static_cast<std::size_t>(place.size));
  }
  return out;
}

struct Seen {
  std::size_t parts = 0;     // images that were sent as bytes
  std::size_t finished = 0;  // and as floats
};

// The same batches from both kinds of loader, with images of `side`.
Seen check_loader(LoaderOptions options, const Dataset& data, std::uint32_t side) {
  NullLog log;
  options.form = BatchForm::floats;
  Loader as_floats(data, options, log);
  options.form = BatchForm::pixels;
  options.threads = 3;
  Loader as_pixels(data, options, log);
  as_floats.set_side(side);
  as_pixels.set_side(side);
  Seen seen;
  for (int number = 0; number < 20; ++number) {
    CAPTURE(number);
    auto expected = as_floats.next();
    auto found = as_pixels.next();
    REQUIRE(expected);
    REQUIRE(found);
    REQUIRE(expected->has_value() == found->has_value());
    if (!*expected) return seen;
    const Batch& batch = **found;
    // A batch that was begun before set_side() may have either.
    if (number < 2 && side != options.target) continue;
    CHECK(batch.images.size() == 0);
    CHECK(batch.size == (*expected)->size);
    CHECK(batch.side == (*expected)->side);
    CHECK(batch.end == (*expected)->end);
    CHECK(batch.bad == (*expected)->bad);
    CHECK(batch.labels == (*expected)->labels);
    CHECK(std::equal(batch.labels.begin(), batch.labels.end(), batch.pixels.labels()));
    CHECK(batch.pixels.used <= batch.pixels.capacity());
    const std::size_t count = batch.size * std::size_t{batch.side} * batch.side * options.channels;
    CHECK(same_bytes(floats_of(batch, count), floats_of(**expected, count)));
    if (batch.size >= 2)
      CHECK(same_bytes(in_slices(batch, count, 2), floats_of(**expected, count)));
    for (std::size_t i = 0; i < batch.size; ++i)
      ++(batch.pixels.places()[i].stored == 0 ? seen.finished : seen.parts);
    as_floats.recycle(*std::move(*expected));
    as_pixels.recycle(*std::move(*found));
  }
  return seen;
}

LoaderOptions small_batches(Pass pass, const Dataset& data, std::uint32_t channels) {
  LoaderOptions options = loader_options_for(data, pass, 20, channels);
  options.batch = 9;
  options.threads = 1;
  options.prefetch = 1;
  return options;
}

// Memory of a device that says which one it was given back for.
int given_for = -1;
HostMemory memory_of(int device) {
  return {.take = [](std::size_t bytes, int) { return std::malloc(bytes); },
          .give =
              [](void* bytes, int of) {
                std::free(bytes);
                given_for = of;
              },
          .device = device};
}

}  // namespace

TEST_SUITE("training/cuda/input") {
  TEST_CASE("the memory of a batch goes back to the device that it came from") {
    {
      PixelBatch batch(2, 100, memory_of(3));
      const PixelBatch moved = std::move(batch);
      CHECK(given_for == -1);
    }
    CHECK(given_for == 3);
    {
      PixelBatch batch(2, 100, memory_of(5));
      batch = PixelBatch(2, 100, memory_of(4));
      CHECK(given_for == 5);
    }
    CHECK(given_for == 4);
  }

  TEST_CASE(
      "a view rendered by a GPU has the bits of the CPU's, whatever the crop, in both layouts") {
    Rng rng(11);
    for (const CropPolicy crop :
         {CropPolicy::centre, CropPolicy::whole, CropPolicy::random_resized, CropPolicy::padded}) {
      for (int i = 0; i < 24; ++i) {
        CAPTURE(i);
        const std::uint32_t stored = i % 2 == 0 ? 3 : 1;
        const std::uint32_t channels = i % 4 < 2 ? 3 : 1;
        const ImageSize size{static_cast<std::uint32_t>(1 + rng.below(70)),
                             static_cast<std::uint32_t>(1 + rng.below(70))};
        const Image image = random_image(size, stored, rng);
        AugmentOptions augment;
        augment.crop = crop;
        augment.flip = 0.5;
        const View view = choose_view(augment, size, rng);
        check_view(image, view,
                   {static_cast<std::uint32_t>(1 + rng.below(40)), channels,
                    default_normalisation(channels)});
      }
    }
  }

  TEST_CASE("a view beside its image is black") {
    Rng rng(3);
    const Image image = random_image({10, 10}, 3, rng);
    const View outside{.box = {.top = 40, .left = -90, .height = 8, .width = 8}, .flip = true};

    check_view(image, outside, {6, 3, default_normalisation(3)});
  }

  TEST_CASE("a loader of pixels draws the batches of a loader of floats") {
    for (const std::uint32_t channels : {1U, 3U}) {
      for (const std::uint32_t stored : {1U, 3U}) {
        CAPTURE(channels);
        CAPTURE(stored);
        const UnevenImages data(200, stored);

        const LoaderOptions options = small_batches(Pass::training, data, channels);
        const Seen seen = check_loader(options, data, options.target);
        (void)check_loader(options, data, options.target / 2);

        // Both ways of sending an image were taken.
        CHECK(seen.parts > 0);
        if (stored == 3) CHECK(seen.finished > 0);
      }
    }
  }

  TEST_CASE("an evaluation of pixels leaves out what cannot be read") {
    const UnevenImages data(50, 3);

    const Seen seen = check_loader(small_batches(Pass::evaluation, data, 3), data, 20);

    CHECK(seen.parts + seen.finished == 43);
  }

  TEST_CASE("a batch that is ready can be had without waiting, and one that is not is not") {
    const UnevenImages data(50, 3);
    NullLog log;
    LoaderOptions options = small_batches(Pass::evaluation, data, 3);
    options.batch = 50;
    Loader loader(data, options, log);

    std::optional<Batch> batch;
    while (!batch) batch = loader.try_next();

    CHECK(batch->size == 43);
    CHECK_FALSE(loader.try_next());
    loader.stop();
    CHECK_FALSE(loader.try_next());
  }
}
