#include "training/cpu/linear.h"

#include "node/base/random.h"
#include "tests/training/cpu/conv_variants.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

template <class T, class Draw>
Operands<T> operands_of(const LinearShape& shape, Draw draw) {
  Rng random(11);
  const auto drawn = [&](std::size_t count) {
    std::vector<T> values(count);
    for (T& value : values) value = rounded(draw(random), T{});
    return values;
  };
  return {drawn(shape.rows * shape.inputs), drawn(shape.outputs * shape.inputs),
          drawn(shape.rows * shape.outputs)};
}

// Sums of products, as a linear layer is defined.
template <class T>
Results<double> defined(const LinearShape& s, const Operands<T>& from) {
  Results<double> out = zeros_for(from);
  for (std::size_t r = 0; r < s.rows; ++r) {
    for (std::size_t o = 0; o < s.outputs; ++o) {
      const auto g = static_cast<double>(widened(from.g[r * s.outputs + o]));
      for (std::size_t i = 0; i < s.inputs; ++i) {
        const auto x = static_cast<double>(widened(from.x[r * s.inputs + i]));
        const auto w = static_cast<double>(widened(from.weights[o * s.inputs + i]));
        out.y[r * s.outputs + o] += x * w;
        out.dx[r * s.inputs + i] += g * w;
        out.dw[o * s.inputs + i] += g * x;
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("products of small integers are exact", T, float, Bf16) {
  // One row, an odd number of them, several blocks of rows, sums that are cut into stretches.
  for (const LinearShape& shape :
       {LinearShape{1, 64, 64}, LinearShape{13, 64, 192}, LinearShape{7, 640, 64},
        LinearShape{401, 128, 64}, LinearShape{1'031, 64, 64}}) {
    const auto from = operands_of<T>(shape, small_integer);
    const Results<double> expected = defined(shape, from);
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      CAPTURE(shape.rows);
      CAPTURE(shape.inputs);
      CAPTURE(shape.outputs);
      const Results<T> found =
          computed(Linear<T>(shape, *variant.kernels), from, shape.inputs, shape.outputs);
      CHECK(different(found.y, expected.y) == 0);
      CHECK(different(found.dx, expected.dx) == 0);
      CHECK(different(found.dw, expected.dw) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("products round once", T, float, Bf16) {
  const LinearShape shape{77, 192, 128};
  const auto from = operands_of<T>(shape, normal);
  const Results<double> expected = defined(shape, from);
  const double bound = kDepthOf<T> == 1 ? 1e-6 : 0.002;
  for (const Variant<T>& variant : variants<T>()) {
    CAPTURE(variant.name);
    const Results<T> found =
        computed(Linear<T>(shape, *variant.kernels), from, shape.inputs, shape.outputs);
    CHECK(distance(found.y, expected.y) < bound);
    CHECK(distance(found.dx, expected.dx) < bound);
    CHECK(distance(found.dw, expected.dw) < bound);
  }
}
