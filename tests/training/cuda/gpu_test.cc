// The kernels on a GPU against the CPU's code: launches, the real crew, the device codec.
#include "gossip/delta/exchange.h"
#include "tests/gossip/delta/models.h"
#include "tests/training/cuda/aligned.h"
#include "tests/training/cuda/pool_twin.h"
#include "training/cpu/norm.h"
#include "training/cuda/device_codec.h"
#include "training/cuda/launch_input.h"
#include "training/cuda/launch_norm.h"
#include "training/cuda/launch_optimizer.h"
#include "training/cuda/launch_pool.h"
#include "training/cuda/pinned_memory.h"
#include "training/data/augment.h"
#include "training/models/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::training;
using cuda::apart;
using cuda::same_bytes;
using gossip::kBlock;
using gossip::Layout;
using gossip::Level;
using gossip::testing::kShapes;
using gossip::testing::Shape;

namespace {

// Before main(), so that the whole binary is skipped (exit 77) where there is no device.
[[maybe_unused]] const bool kDevice = [] {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return true;
  std::clog << "skipped: no CUDA device here (" << cudaGetErrorString(error) << ")\n";
  std::_Exit(77);
}();

// A copy of host values on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
    auto made = cuda::DeviceArray<T>::make(count_, Doing::training);
    REQUIRE(made.has_value());
    array_ = std::move(*made);
    const auto copied =
        cudaMemcpy(array_.get(), values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
    REQUIRE(copied == cudaSuccess);
    // The bytes may still be on their way, and the codec's stream does not wait for them.
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }
  [[nodiscard]] T* get() const { return array_.get(); }
  // Waits for everything that was launched.
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const auto copied =
        cudaMemcpy(values.data(), array_.get(), count_ * sizeof(T), cudaMemcpyDeviceToHost);
    REQUIRE(copied == cudaSuccess);
    return values;
  }

 private:
  std::size_t count_;
  cuda::DeviceArray<T> array_;
};

void launched(const char* wrong) {
  if (wrong != nullptr) FAIL(wrong);
}

template <class T>
std::vector<T> random_values(std::size_t n, Rng& rng, double spread, double mean) {
  std::vector<T> values(n);
  for (T& value : values)
    cuda::narrow(static_cast<float>((rng.unit() - 0.5) * spread + mean), value);
  return values;
}

template <class T>
void check_sgd() {
  constexpr std::size_t kValues = 1'000'000;
  Rng rng(3);
  auto x = random_values<float>(kValues, rng, 2, 0);
  const auto g = random_values<T>(kValues, rng, 0.1, 0);
  auto v = random_values<float>(kValues, rng, 1, 0);
  std::vector<T> w(kValues);
  const OnDevice<float> device_x(x);
  const OnDevice<T> device_g(g);
  const OnDevice<float> device_v(v);
  const OnDevice<T> device_w(w);
  const OnDevice<float> rate({0.03F});
  const OnDevice<std::uint32_t> refused({0});
  const cuda::SgdArgs<T> args{device_x.get(), device_g.get(), device_v.get(),
                              device_w.get(), kValues,        rate.get(),
                              refused.get(),  0.9F,           1e-4F};
  for (int step = 0; step < 3; ++step) {
    launched(cuda::launch_sgd(args, nullptr));
    sgd_pass(SgdRange<T>{x, g, v, w}, {0.03F, 0.9F, 1e-4F});
  }
  CHECK(same_bytes(device_x.read(), x));
  CHECK(same_bytes(device_v.read(), v));
  CHECK(same_bytes(device_w.read(), w));

  const OnDevice<std::uint32_t> bad({1});
  cuda::SgdArgs<T> stopped = args;
  stopped.refused = bad.get();
  launched(cuda::launch_sgd(stopped, nullptr));
  CHECK(same_bytes(device_x.read(), x));
}

