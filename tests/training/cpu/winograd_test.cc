#include "training/cpu/winograd.h"

#include "node/base/random.h"
#include "tests/training/cpu/conv_variants.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

template <class T, class Draw>
Operands<T> operands_of(const WinogradShape& shape, Draw draw) {
  Rng random(7);
  const auto drawn = [&](std::size_t count, float unit) {
    std::vector<T> values(count);
    for (T& value : values) value = rounded(unit * draw(random), T{});
    return values;
  };
  const std::size_t pixels = shape.images * shape.height * shape.width;
  return {drawn(pixels * shape.inputs, 1), drawn(shape.outputs * 9 * shape.inputs, 4),
          drawn(pixels * shape.outputs, 1)};
}

// Sums of products, as a convolution is defined.
template <class T>
Results<double> defined(const WinogradShape& s, const Operands<T>& p) {
  Results<double> out = zeros_for(p);
  const auto each_tap = [&](auto body) {
    for (std::size_t image = 0; image < s.images; ++image) {
      for (std::size_t to = 0; to < s.height * s.width; ++to) {
        for (std::size_t tap = 0; tap < 9; ++tap) {
          const std::size_t line = to / s.width + tap / 3 - 1;
          const std::size_t column = to % s.width + tap % 3 - 1;
          if (line >= s.height || column >= s.width) continue;
          const std::size_t first = image * s.height * s.width;
          body(first + line * s.width + column, first + to, tap);
        }
      }
    }
  };
  each_tap([&](std::size_t from, std::size_t to, std::size_t tap) {
    for (std::size_t o = 0; o < s.outputs; ++o) {
      const auto g = static_cast<double>(widened(p.g[to * s.outputs + o]));
      double sum = 0;
      for (std::size_t i = 0; i < s.inputs; ++i) {
        const std::size_t at = (o * 9 + tap) * s.inputs + i;
        const auto w = static_cast<double>(widened(p.weights[at]));
        const auto x = static_cast<double>(widened(p.x[from * s.inputs + i]));
        sum += w * x;
        out.dx[from * s.inputs + i] += w * g;
        out.dw[at] += x * g;
      }
      out.y[to * s.outputs + o] += sum;
    }
  });
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("a Winograd convolution of small integers is exact", T, float, Bf16) {
  // Small integers, and weights that are multiples of four: no rounding but the last.
  // One tile, half a tile, lines and columns without a partner, several blocks of tiles, an odd
  // number of them.
  for (const WinogradShape& shape :
       {WinogradShape{1, 2, 2, 64, 64}, WinogradShape{3, 1, 2, 64, 128},
        WinogradShape{1, 3, 5, 128, 64}, WinogradShape{2, 7, 7, 64, 64},
        WinogradShape{3, 17, 26, 64, 64}}) {
    const auto from = operands_of<T>(shape, small_integer);
    const Results<double> expected = defined(shape, from);
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      CAPTURE(shape.images);
      CAPTURE(shape.height);
      CAPTURE(shape.width);
      const Results<T> found =
          computed(Winograd<T>(shape, *variant.kernels), from, shape.inputs, shape.outputs);
      CHECK(different(found.y, expected.y) == 0);
      CHECK(different(found.dx, expected.dx) == 0);
      CHECK(different(found.dw, expected.dw) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("a Winograd convolution is off by little more than its type is", T, float,
                   Bf16) {
  const WinogradShape shape{2, 8, 8, 64, 64};
  const auto from = operands_of<T>(shape, normal);
  const Results<double> expected = defined(shape, from);
  const double bound = kDepthOf<T> == 1 ? 1e-6 : 0.005;
  for (const Variant<T>& variant : variants<T>()) {
    CAPTURE(variant.name);
    const Results<T> found =
        computed(Winograd<T>(shape, *variant.kernels), from, shape.inputs, shape.outputs);
    CHECK(distance(found.y, expected.y) < bound);
    CHECK(distance(found.dx, expected.dx) < bound);
    CHECK(distance(found.dw, expected.dw) < bound);
  }
}

TEST_CASE_TEMPLATE("what is not finite does not get lost in a Winograd convolution", T, float,
                   Bf16) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const WinogradShape shape{1, 4, 4, 64, 64};
    auto from = operands_of<T>(shape, small_integer);
    from.x[5 * 64 + 3] = rounded(bad, T{});
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      const Results<T> found =
          computed(Winograd<T>(shape, *variant.kernels), from, shape.inputs, shape.outputs);
      const auto is_bad = [](T value) { return !std::isfinite(widened(value)); };
      // Every output of the pixels around it, every gradient of that channel's weights.
      CHECK(std::ranges::count_if(found.y, is_bad) >= 9 * 64);
      CHECK(std::ranges::count_if(found.dw, is_bad) >= 9 * 64);
      CHECK(std::ranges::none_of(found.dx, is_bad));
    }
  }
}
