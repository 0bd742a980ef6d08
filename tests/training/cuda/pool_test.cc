// The max pool of a GPU, run here crew by crew, against the CPU's normalisation and a plain pool.
#include "tests/training/cuda/pool_twin.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace starling;
using namespace starling::training;
using cuda::kNoTap;
using cuda::PoolLayerData;
using cuda::PoolShape;
using cuda::same_bytes;
using cuda::widened;

namespace {

constexpr PoolShape kPoolShapes[] = {{2, 8, 6, 16},  {1, 7, 5, 48}, {3, 1, 1, 16},  {2, 2, 3, 32},
                                     {1, 1, 10, 16}, {2, 9, 1, 64}, {1, 30, 33, 64}};

// visit(pooled, taken, tap) for each pooled value: where it lies, where in the activation y the
// first of the largest values of its window does, and which tap that is.
template <class T, class Visit>
void plain_pool(const std::vector<T>& y, const PoolShape& shape, Visit visit) {
  std::size_t pooled = 0;
  const auto [images, height, width, channels] = shape;
  for (std::size_t line = 0; line < std::size_t{images} * shape.down(); ++line) {
    for (std::size_t place = 0; place < std::size_t{shape.across()} * channels; ++place) {
      const std::size_t image = line / shape.down();
      const std::size_t top = 2 * (line % shape.down());
      const std::size_t left = 2 * (place / channels);
      std::size_t taken = 0;
      std::uint32_t found = kNoTap;
      for (std::uint32_t tap = 0; tap < 9; ++tap) {
        const std::size_t row = top + tap / 3;  // one more than it is: padding
        const std::size_t column = left + tap % 3;
        if (row < 1 || row > height || column < 1 || column > width) continue;
        const std::size_t at =
            ((image * height + row - 1) * width + column - 1) * channels + place % channels;
        if (found != kNoTap && !(widened(y[at]) > widened(y[taken]))) continue;
        taken = at;
        found = tap;
      }
      visit(pooled++, taken, found);
    }
  }
}

template <class T>
std::vector<T> activation(PoolLayerData<T>& data, const Norm<T>& norm) {
  std::vector<T> y(data.x.size());
  norm.apply({.x = data.x.data(), .y = y.data()}, {0, data.shape.rows()});
  return y;
}

template <class T>
void check_forward(const PoolShape& shape) {
  PoolLayerData<T> data(shape, 3);
  const auto y = activation(data, data.measure());

  cuda::pool_as_gpu(data);

  std::vector<T> values(data.y.size());
  std::vector<std::uint8_t> places(data.y.size());
  plain_pool(y, shape, [&](std::size_t pooled, std::size_t taken, std::uint32_t tap) {
    values[pooled] = y[taken];
    places[pooled] = static_cast<std::uint8_t>(widened(y[taken]) <= 0 ? kNoTap : tap);
  });
  CHECK(same_bytes(data.y, values));
  CHECK(same_bytes(data.places, places));
}

template <class T>
void check_backward(const PoolShape& shape, cuda::ItemOrder order, double value_bound) {
  PoolLayerData<T> cpu(shape, 5);
  Norm<T> norm = cpu.measure();
  // A plain pool hands each gradient to the one value that it took.
  std::vector<float> scattered(cpu.x.size());
  plain_pool(activation(cpu, norm), shape, [&](std::size_t pooled, std::size_t taken, auto) {
    scattered[taken] += widened(cpu.g[pooled]);
  });
  std::vector<T> g(cpu.x.size());
  for (std::size_t i = 0; i < g.size(); ++i) cuda::narrow(scattered[i], g[i]);
  const typename Norm<T>::Backward backward{.x = cpu.x.data(), .g = g.data(), .dx = cpu.dx.data()};
  norm.sum_gradient(backward, {0, shape.rows()});
  norm.end_gradient_sums(shape.rows(), {cpu.weight, cpu.bias, cpu.gradients[0], cpu.gradients[1]});
  norm.gradient(backward, {0, shape.rows()});

  PoolLayerData<T> gpu(shape, 5);
  (void)gpu.measure();
  cuda::pool_as_gpu(gpu);
  cuda::pool_gradient_as_gpu(gpu, order);

  // Some hundred additions in fp32, on either side.
  constexpr double kSumBound = 256.0 / (1 << 24);
  CHECK(cuda::apart(cpu.gradients[0], gpu.gradients[0]) < kSumBound);
  CHECK(cuda::apart(cpu.gradients[1], gpu.gradients[1]) < kSumBound);
  CHECK(cuda::apart(cpu.dx, gpu.dx) < value_bound + kSumBound);

  // In place, as a step does it.
  const auto dx = gpu.dx;
  gpu.dx.swap(gpu.x);
  gpu.x = gpu.dx;
  cuda::pool_gradient_as_gpu(gpu, order);
  CHECK(same_bytes(gpu.dx, dx));
}

template <class T>
void check_nan() {
  const PoolShape shape{1, 6, 6, 16};
  PoolLayerData<T> data(shape, 7);
  (void)data.measure();
  cuda::pool_as_gpu(data);
  const auto clean = data.y;
  const std::size_t poisoned = (std::size_t{3} * 6 + 2) * 16 + 5;  // row 3, column 2, channel 5
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    cuda::narrow(nan, data.x[poisoned]);

    cuda::pool_as_gpu(data);

    for (std::size_t i = 0; i < data.y.size(); ++i) {
      CAPTURE(i);
      const std::size_t row = i / 16 / 3;
      const std::size_t column = i / 16 % 3;
      // Row 3 lies in windows 1 and 2, column 2 in window 1 alone.
      const bool hit = i % 16 == 5 && row >= 1 && column == 1;
      CHECK(std::isnan(widened(data.y[i])) == hit);
      if (hit) {
        CHECK(data.places[i] == (row == 1 ? 7 : 1));
      } else {
        CHECK(widened(data.y[i]) == widened(clean[i]));
      }
    }
  }
}

}  // namespace

TEST_SUITE("training/cuda/pool") {
  TEST_CASE("pooled values and where they came from are those of normalisation, relu, max pool") {
    for (const PoolShape& shape : kPoolShapes) {
      CAPTURE(shape.height);
      CAPTURE(shape.width);
      check_forward<float>(shape);
      check_forward<Bf16>(shape);
    }
  }

  TEST_CASE("the gradient before the normalisation differs from the CPU's by rounding") {
    for (const PoolShape& shape : kPoolShapes) {
      CAPTURE(shape.height);
      CAPTURE(shape.width);
      for (const auto order : {cuda::ItemOrder::rising, cuda::ItemOrder::falling}) {
        check_backward<float>(shape, order, 0);
        // One step of bf16: 2^-8 of the largest value.
        check_backward<Bf16>(shape, order, 1.0 / 256);
      }
    }
  }

  TEST_CASE("a value that is not a number stays one in every window that it lies in") {
    check_nan<float>();
    check_nan<Bf16>();
  }
}