template <class T>
void check_finite() {
  Rng rng(5);
  auto values = random_values<T>(100'000, rng, 2, 0);
  const auto found = [&] {
    const OnDevice<T> device(values);
    const OnDevice<std::uint32_t> refused({0});
    launched(cuda::launch_finite_check(device.get(), values.size(), refused.get(), nullptr));
    return refused.read().front();
  };
  CHECK(found() == 0);
  cuda::narrow(std::numeric_limits<float>::infinity(), values[77'777]);
  CHECK(found() == 1);
}

// A batch of images of many sizes, in the memory that a run has it in.
PixelBatch random_pixels(std::size_t images, std::uint32_t side) {
  Rng rng(17);
  const InputForm form{side, 3, default_normalisation(3)};
  PixelBatch batch(images, std::size_t{200} << 10, cuda::pinned_memory(0));
  batch.form = pixel_form(form);
  batch.used = batch.first_part();
  Resampler resampler;
  for (std::size_t n = 0; n < images; ++n) {
    Image image{.pixels = {},
                .size = {static_cast<std::uint32_t>(30 + rng.below(170)),
                         static_cast<std::uint32_t>(30 + rng.below(170))},
                .channels = n % 5 == 4 ? 1U : 3U};
    image.pixels.resize(std::size_t{image.size.height} * image.size.width * image.channels);
    for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(rng.below(256));
    AugmentOptions augment;
    augment.crop = n % 2 == 0 ? CropPolicy::random_resized : CropPolicy::padded;
    augment.flip = 0.5;
    const View view = choose_view(augment, image.size, rng);
    const std::size_t bytes = resampler.plan_part(image, view, side);
    REQUIRE(batch.used + bytes <= batch.capacity());
    batch.places()[n] =
        resampler.write_part(image, view, batch.used, std::span(batch.data() + batch.used, bytes));
    batch.used += bytes;
  }
  return batch;
}

template <class T>
void check_input(std::uint32_t side, cuda::ImageLayout layout) {
  constexpr std::size_t kImages = 20;
  constexpr std::uint32_t kFirst = 3;  // a slice of a batch
  const PixelBatch batch = random_pixels(kFirst + kImages, side);
  const OnDevice<std::byte> bytes({batch.data(), batch.data() + batch.used});
  const std::size_t positions = side / 2 + cuda::kBlockBorder;
  const std::size_t values = layout == cuda::ImageLayout::pixels
                                 ? kImages * side * side * 3
                                 : kImages * positions * positions * cuda::kBlockChannels;
  // The border of blocks stays as it was.
  T stale;
  cuda::narrow(77.0F, stale);
  const std::vector<T> before(values, stale);
  const OnDevice<T> out(before);
  launched(cuda::launch_input(cuda::input_args(bytes.get(), batch.form, out.get(), kFirst, layout),
                              kImages, nullptr));
  cuda::AlignedVector<T> expected(before.begin(), before.end());
  cuda::input_on_cpu(cuda::input_args(batch.data(), batch.form, expected.data(), kFirst, layout),
                     kImages);
  CHECK(same_bytes(out.read(), expected));
}

// fp32, where nearly all differences are those of sums; the passes themselves are compared with the
// CPU's in norm_test.cc.
void check_norm(std::size_t rows, std::size_t channels, bool added) {
  Rng rng(7);
  const auto x = random_values<float>(rows * channels, rng, 4, 3);
  auto g = random_values<float>(rows * channels, rng, 2, 0);
  const auto more = random_values<float>(rows * channels, rng, 2, 0);
  // Far from zero: a value there would pass the relu on one side only, for its rounding.
  auto residual = random_values<float>(rows * channels, rng, 2, 0);
  for (float& value : residual) value += value < 0 ? -20.0F : 20.0F;
  const auto weight = random_values<float>(channels, rng, 1, 1);
  const auto bias = random_values<float>(channels, rng, 1, 0);
  const OnDevice<float> device_x(x);
  const OnDevice<float> device_g(g);
  const OnDevice<float> device_more(more);
  const OnDevice<float> device_residual(residual);
  const OnDevice<std::uint8_t> open(std::vector<std::uint8_t>(x.size() / cuda::kNormPack));
  const OnDevice<float> device_weight(weight);
  const OnDevice<float> device_bias(bias);
  const OnDevice<float> device_y(std::vector<float>(x.size()));
  const OnDevice<float> gradients(std::vector<float>(2 * channels));
  const OnDevice<float> lines(std::vector<float>(8 * channels));
  const auto plan = cuda::NormPlan::make({rows, channels});
  const OnDevice<float> partials(std::vector<float>(plan.partials()));
  const cuda::NormLayer<float> layer{
      {rows, channels},
      {device_x.get(),
       {device_weight.get(), device_bias.get(), gradients.get(), gradients.get() + channels},
       cuda::NormLines::at(lines.get(), channels),
       kNormEpsilon},
      partials.get()};
  launched(cuda::launch_norm_measure(layer, nullptr));
  const NormApply<float> apply{device_x.get(),
                               added ? device_residual.get() : nullptr,
                               device_y.get(),
                               layer.channels.lines.scale,
                               layer.channels.lines.shift,
                               nullptr,
                               nullptr};
  launched(cuda::launch_norm_apply(layer, apply, added ? open.get() : nullptr, nullptr));
  const OnDevice<float> device_dx(std::vector<float>(x.size()));
  const cuda::NormBackward<float> args{device_g.get(), added ? device_more.get() : nullptr,
                                       added ? open.get() : nullptr, device_dx.get(), false};
  launched(cuda::launch_norm_backward(layer, args, nullptr));

  Norm<float> norm(channels, gossip::Isa::scalar);
  std::vector<float> weight_gradient(channels);
  std::vector<float> bias_gradient(channels);
  const NormWeights weights{weight, bias, weight_gradient, bias_gradient};
  std::vector<float> y(x.size());
  std::vector<float> dx(x.size());
  norm.measure(x.data(), {0, rows});
  norm.end_measure(rows, weights);
  norm.apply({.x = x.data(), .residual = added ? residual.data() : nullptr, .y = y.data()},
             {0, rows});
  const Norm<float>::Backward backward{.x = x.data(),
                                       .g = g.data(),
                                       .more = added ? more.data() : nullptr,
                                       .y = added ? y.data() : nullptr,
                                       .dx = dx.data(),
                                       .relu = false};
  norm.sum_gradient(backward, {0, rows});
  norm.end_gradient_sums(rows, weights);
  norm.gradient(backward, {0, rows});
  // 2,048 additions in fp32 at most, on either side.
  constexpr double kBound = 4'096.0 / (1 << 24);
  CHECK(apart(y, device_y.read()) < kBound);
  CHECK(apart(g, device_g.read()) == 0);
  CHECK(apart(dx, device_dx.read()) < kBound);
  const auto found = gradients.read();
  CHECK(apart(weight_gradient, std::span(found).first(channels)) < kBound);
  CHECK(apart(bias_gradient, std::span(found).subspan(channels)) < kBound);
}

// Against the same passes on a CPU, which pool_test.cc compares with the CPU's code.
template <class T>
void check_pool(const cuda::PoolShape& shape) {
  cuda::PoolLayerData<T> data(shape, 19);
  (void)data.measure();
  const auto on_device = [](const auto& values) {
    return OnDevice(std::vector(values.begin(), values.end()));
  };
  const std::size_t channels = shape.channels;
  std::vector<float> all_lines;
  for (const auto& line : data.lines) all_lines.insert(all_lines.end(), line.begin(), line.end());
  const auto lines = on_device(all_lines);
  const auto weight = on_device(data.weight);
  const auto bias = on_device(data.bias);
  const auto x = on_device(data.x);
  const auto g = on_device(data.g);
  const auto y = on_device(data.y);
  const auto places = on_device(data.places);
  const auto dx = on_device(data.dx);
  const OnDevice<float> gradients(std::vector<float>(2 * channels));
  const auto plan = cuda::NormPlan::make({shape.pooled_rows(), channels});
  const OnDevice<float> partials(std::vector<float>(plan.partials()));
  const cuda::PoolLayer layer{
      shape,
      {weight.get(), bias.get(), gradients.get(), gradients.get() + channels},
      cuda::NormLines::at(lines.get(), channels),
      partials.get()};

  launched(cuda::launch_pool_apply(layer, x.get(), y.get(), places.get(), nullptr));
  cuda::PoolBackward<T> backward{{x.get(), g.get(), places.get()}, dx.get()};
  launched(cuda::launch_pool_backward(layer, backward, nullptr));

  cuda::pool_as_gpu(data);
  cuda::pool_gradient_as_gpu(data, cuda::ItemOrder::rising);
  CHECK(same_bytes(y.read(), data.y));
  CHECK(same_bytes(places.read(), data.places));
  // The order of sums of doubles differs: one step of a float in what is made of them, and of T.
  constexpr double kStep = 1.0 / (1 << 23);
  const auto found = gradients.read();
  CHECK(apart(data.gradients[0], std::span(found).first(channels)) < 2 * kStep);
  CHECK(apart(data.gradients[1], std::span(found).subspan(channels)) < 2 * kStep);
  const auto found_dx = dx.read();
  CHECK(apart(data.dx, found_dx) < (sizeof(T) == 2 ? 1.0 / 256 : 4 * kStep));
  backward.dx = x.get();
  launched(cuda::launch_pool_backward(layer, backward, nullptr));
  CHECK(same_bytes(x.read(), found_dx));
}

// Sparse deltas leave a GPU's -0 alone where they name no value; the CPU adds zero there.
std::vector<float> without_negative_zeros(std::vector<float> values) {
  for (float& value : values) value += 0.0F;
  return values;
}

void check_codec(const Layout& layout, Shape shape) {
  Rng rng(11 + static_cast<std::uint64_t>(shape));
  auto made = cuda::DeviceCodec::make(layout);
  REQUIRE(made.has_value());
  cuda::DeviceCodec codec = std::move(*made);
  const auto start = gossip::testing::values(layout, shape, rng);
  const auto begin = gossip::testing::values(layout, Shape::gaussian, rng);
  for (const Level level : gossip::testing::kLevels) {
    CAPTURE(gossip::name_of(level));
    auto x = start;
    auto r = begin;
    const OnDevice<float> device_x(x);
    const OnDevice<float> device_r(r);
    gossip::Carry carry;
    gossip::Carry device_carry;
    for (int round = 0; round < 3; ++round) {
      const auto expected =
          gossip::encode(layout, {x, r}, {.level = level, .isa = gossip::Isa::scalar}, carry);
      const auto found = codec.encode({device_x.get()}, device_r.get(), level, device_carry);
      REQUIRE(expected.has_value() == found.has_value());
      if (!expected) break;
      CHECK(found->bytes == expected->bytes);
      CHECK(same_bytes(device_carry.thresholds, carry.thresholds));
      const auto own = gossip::parse_delta(layout, level, expected->bytes);
      REQUIRE(own.has_value());
      // The neighbour is one that stands still where this node is.
      const gossip::DeltaPair pair{*own, *own, gossip::Side::higher};
      const double norm = gossip::apply_exchange(pair, 0.25F, {x, r}, gossip::Isa::scalar);
      const auto moved = codec.apply(pair, 0.25F, {device_x.get()}, device_r.get());
      REQUIRE(moved.has_value());
      CHECK(*moved == norm);
      CHECK(same_bytes(without_negative_zeros(device_x.read()), without_negative_zeros(x)));
      CHECK(same_bytes(device_r.read(), r));
    }
  }
}

}  // namespace

TEST_SUITE("training/cuda/gpu") {
  TEST_CASE("the optimizer pass gives the CPU's bytes, and changes nothing where it is refused") {
    check_sgd<float>();
    check_sgd<Bf16>();
  }

  TEST_CASE("a value that is not finite is found") {
    check_finite<float>();
    check_finite<Bf16>();
  }

  TEST_CASE("crop, mirror, resize and normalisation give the CPU's bits") {
    for (const std::uint32_t side : {64U, 63U}) {
      CAPTURE(side);
      check_input<float>(side, cuda::ImageLayout::pixels);
      check_input<Bf16>(side, cuda::ImageLayout::pixels);
    }
    check_input<float>(64, cuda::ImageLayout::blocks);
    check_input<Bf16>(64, cuda::ImageLayout::blocks);
  }

  TEST_CASE("normalisation differs from the CPU's by the rounding of sums") {
    for (const bool added : {false, true}) {
      CAPTURE(added);
      check_norm(100'000, 64, added);
      check_norm(777, 256, added);
      check_norm(49, 2'048, added);
    }
  }

  TEST_CASE("a max pool along with its normalisation gives the bits of the same passes on a CPU") {
    for (const cuda::PoolShape& shape :
         {cuda::PoolShape{8, 112, 112, 64}, {3, 57, 54, 48}, {2, 4, 7, 2'048}, {1, 1, 1, 16}}) {
      CAPTURE(shape.height);
      check_pool<float>(shape);
      check_pool<Bf16>(shape);
    }
  }

  TEST_CASE("encode and exchange give the CPU's bytes and bits") {
    for (const Shape shape : kShapes) {
      CAPTURE(static_cast<int>(shape));
      check_codec(gossip::testing::uneven_layout(), shape);
    }
    check_codec(gossip::testing::make_layout(gossip::testing::resnet50()), Shape::gaussian);
  }

  TEST_CASE("two deltas at different levels are applied as on the CPU, and a snapshot installed") {
    const Layout layout = gossip::testing::uneven_layout();
    auto made = cuda::DeviceCodec::make(layout);
    REQUIRE(made.has_value());
    Rng rng(13);
    for (std::size_t i = 0; i < 7; ++i) {
      const Level own_level = gossip::testing::kLevels[i];
      const Level their_level = gossip::testing::kLevels[(i + 2) % 7];
      auto x = gossip::testing::values(layout, Shape::mixed, rng);
      auto r = gossip::testing::values(layout, Shape::gaussian, rng);
      const auto other = gossip::testing::values(layout, Shape::laplace, rng);
      gossip::Carry carry;
      const auto own = gossip::encode(layout, {r, {}}, {.level = own_level}, carry);
      const auto theirs = gossip::encode(layout, {other, {}}, {.level = their_level}, carry);
      REQUIRE(own.has_value());
      REQUIRE(theirs.has_value());
      const auto own_view = gossip::parse_delta(layout, own_level, own->bytes);
      const auto their_view = gossip::parse_delta(layout, their_level, theirs->bytes);
      REQUIRE(own_view.has_value());
      REQUIRE(their_view.has_value());
      const OnDevice<float> device_x(x);
      const OnDevice<float> device_r(r);
      const gossip::DeltaPair pair{*own_view, *their_view, gossip::Side::lower};
      const double norm = gossip::apply_exchange(pair, 0.5F, {x, r}, gossip::Isa::scalar);
      const auto moved = made->apply(pair, 0.5F, {device_x.get()}, device_r.get());
      REQUIRE(moved.has_value());
      CHECK(*moved == doctest::Approx(norm).epsilon(1e-12));
      CHECK(same_bytes(without_negative_zeros(device_x.read()), without_negative_zeros(x)));
      CHECK(same_bytes(device_r.read(), r));

      const OnDevice<float> installed(std::vector<float>(layout.size()));
      REQUIRE(made->install(*their_view, installed.get()).has_value());
      std::vector<float> expected(layout.size());
      for (std::size_t block = 0; block < layout.blocks(); ++block)
        gossip::decode_block(*their_view, block,
                             std::span(expected).subspan(block * kBlock, kBlock),
                             gossip::Isa::scalar);
      CHECK(same_bytes(installed.read(), expected));
    }
  }

  TEST_CASE("a launch is not told of memory that there was not enough of before it") {
    const auto too_much = cuda::DeviceArray<float>::make(std::size_t{1} << 46, Doing::exchanging);
    REQUIRE(!too_much.has_value());
    CHECK(too_much.error().code == Errc::no_memory);
    const OnDevice<float> values(std::vector<float>(cuda::kSgdPack, 1));
    const OnDevice<std::uint32_t> refused({0});

    launched(
        cuda::launch_finite_check(values.get(), cuda::kSgdPack, refused.get(), /*stream=*/nullptr));

    CHECK(refused.read()[0] == 0);
  }
}
