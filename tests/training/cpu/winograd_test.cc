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

template <class T>
struct Problem {
  WinogradShape shape;
  std::vector<T> x;
  std::vector<T> weights;
  std::vector<T> g;

  template <class Draw>
  Problem(const WinogradShape& s, Draw draw) : shape(s) {
    const std::size_t pixels = s.images * s.height * s.width;
    Rng random(7);
    const auto fill = [&](std::vector<T>& values, std::size_t count, float unit) {
      values.resize(count);
      for (T& value : values) value = rounded(unit * draw(random), T{});
    };
    fill(x, pixels * s.inputs, 1);
    fill(weights, s.outputs * 9 * s.inputs, 4);
    fill(g, pixels * s.outputs, 1);
  }
};

struct Results {
  std::vector<double> y;
  std::vector<double> dx;
  std::vector<double> dw;
};

// Sums of products, as a convolution is defined.
template <class T>
Results defined(const Problem<T>& p) {
  const WinogradShape& s = p.shape;
  Results out{std::vector<double>(p.g.size()), std::vector<double>(p.x.size()),
              std::vector<double>(p.weights.size())};
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

template <class T>
struct Computed {
  std::vector<T> y;
  std::vector<T> dx;
  std::vector<T> dw;
};
template <class T>
Computed<T> computed(const Problem<T>& p, const ConvKernels<T>& kernels) {
  const Winograd<T> winograd(p.shape, kernels);
  Workspace<T> memory(winograd.workspace_bytes());
  const auto workspace = memory.bytes();
  Computed<T> out{std::vector<T>(p.g.size(), not_a_number<T>()),
                  std::vector<T>(p.x.size(), not_a_number<T>()),
                  std::vector<T>(p.weights.size(), not_a_number<T>())};
  winograd.forward(p.x.data(), p.weights.data(), out.y.data(), workspace);
  winograd.input_gradient(p.g.data(), p.weights.data(), out.dx.data(), workspace);
  winograd.weight_gradient(p.x.data(), p.g.data(), out.dw.data(), workspace);
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
    const Problem<T> problem(shape, small_integer);
    const Results expected = defined(problem);
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      CAPTURE(shape.images);
      CAPTURE(shape.height);
      CAPTURE(shape.width);
      const Computed<T> found = computed(problem, *variant.kernels);
      CHECK(different(found.y, expected.y) == 0);
      CHECK(different(found.dx, expected.dx) == 0);
      CHECK(different(found.dw, expected.dw) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("a Winograd convolution is off by little more than its type is", T, float,
                   Bf16) {
  const Problem<T> problem({2, 8, 8, 64, 64}, normal);
  const Results expected = defined(problem);
  const double bound = kDepthOf<T> == 1 ? 1e-6 : 0.005;
  for (const Variant<T>& variant : variants<T>()) {
    CAPTURE(variant.name);
    const Computed<T> found = computed(problem, *variant.kernels);
    CHECK(distance(found.y, expected.y) < bound);
    CHECK(distance(found.dx, expected.dx) < bound);
    CHECK(distance(found.dw, expected.dw) < bound);
  }
}

TEST_CASE_TEMPLATE("what is not finite does not get lost in a Winograd convolution", T, float,
                   Bf16) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Problem<T> problem({1, 4, 4, 64, 64}, small_integer);
    problem.x[5 * 64 + 3] = rounded(bad, T{});
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      const Computed<T> found = computed(problem, *variant.kernels);
      const auto is_bad = [](T value) { return !std::isfinite(widened(value)); };
      // Every output of the pixels around it, every gradient of that channel's weights.
      CHECK(std::ranges::count_if(found.y, is_bad) >= 9 * 64);
      CHECK(std::ranges::count_if(found.dw, is_bad) >= 9 * 64);
      CHECK(std::ranges::none_of(found.dx, is_bad));
    }
  }
}
